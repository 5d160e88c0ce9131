"""What torch's own allocator on the CPU says: the most bytes alive at once while something ran."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import TypeVar

from torch._C._profiler import _EventType
from torch.profiler import ProfilerActivity, profile

Result = TypeVar("Result")


def peak_bytes(work: Callable[[], Result]) -> tuple[int, Result]:
    """(most bytes beyond those alive at the first allocation, what `work` returns)."""
    gc.disable()  # what others left must not be freed on the way; to collect it first takes longer than the work
    try:
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
            result = work()
    finally:
        gc.enable()
    waiting, events = list(profiled.profiler.kineto_results.experimental_event_tree()), []
    while waiting:
        event = waiting.pop()
        waiting.extend(event.children)
        if event.tag == _EventType.Allocation:
            fields = event.extra_fields
            events.append((event.start_time_ns, fields.alloc_size, fields.total_allocated))
    events.sort(key=lambda event: event[0])
    before = events[0][2] - events[0][1]
    return max(total for _, _, total in events) - before, result
