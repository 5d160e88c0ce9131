"""How far a sweep is, read from its folder alone, whoever works on it. Torch-free."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from kvlab.sweep import roster, shards


@dataclass(frozen=True)
class SweepState:
    """Shards planned and there, those given up with why, and the workers."""

    planned: int
    there: int
    given_up: dict[str, str] = field(default_factory=dict)
    workers: Sequence[roster.Seen] = ()

    @property
    def left(self) -> int:
        """Shards that somebody has yet to measure."""
        return self.planned - self.there - len(self.given_up)

    @property
    def lost(self) -> int:
        """Workers that died without a word."""
        return sum(worker.lost for worker in self.workers)

    @property
    def at_work(self) -> int:
        """Workers that live."""
        return sum(not worker.ended and not worker.lost for worker in self.workers)

    @property
    def refusals(self) -> list[str]:
        """What workers said that ended before the work was done."""
        fine = ("", roster.DONE, roster.STOPPED)
        return list(dict.fromkeys(worker.ended for worker in self.workers if worker.ended not in fine))

    @property
    def words(self) -> str:
        """Such as `12 of 40 shards, 3 workers seen, 1 lost`."""
        count = len(self.workers)
        workers = f"{count} worker{'' if count == 1 else 's'} seen, {self.lost} lost"
        parts = [f"{self.there} of {self.planned} shards", workers]
        return ", ".join([*parts, *([f"{len(self.given_up)} given up"] if self.given_up else [])])


def is_sweep(folder: Path) -> bool:
    """Whether a folder of results is that of a sweep."""
    return (folder / shards.PLAN).is_file()


def state(folder: Path) -> SweepState:
    """The sweep of a folder as it is now; raises UserError where there is none, or its plan cannot be read."""
    names = planned_names(folder)
    measured = shards.there(folder)
    return SweepState(len(names), len(measured & names), shards.given_up(folder, names - measured), roster.seen(folder))


def planned_names(folder: Path) -> frozenset[str]:
    """Names of all shards of the plan; a plan is read once, as it may hold thousands."""
    path = folder / shards.PLAN
    return _names(folder, path.stat().st_mtime_ns if path.is_file() else 0)


@lru_cache(maxsize=16)
def _names(folder: Path, stamp: int) -> frozenset[str]:
    return frozenset(shard.name for shard in shards.read_plan(folder).shards)
