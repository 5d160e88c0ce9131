"""Mode `decode`: the time of a decode step, and tokens a second, against context length."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TypeGuard

from kvlab.bench.bars import EVICTION, OVER_EVICTION
from kvlab.bench.bench import Bench, decode_rows, filled, loads
from kvlab.bench.clock import spread
from kvlab.bench.contenders import Contender, SlotContender
from kvlab.bench.line_up import contenders
from kvlab.bench.race import Outcome
from kvlab.bench.rows import Row
from kvlab.methods import registered


def measure(bench: Bench) -> Iterator[Row]:
    """Every method and every full cache at each batch and context, in turns."""
    for load in loads(bench.request):
        racers = contenders(bench.model, load, bench.request)
        outcomes = bench.race(racers)
        yield from decode_rows(bench, racers, outcomes)
        yield from over_eviction(bench, racers, outcomes)


def over_eviction(bench: Bench, racers: Sequence[Contender], outcomes: Sequence[Outcome]) -> Iterator[Row]:
    """For each merging method its step over eviction's at the same budget, round by round: noise hits both alike.

    On a CPU it is the processor's time, which other programs do not stretch.
    """
    on_cpu = bench.model.device.type == "cpu"
    taken = {c.choice.budget: o for c, o in zip(racers, outcomes, strict=True) if _is(c, {EVICTION})}
    merging = {name for name, method in registered().items() if method.describe()["merges"]}
    for racer, outcome in zip(racers, outcomes, strict=True):
        if not _is(racer, merging) or racer.choice.budget not in taken:
            continue
        other = taken[racer.choice.budget]
        row = bench.row(racer, OVER_EVICTION, "ratio", note=outcome.note or other.note or "processor time" * on_cpu)
        for part in (outcome, other):
            if not part.samples:
                yield replace(row, status=part.status, note=part.note)
                break
        else:
            taken_by = [part.processor if on_cpu else part.samples for part in (outcome, other)]
            yield filled(row, spread([a / b for a, b in zip(*taken_by, strict=True)]))


def _is(contender: Contender, names: set[str]) -> TypeGuard[SlotContender]:
    return isinstance(contender, SlotContender) and contender.choice.method in names
