"""Mode `decode`: the time of a decode step, and tokens a second, against context length."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kvlab.bench.bench import Bench, decode_rows, loads, over
from kvlab.bench.competitors import Contender, SlotContender
from kvlab.bench.line_up import contenders
from kvlab.bench.race import Outcome
from kvlab.bench.rows import Row
from kvlab.bench.targets import EVICTION, OVER_EVICTION, OVER_SAME_LAYERS, evicting
from kvlab.methods import registered
from kvlab.requests.compare import MethodChoice


def measure(bench: Bench) -> Iterator[Row]:
    """Every method and every full cache at each batch and context, in turns."""
    for load in loads(bench.request):
        racers = contenders(bench.model, load, bench.request)
        outcomes = bench.race(racers)
        yield from decode_rows(bench, racers, outcomes)
        yield from over_eviction(bench, racers, outcomes)


def over_eviction(bench: Bench, racers: Sequence[Contender], outcomes: Sequence[Outcome]) -> Iterator[Row]:
    """For each merging method its step over eviction's at the same budget.

    Where eviction with the method's own budgets of layers and heads takes part, over that as well.
    """
    taken = [(c.choice, o) for c, o in zip(racers, outcomes, strict=True) if isinstance(c, SlotContender)]
    merging = {name for name, method in registered().items() if method.describe()["merges"]}
    for racer, outcome in zip(racers, outcomes, strict=True):
        if not isinstance(racer, SlotContender) or racer.choice.method not in merging:
            continue
        method, budget = racer.choice.method, racer.choice.budget
        rivals = {
            OVER_EVICTION: MethodChoice(method=EVICTION, budget=budget),
            OVER_SAME_LAYERS: evicting(method, budget),
        }
        for figure, rival in rivals.items():
            for other in (other for choice, other in taken if choice == rival):
                yield over(bench, racer, figure, outcome, other)
