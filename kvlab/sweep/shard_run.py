"""The rows of a shard while a worker measures them, and the errors of its choices as sentences."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Collection, Mapping
from itertools import groupby
from operator import itemgetter

from kvlab.core.errors import UserError
from kvlab.evaluate.harness import Evaluation, missing_units
from kvlab.evaluate.work import Unit
from kvlab.sweep.plan import Shard
from kvlab.sweep.shards import Row

SAVE_SECONDS = 60.0  # between writes of the rows so far: a lost worker loses what came later


class ShardRun:
    """The rows of a shard while a worker measures them.

    `rows` are those known before, by key. `save` is called with all rows so far, at most every `SAVE_SECONDS` and
    between batches: whoever goes on then forms the same batches.
    """

    def __init__(
        self, evaluation: Evaluation, shard: Shard, rows: Mapping[str, Row], save: Callable[[list[Row]], None]
    ) -> None:
        self.evaluation = evaluation
        self.units = evaluation.units[shard.start : shard.stop]
        keys = {key for unit in self.units for key in unit.keys.values()}
        self.failed: dict[int, str] = {}  # why, by index of the choice
        self._rows = {key: row for key, row in rows.items() if key in keys}
        self._save, self._saved = save, time.monotonic()

    def measure(self) -> None:
        """Measure all missing rows; those of choices that fail stay missing.

        If the shared passes end with an error, such as a row that does not fit the memory, every choice is measured
        alone, so that only those are given up that fail alone.
        """
        numbers = range(len(self.evaluation.maker.choices))
        error = self._measure(numbers)
        if error is None:
            return
        left = [number for number in numbers if number not in self.failed and self._missing([number])]
        for number in left:
            reason = error if len(left) == 1 else self._measure([number])
            if reason is not None:
                self.failed[number] = reason

    @property
    def rows(self) -> list[Row]:
        """The rows so far in the order of one process: prompt by prompt, and of each prompt choice by choice."""
        keys = (key for unit in self.units for key in unit.keys.values())
        return [self._rows[key] for key in keys if key in self._rows]

    @property
    def is_complete(self) -> bool:
        """Whether no row is missing."""
        return not self._missing(range(len(self.evaluation.maker.choices)))

    @property
    def reasons(self) -> dict[str, str]:
        """Why choices failed, by label."""
        choices = self.evaluation.maker.choices
        return {choices[number].label: self.failed[number] for number in sorted(self.failed)}

    def _missing(self, numbers: Collection[int]) -> list[Unit]:
        """The prompts with missing rows of these choices."""
        units = [Unit(unit.prompt, {number: unit.keys[number] for number in numbers}) for unit in self.units]
        return missing_units(units, self._rows.keys())

    def _measure(self, numbers: Collection[int]) -> str | None:
        """Measure choices in shared passes; a message if they end with an error that no single method raised."""
        errors = self.evaluation.maker.errors
        errors.clear()  # a method that failed on another shard may fit this one
        try:
            for _, batch in groupby(self.evaluation.measured(self._missing(numbers)), key=itemgetter(0)):
                self._rows |= {str(row["key"]): row for _, _, rows in batch for row in rows}
                self._save_if_due()
        except Exception as error:  # one shard's error must not end the sweep
            return _logged_message(error)
        finally:
            self.failed |= {number: _logged_message(error) for number, error in errors.items()}
            errors.clear()
        return None

    def _save_if_due(self) -> None:
        if time.monotonic() - self._saved >= SAVE_SECONDS:
            self._save(self.rows)
            self._saved = time.monotonic()


def message_of(error: BaseException) -> str:
    """An error as a sentence."""
    if isinstance(error, UserError):
        return str(error)
    first = (str(error).strip().splitlines() or ["no message"])[0]
    return f"{type(error).__name__}: {first} (the worker's log has more)."


def _logged_message(error: Exception) -> str:
    """The error as a sentence; its traceback goes to the log unless the sentence says all."""
    if not isinstance(error, UserError):
        traceback.print_exception(error)
    return message_of(error)
