"""Mode `profile`: the time of one decode step by operation."""

from __future__ import annotations

import os
from collections.abc import Iterator

import torch
from torch.profiler import ProfilerActivity

from kvlab.bench.bench import Bench, loads
from kvlab.bench.competitors import Contender, StaticContender, contenders
from kvlab.bench.device import seconds_of
from kvlab.bench.race import failure
from kvlab.bench.rows import Row

TOP = 10
# The profiler's library would log between the lines of a table.
os.environ.setdefault("KINETO_LOG_LEVEL", "99")


def measure(bench: Bench) -> Iterator[Row]:
    """Each contender's step time without the profiler, then its ten most expensive operations (self time)."""
    for load in loads(bench.request):
        for contender in contenders(bench.model, load, bench.request):
            if not isinstance(contender, StaticContender):  # a captured graph is one operation
                yield from _profiled(bench, contender)


def _profiled(bench: Bench, contender: Contender) -> Iterator[Row]:
    try:
        with contender.at_work():
            contender.prepare()
            for _ in range(bench.request.warmup):
                contender.step()
            seconds = seconds_of(contender.step, bench.model.device)
            costs = _costs(contender, bench.model.device)
    except Exception as error:
        status, note = failure(error)
        yield bench.row(contender, "decode step", "ms/token", status=status, note=note)
        return
    finally:
        contender.release()
    yield bench.row(contender, "decode step", "ms/token", repeats=1, median=1e3 * seconds, iqr=0.0)
    whole = sum(cost for _, cost, _ in costs) or 1.0
    for name, cost, calls in costs[:TOP]:
        note = f"{100 * cost / whole:.0f} % of the operations' time, {calls} calls"
        yield bench.row(contender, name, "ms/token", repeats=1, median=cost, iqr=0.0, note=note)


def _costs(contender: Contender, device: torch.device) -> list[tuple[str, float, int]]:
    """(operation, self time in milliseconds, calls), most expensive first."""
    on_device = device.type == "cuda"
    kinds = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if on_device else [])
    with torch.profiler.profile(activities=kinds) as watched:
        contender.step()
        if on_device:
            torch.cuda.synchronize(device)
    own = "self_device_time_total" if on_device else "self_cpu_time_total"
    costs = [(event.key, getattr(event, own) / 1e3, int(event.count)) for event in watched.key_averages()]
    return sorted((c for c in costs if c[1] > 0), key=lambda c: -c[1])
