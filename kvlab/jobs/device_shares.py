"""Divide a server's GPUs among its workers; on a CPU one worker has everything."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from kvlab.core.errors import UserError
from kvlab.jobs.work import Work
from kvlab.planning.machine import visible_gpus

WORKERS = "KVLAB_WORKERS"
VISIBLE = "CUDA_VISIBLE_DEVICES"
MOST_WORKERS = 64


@dataclass(frozen=True)
class Share:
    """GPUs of one worker: `numbers` as requests name them (cuda:0 ...), `ids` as the driver does; empty for everything.

    `others` are the GPUs of the other workers.
    """

    place: int
    numbers: tuple[int, ...] = ()
    ids: tuple[str, ...] = ()
    others: tuple[int, ...] = ()

    @property
    def devices(self) -> str:
        """As stored in the queue: `cuda:2`, or `cuda:0,cuda:1`; empty for everything."""
        return _named(self.numbers)

    @property
    def arguments(self) -> list[str]:
        more = ["--devices", self.devices, "--others", _named(self.others)] if self.numbers else []
        return ["--place", str(self.place), *more]

    @property
    def environment(self) -> dict[str, str]:
        return {VISIBLE: ",".join(self.ids)} if self.ids else {}


def shares(workers: int, gpus: list[str]) -> list[Share]:
    """Divide the GPUs among the workers, in order and as evenly as possible.

    Raises UserError if there are more workers than GPUs, which would load two models onto one.
    """
    if not 1 <= workers <= MOST_WORKERS:
        raise UserError(f"There cannot be {workers} workers: ask for 1 to {MOST_WORKERS}.")
    if workers == 1 or not gpus:
        return [Share(place) for place in range(1, workers + 1)]
    if workers > len(gpus):
        raise UserError(f"{workers} workers want a GPU each, and {len(gpus)} can be seen: ask for fewer --workers.")
    bounds = [round(len(gpus) * place / workers) for place in range(workers + 1)]
    every = range(len(gpus))
    return [
        Share(place, tuple(every[low:high]), tuple(gpus[low:high]), (*every[:low], *every[high:]))
        for place, (low, high) in enumerate(pairwise(bounds), start=1)
    ]


def server_shares() -> list[Share]:
    """The shares of this process's server, whose number of workers is `KVLAB_WORKERS` (default 1)."""
    named = os.environ.get(WORKERS, "1")
    if not named.isdecimal() or len(named) > 4:
        raise UserError(f"{WORKERS} is {named[:40]!r}: give a number of workers.")
    return _shares(int(named), os.environ.get(VISIBLE))


@lru_cache(maxsize=2)
def _shares(workers: int, _visible: str | None) -> list[Share]:
    # Asking the driver is slow, and pages call this every second.
    return shares(workers, visible_gpus() if workers > 1 else [])


def _named(numbers: Iterable[int]) -> str:
    return ",".join(f"cuda:{number}" for number in numbers)


def device_of(work: Work) -> str:
    """The GPU that the job names, such as `cuda:2`; empty if any worker may take it."""
    device = str(getattr(getattr(work, "request", work), "device", ""))
    return device if device.startswith("cuda:") else ""


def with_local_device(work: Work, devices: str) -> Work:
    """The job with its GPU numbered as the worker sees it: CUDA counts visible devices from 0."""
    device = device_of(work)
    if not device or not devices:
        return work
    own_devices = devices.split(",")
    if device not in own_devices:
        raise UserError(f"There is no {device} on this server: choose auto, or another device.")
    renamed = {"device": f"cuda:{own_devices.index(device)}"}
    inner = getattr(work, "request", None)
    changed = renamed if inner is None else {"request": inner.model_copy(update=renamed)}
    return work.model_copy(update=changed)
