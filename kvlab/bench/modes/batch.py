"""Mode `batch`: tokens per second against batch size until memory runs out, including the batch that did not fit."""

from __future__ import annotations

from collections.abc import Iterator

from kvlab.bench.baselines import contenders
from kvlab.bench.bench import Bench, decode_rows
from kvlab.bench.competitors import Contender, Load
from kvlab.bench.rows import Row


def measure(bench: Bench) -> Iterator[Row]:
    """Each contender at growing batches, until it runs out of memory."""
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
