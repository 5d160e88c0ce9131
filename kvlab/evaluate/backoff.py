"""Run prompts and choices in batches and halve the batch size when memory runs out."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

from kvlab.core.choice import MethodChoice
from kvlab.core.errors import UserError, is_out_of_memory
from kvlab.engine.out_of_memory import drop_frames, release_memory
from kvlab.evaluate.results.outcome import Loaded
from kvlab.models.placement import input_device


class Sized(Protocol):
    """Anything with a prompt length."""

    @property
    def prompt_tokens(self) -> int: ...


Prompt = TypeVar("Prompt", bound=Sized)
Result = TypeVar("Result")
Measure = Callable[[Sequence[Prompt], Sequence[MethodChoice]], list[list[Result] | Exception]]


class Backoff(Generic[Prompt, Result]):
    """Batch prompts and choices; the largest number of rows that fits is remembered for the rest of the evaluation.

    Every prompt is a row of the batch for every choice.
    """

    def __init__(self, loaded: Loaded, measure: Measure[Prompt, Result]) -> None:
        self.loaded = loaded
        self.measure = measure
        self.most: int | None = None

    def outcomes(
        self, prompts: Sequence[Prompt], choices: Sequence[MethodChoice]
    ) -> list[list[tuple[Result, int]] | Exception]:
        """For each choice each prompt's outcome and the rows that ran together, or the error of its method.

        All prompts must have one shape. Raises UserError if a single row does not fit; other errors pass through.
        """
        found: dict[tuple[int, int], tuple[Result, int]] = {}
        errors: dict[int, Exception] = {}
        waiting = [(range(len(prompts)), range(len(choices)))]
        while waiting:
            part, numbers = waiting.pop(0)
            rows = len(part) * len(numbers)
            if self.most is not None and rows > self.most:
                waiting = [*_halves(part, numbers), *waiting]
                continue
            outcomes = self._try([prompts[row] for row in part], [choices[number] for number in numbers])
            if outcomes is None:
                if rows == 1:
                    raise UserError(self._message(prompts[part[0]], choices[numbers[0]]))
                self.most = rows // 2
                waiting.insert(0, (part, numbers))
                continue
            for number, own in zip(numbers, outcomes, strict=True):
                if isinstance(own, Exception):
                    errors[number] = own
                else:
                    found |= {(number, row): (one, rows) for row, one in zip(part, own, strict=True)}
        every = range(len(prompts))
        return [errors.get(number) or [found[number, row] for row in every] for number in range(len(choices))]

    @property
    def note(self) -> str:
        """A sentence if the batch size had to be reduced; else empty."""
        together = "one row" if self.most == 1 else f"{self.most} rows"
        return f"The batch size was reduced to {together} because memory ran out." if self.most else ""

    def _try(self, prompts: Sequence[Prompt], choices: Sequence[MethodChoice]) -> list[list[Result] | Exception] | None:
        try:
            return self.measure(prompts, choices)
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            drop_frames(error)
        gc.collect()
        release_memory(input_device(self.loaded.model))
        return None

    def _message(self, prompt: Prompt, choice: MethodChoice) -> str:
        device = input_device(self.loaded.model).type
        return (
            f"{device} ran out of memory on one prompt of {prompt.prompt_tokens:,} tokens ({choice.label}): use "
            "shorter --lengths, --set prefill_chunk=N, --dtype bfloat16 or --set placement=auto; measured "
            "rows are kept."
        )


def _halves(part: range, numbers: range) -> list[tuple[range, range]]:
    """The batch in halves: of its prompts, so that each is still read once, or of its choices."""
    if len(part) > 1:
        middle = len(part) // 2
        return [(part[:middle], numbers), (part[middle:], numbers)]
    middle = len(numbers) // 2
    return [(part, numbers[:middle]), (part, numbers[middle:])]
