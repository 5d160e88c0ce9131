"""Which GPUs each worker of a server has: every one its own share, a CPU one worker for all."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from kvlab.common.errors import UserError
from kvlab.jobs.work import Work
from kvlab.planning.machine import visible_gpus

WORKERS = "KVLAB_WORKERS"
VISIBLE = "CUDA_VISIBLE_DEVICES"
MOST_WORKERS = 64


@dataclass(frozen=True)
class Share:
    """What one worker has: `numbers` as requests name GPUs (cuda:0 ...), `ids` as the driver does. None: everything.

    `others` are the GPUs of the other workers.
    """

    place: int
    numbers: tuple[int, ...] = ()
    ids: tuple[str, ...] = ()
    others: tuple[int, ...] = ()

    @property
    def devices(self) -> str:
        """In words that the queue keeps: `cuda:2`, or `cuda:0,cuda:1`; empty for everything there is."""
        return _named(self.numbers)

    @property
    def arguments(self) -> list[str]:
        """How the worker's command says it."""
        more = ["--devices", self.devices, "--others", _named(self.others)] if self.numbers else []
        return ["--place", str(self.place), *more]

    @property
    def environment(self) -> dict[str, str]:
        """What the worker's process is told."""
        return {VISIBLE: ",".join(self.ids)} if self.ids else {}


def shares(workers: int, gpus: list[str]) -> list[Share]:
    """The share of each of so many workers: the GPUs in order, dealt as evenly as they go.

    Raises:
        UserError: there are more workers than GPUs, which would load two models onto one.
    """
    if not 1 <= workers <= MOST_WORKERS:
        raise UserError(f"There cannot be {workers} workers: ask for 1 to {MOST_WORKERS}.")
    if workers == 1 or not gpus:
        return [Share(place) for place in range(1, workers + 1)]
    if workers > len(gpus):
        raise UserError(f"{workers} workers want a GPU each, and {len(gpus)} can be seen: ask for fewer --workers.")
    bounds, every = [round(len(gpus) * place / workers) for place in range(workers + 1)], range(len(gpus))
    return [
        Share(place, tuple(every[low:high]), tuple(gpus[low:high]), (*every[:low], *every[high:]))
        for place, (low, high) in enumerate(pairwise(bounds), start=1)
    ]


def shares_here() -> list[Share]:
    """The shares of the server that this process belongs to: `KVLAB_WORKERS` says how many, none says one."""
    named = os.environ.get(WORKERS, "1")
    if not named.isdecimal() or len(named) > 4:
        raise UserError(f"{WORKERS} is {named[:40]!r}: give a number of workers.")
    return _shares(int(named), os.environ.get(VISIBLE))


@lru_cache(maxsize=2)
def _shares(workers: int, _visible: str | None) -> list[Share]:
    # What the driver is asked takes a while, and pages ask every second.
    return shares(workers, visible_gpus() if workers > 1 else [])


def _named(numbers: Iterable[int]) -> str:
    return ",".join(f"cuda:{number}" for number in numbers)


def device_of(work: Work) -> str:
    """The one GPU that work names, such as `cuda:2`; empty where any worker may take it."""
    asked = str(getattr(getattr(work, "request", work), "device", ""))
    return asked if asked.startswith("cuda:") else ""


def placed(work: Work, devices: str) -> Work:
    """The work as the worker with these devices must name its GPU: the driver counts those it sees from 0."""
    asked = device_of(work)
    if not asked or not devices:
        return work
    own = devices.split(",")
    if asked not in own:
        raise UserError(f"There is no {asked} on this server: choose auto, or another device.")
    renamed = {"device": f"cuda:{own.index(asked)}"}
    inner = getattr(work, "request", None)
    changed = renamed if inner is None else {"request": inner.model_copy(update=renamed)}
    return work.model_copy(update=changed)
