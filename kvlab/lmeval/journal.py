"""Answers of one method on disk as they come, so that a killed run goes on where it was. Torch-free.

The harness's own answer cache knows neither model nor method, so one file of it for several methods would give all of
them the first one's answers. Here each method has a file, named by everything that could change an answer.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO

from kvlab.common.errors import UserError
from kvlab.evaluate.results.rows import canonical_json

FOLDER = ".answers"
Answer = Any  # of JSON: [log-probability, greedy] or a text


@dataclass(frozen=True)
class Measured:
    """What answering one request took; of a context shared by several its share of seconds, and the whole of memory."""

    prompt_tokens: int
    in_sight: int
    slots: float
    logical_tokens: int
    live_bytes: int
    allocated_bytes: int
    seconds: float
    prompt_seconds: float | None
    batch_rows: int


def merged(parts: Sequence[Measured]) -> Measured:
    """Of a prompt from its requests' or windows': means of what was held, sums of seconds."""
    count = len(parts)
    took = [part.prompt_seconds for part in parts if part.prompt_seconds is not None]
    return Measured(
        prompt_tokens=max(part.prompt_tokens for part in parts),
        in_sight=max(part.in_sight for part in parts),
        slots=sum(part.slots for part in parts) / count,
        logical_tokens=round(sum(part.logical_tokens for part in parts) / count),
        live_bytes=sum(part.live_bytes for part in parts) // count,
        allocated_bytes=sum(part.allocated_bytes for part in parts) // count,
        seconds=sum(part.seconds for part in parts),
        prompt_seconds=sum(took) if took else None,
        batch_rows=max(part.batch_rows for part in parts),
    )


def request_key(kind: str, arguments: Sequence[object]) -> str:
    """The name of a request: its kind and all that the harness gives with it."""
    text = json.dumps([kind, *arguments], sort_keys=True, default=str, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


class Journal:
    """Answers by the key of their request."""

    def __init__(self, folder: Path, of: Mapping[str, object]) -> None:
        """`of` is everything that an answer depends on beside its request."""
        name = hashlib.sha256(canonical_json(of).encode()).hexdigest()[:32]
        self.path = folder / FOLDER / f"{name}.jsonl"
        self.found: dict[str, tuple[Answer, Measured]] = {}
        self._file: TextIO | None = None
        if self.path.exists():
            self._read()

    def _read(self) -> None:
        for line in self.path.read_text(encoding="utf-8").split("\n"):
            try:
                told = json.loads(line)
                self.found[told["key"]] = told["answer"], Measured(**told["measured"])
            except (ValueError, KeyError, TypeError):
                continue  # of a line that a kill cut short the answer is made again

    def add(self, key: str, answer: Answer, measured: Measured, keep: bool = True) -> None:
        """Take an answer; on disk at once, unless it was drawn at random (`keep` is false)."""
        self.found[key] = answer, measured
        if not keep:
            return
        try:
            if self._file is None:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                self._file = self.path.open("a", encoding="utf-8")
                self._file.write("\n")  # ends a line that a kill cut short
            told = {"key": key, "answer": answer, "measured": asdict(measured)}
            self._file.write(json.dumps(told, ensure_ascii=False) + "\n")
            self._file.flush()
        except OSError as error:
            reason = error.strerror or error
            raise UserError(f"{self.path} cannot be written to ({reason}): make room and run again.") from error

    def close(self) -> None:
        """Let go of the file; a later run goes on with it."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def remove(self) -> None:
        """The rows are written: the answers are not needed any more."""
        self.close()
        self.path.unlink(missing_ok=True)
