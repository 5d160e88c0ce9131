"""Answers of one method to lm-eval's requests, written to disk one by one, so that an interrupted run goes on.

lm-eval's own `use_cache` unpickles its file, and its keys contain neither model nor method. Torch-free.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kvlab.core.errors import UserError
from kvlab.evaluate.results.rows import canonical_json

FOLDER = ".answers"
Answer = Any  # JSON: [log-probability, greedy], a log-probability or a text


@dataclass(frozen=True)
class Measurement:
    """The cost of one request; requests with the same context share its seconds, and each has its whole memory."""

    prompt_tokens: int
    in_sight: int
    slots: float
    logical_tokens: int
    live_bytes: int
    allocated_bytes: int
    bytes_read: int
    seconds: float
    prompt_seconds: float | None


def mean_measurement(parts: Sequence[Measurement], sharing: int = 1) -> Measurement:
    """One measurement of several passes or requests: mean memory, total seconds, largest token counts.

    `sharing`: how many requests share the seconds.
    """
    count = len(parts)
    prompt_seconds = [part.prompt_seconds for part in parts if part.prompt_seconds is not None]
    return Measurement(
        prompt_tokens=max(part.prompt_tokens for part in parts),
        in_sight=max(part.in_sight for part in parts),
        slots=sum(part.slots for part in parts) / count,
        logical_tokens=round(sum(part.logical_tokens for part in parts) / count),
        live_bytes=sum(part.live_bytes for part in parts) // count,
        allocated_bytes=sum(part.allocated_bytes for part in parts) // count,
        bytes_read=sum(part.bytes_read for part in parts) // count,
        seconds=sum(part.seconds for part in parts) / sharing,
        prompt_seconds=sum(prompt_seconds) / sharing if prompt_seconds else None,
    )


def request_key(kind: str, arguments: Sequence[object]) -> str:
    """Hash of a request's kind and arguments."""
    return _hash(json.dumps([kind, *arguments], sort_keys=True, default=str, ensure_ascii=False))


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]


class Answers:
    """Answers and measurements by request key; `settings` holds what an answer depends on besides its request."""

    def __init__(self, folder: Path, settings: Mapping[str, object]) -> None:
        self.path = folder / FOLDER / f"{_hash(canonical_json(settings))}.jsonl"
        self.known: dict[str, tuple[Answer, Measurement]] = {}
        if self.path.exists():
            for line in self.path.read_text(encoding="utf-8").split("\n"):
                try:
                    entry = json.loads(line)
                    self.known[entry["key"]] = entry["answer"], Measurement(**entry["measured"])
                except (ValueError, KeyError, TypeError):
                    continue  # truncated by a kill: this request is answered again

    def add(self, key: str, answer: Answer, measured: Measurement) -> None:
        """Add an answer and write it to disk at once."""
        self.known[key] = answer, measured
        entry = json.dumps({"key": key, "answer": answer, "measured": asdict(measured)}, ensure_ascii=False)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a", encoding="utf-8") as file:
                file.write(f"\n{entry}\n")  # the first line break ends a line that a kill truncated
        except OSError as error:
            reason = error.strerror or error
            raise UserError(f"Cannot write {self.path} ({reason}): free some space and run again.") from error
