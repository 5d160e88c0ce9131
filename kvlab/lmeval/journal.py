"""Answers of one method, saved as they come so that a killed run can be resumed. Torch-free.

Each method has a file, named by a hash of everything that could change an answer. lm-eval's own cache is not used: its
keys contain neither model nor method.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO

from kvlab.core.errors import UserError
from kvlab.evaluate.results.rows import canonical_json

FOLDER = ".answers"
Answer = Any  # JSON: [log-probability, greedy] or a text


@dataclass(frozen=True)
class Measurement:
    """The cost of one request; requests with the same context share its seconds, and each has its whole memory."""

    prompt_tokens: int
    in_sight: int
    slots: float
    logical_tokens: int
    live_bytes: int
    allocated_bytes: int
    seconds: float
    prompt_seconds: float | None
    batch_rows: int
    bytes_read: int | None = None  # none in older files


Answers = Mapping[str, tuple[Answer, Measurement]]


def mean_measurement(parts: Sequence[Measurement]) -> Measurement:
    """A prompt's measurement from its requests or windows: mean memory, total seconds, largest token counts."""
    count = len(parts)
    read = [part.live_bytes if part.bytes_read is None else part.bytes_read for part in parts]
    prompt_seconds = [part.prompt_seconds for part in parts if part.prompt_seconds is not None]
    return Measurement(
        prompt_tokens=max(part.prompt_tokens for part in parts),
        in_sight=max(part.in_sight for part in parts),
        slots=sum(part.slots for part in parts) / count,
        logical_tokens=round(sum(part.logical_tokens for part in parts) / count),
        live_bytes=sum(part.live_bytes for part in parts) // count,
        allocated_bytes=sum(part.allocated_bytes for part in parts) // count,
        seconds=sum(part.seconds for part in parts),
        prompt_seconds=sum(prompt_seconds) if prompt_seconds else None,
        batch_rows=max(part.batch_rows for part in parts),
        bytes_read=sum(read) // count,
    )


def request_key(kind: str, arguments: Sequence[object]) -> str:
    """Hash of a request's kind and arguments."""
    return _hash(json.dumps([kind, *arguments], sort_keys=True, default=str, ensure_ascii=False))


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]


class Journal:
    """Answers by request key; `settings` holds everything that an answer depends on besides its request."""

    def __init__(self, folder: Path, settings: Mapping[str, object]) -> None:
        self.path = folder / FOLDER / f"{_hash(canonical_json(settings))}.jsonl"
        self.answers: dict[str, tuple[Answer, Measurement]] = {}
        self._file: TextIO | None = None
        if self.path.exists():
            for line in self.path.read_text(encoding="utf-8").split("\n"):
                try:
                    entry = json.loads(line)
                    self.answers[entry["key"]] = entry["answer"], Measurement(**entry["measured"])
                except (ValueError, KeyError, TypeError):
                    continue  # truncated by a kill: this request is answered again

    def add(self, key: str, answer: Answer, measured: Measurement, save: bool = True) -> None:
        """Add an answer and write it to disk at once; sampled answers are not saved."""
        self.answers[key] = answer, measured
        if not save:
            return
        try:
            if self._file is None:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                self._file = self.path.open("a", encoding="utf-8")
                self._file.write("\n")  # ends a line that a kill truncated
            entry = {"key": key, "answer": answer, "measured": asdict(measured)}
            self._file.write(json.dumps(entry, ensure_ascii=False) + "\n")
            self._file.flush()
        except OSError as error:
            reason = error.strerror or error
            raise UserError(f"Cannot write {self.path} ({reason}): free some space and run again.") from error

    def close(self) -> None:
        """Close the file; a later run continues it."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def remove(self) -> None:
        """Delete the file once the rows are written."""
        self.close()
        self.path.unlink(missing_ok=True)
