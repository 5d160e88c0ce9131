"""Modes `decode` and `batch`: time of a decode step and tokens per second against context length or batch size."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kvlab.bench.bench import Bench, decode_rows, loads, ratio_row
from kvlab.bench.competitors import Contender, Load, SlotContender, contenders
from kvlab.bench.modes.attention import attention_rows
from kvlab.bench.race import Outcome
from kvlab.bench.rows import Row
from kvlab.bench.targets import EVICTION, OVER_EVICTION, OVER_SAME_LAYERS, evicting
from kvlab.core.choice import MethodChoice
from kvlab.core.methods import registered
from kvlab.core.methods.settlers.eviction.evict import Evict


def measure(bench: Bench) -> Iterator[Row]:
    """Every method and full cache at each batch and context, in turns; of readings also the attention alone."""
    for load in loads(bench.request):
        racers = contenders(bench.model, load, bench.request)
        outcomes = bench.race(racers)
        yield from decode_rows(bench, racers, outcomes)
        yield from over_eviction(bench, racers, outcomes)
        yield from attention_rows(bench, load)


def over_eviction(bench: Bench, racers: Sequence[Contender], outcomes: Sequence[Outcome]) -> Iterator[Row]:
    """For each merging method, the ratio of its step to eviction's at the same budget.

    Also to eviction with the method's layer and head budgets, if that takes part.
    """
    taken = [(c.choice, o) for c, o in zip(racers, outcomes, strict=True) if isinstance(c, SlotContender)]
    merging = {name for name, method in registered().items() if not isinstance(method().pipeline().settle, Evict)}
    for racer, outcome in zip(racers, outcomes, strict=True):
        if not isinstance(racer, SlotContender) or racer.choice.method not in merging:
            continue
        method = racer.choice.method
        budget = racer.choice.budget
        rivals = {
            OVER_EVICTION: MethodChoice(method=EVICTION, budget=budget),
            OVER_SAME_LAYERS: evicting(method, budget),
        }
        for figure, rival in rivals.items():
            for other in (other for choice, other in taken if choice == rival):
                yield ratio_row(bench, racer, figure, outcome, other)


def measure_batches(bench: Bench) -> Iterator[Row]:
    """Mode `batch`: each contender at growing batches, until it runs out of memory; that batch has a row too."""
    request = bench.request
    for tokens in request.contexts:
        out: set[tuple[str, float | int]] = set()
        for rows in sorted(request.batches):
            racers = contenders(bench.model, Load(rows, request.shortened(tokens), asked=tokens), request)
            racers = [racer for racer in racers if _identity(racer) not in out]
            outcomes = bench.race(racers)
            yield from decode_rows(bench, racers, outcomes)
            out |= {_identity(racer) for racer, o in zip(racers, outcomes, strict=True) if o.status != "ok"}


def _identity(racer: Contender) -> tuple[str, float | int]:
    choice = getattr(racer, "choice", None)
    return racer.label, choice.budget if choice else 1.0
