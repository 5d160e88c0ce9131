"""What torch's own allocator on the CPU says: the most bytes alive at once while something ran."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from torch._C._profiler import _EventType
from torch.profiler import ProfilerActivity, profile, record_function

Result = TypeVar("Result")
MARK = "stage "


@dataclass(frozen=True)
class Profiled(Generic[Result]):
    """`allocations` as (time, bytes then alive), `stages` as (begun, ended, name) in order, and the result."""

    allocations: list[tuple[int, int]]
    stages: list[tuple[int, int, str]]
    result: Result

    def most(self, begun: int, ended: int) -> int:
        """Most bytes alive from one time to another, beyond those alive at the first allocation."""
        return max(alive for time, alive in self.allocations if begun <= time <= ended)


def profiled(work: Callable[[], Result]) -> Profiled[Result]:
    """Run `work` and note its allocations and the stages that `staged` marks."""
    gc.disable()  # what others left must not be freed on the way; to collect it first takes longer than the work
    try:
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
            result = work()
    finally:
        gc.enable()
    waiting, events, stages = list(profiled.profiler.kineto_results.experimental_event_tree()), [], []
    while waiting:
        event = waiting.pop()
        waiting.extend(event.children)
        if event.tag == _EventType.Allocation:
            fields = event.extra_fields
            events.append((event.start_time_ns, fields.alloc_size, fields.total_allocated))
        elif event.name.startswith(MARK):
            stages.append((event.start_time_ns, event.end_time_ns, event.name.removeprefix(MARK)))
    events.sort(key=lambda event: event[0])
    before = events[0][2] - events[0][1]
    return Profiled([(time, total - before) for time, _, total in events], sorted(stages), result)


def staged(name: str, work: Callable[..., Result]) -> Callable[..., Result]:
    """`work` as a stage of what is profiled."""

    def run(*arguments: Any, **options: Any) -> Result:
        with record_function(MARK + name):
            return work(*arguments, **options)

    return run


def peak_bytes(work: Callable[[], Result]) -> tuple[int, Result]:
    """(most bytes beyond those alive at the first allocation, what `work` returns)."""
    found = profiled(work)
    return max(alive for _, alive in found.allocations), found.result
