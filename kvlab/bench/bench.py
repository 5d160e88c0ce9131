"""A benchmark in progress: the opened model, the request, and the conversion of measurements into rows."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from kvlab.bench.competitors import Contender, Load, SlotContender
from kvlab.bench.device import Peaks, Spread, spread
from kvlab.bench.models import BenchModel
from kvlab.bench.race import Outcome, race
from kvlab.bench.request import BenchRequest
from kvlab.bench.rows import Row
from kvlab.core import Budget, MethodChoice
from kvlab.core.methods import make_method


@dataclass(frozen=True)
class Bench:
    """A model ready to be measured for `request`, on a device with the limits `peaks`."""

    model: BenchModel
    request: BenchRequest
    peaks: Peaks

    def race(self, racers: Sequence[Any], *, steps: int | None = None, resident: bool | None = None) -> list[Outcome]:
        """Time racers in turns with the request's repeats, steps and warm-up."""
        request = self.request
        device = self.model.device
        warmup = request.warmup if steps else request.warm_steps
        steps = steps or request.timed_steps
        return race(racers, device, repeats=request.repeats, steps=steps, warmup=warmup, resident=resident)

    def bytes_seconds(self, moved: int) -> float:
        """Lower bound of the seconds to move `moved` bytes."""
        return moved / self.peaks.bytes_per_second

    def row(self, contender: Contender, figure: str, unit: str, **values: Any) -> Row:
        """A row about one contender; `values` are further fields of `Row`."""
        request = self.request
        load = contender.load
        fields: dict[str, Any] = {
            "mode": request.mode,
            "figure": figure,
            "model": self.model.name,
            "method": contender.label,
            "batch": load.batch,
            "context": load.context,
            "unit": unit,
            "asked_context": load.asked or load.context,
            "asked_new_tokens": request.new_tokens,
            "new_tokens": request.shortened(request.new_tokens),
        }
        choice = choice_fields(contender.choice) if isinstance(contender, SlotContender) else {}
        return Row(**(fields | choice | values))


def choice_fields(choice: MethodChoice) -> dict[str, Any]:
    """The fields of `Row` with a method's budget (if it has one) and hyper-parameters."""
    fields = {"hyper_parameters": json.dumps(choice.hyper_parameters, sort_keys=True)}
    if not make_method(choice.method, **choice.hyper_parameters).needs_budget:
        return fields
    return fields | {"budget": Budget(choice.budget).number, "budget_unit": Budget(choice.budget).unit}


def best_baseline(racers: Sequence[Contender], outcomes: Sequence[Outcome]) -> int | None:
    """Index of the fastest full cache, None if none could be measured."""
    measured = [
        (spread(outcome.samples).median, index)
        for index, (racer, outcome) in enumerate(zip(racers, outcomes, strict=True))
        if racer.is_baseline and outcome.samples
    ]
    return min(measured)[1] if measured else None


def time_and_rate(
    row: Row, rate_figure: str, outcome: Outcome, least: float, full: Spread | None, tokens: int, scale: float = 1.0
) -> list[Row]:
    """A time's row, filled with `scale` times the seconds, and that of the rate of `tokens` in this time."""
    rate = replace(row, figure=rate_figure, unit="tokens/s")
    if not outcome.samples:
        return [row, rate]
    if outcome.joules:
        row = replace(row, joules=fmean(outcome.joules))
    took = spread(outcome.samples)
    rates = spread([tokens / seconds for seconds in outcome.samples])
    ratio = took.median / full.median if full else None
    return [
        complete_row(
            row, Spread(scale * took.median, scale * took.iqr, took.repeats), bound=scale * least, ratio=ratio
        ),
        complete_row(rate, rates, bound=tokens / least, ratio=1 / ratio if ratio else None, more_is_better=True),
    ]


def ratio_row(bench: Bench, racer: Contender, figure: str, outcome: Outcome, rival: Outcome, **values: Any) -> Row:
    """A row with the ratio of the racer's time to `rival`'s, round by round, so that noise affects both alike.

    On a CPU it uses process time, which other programs do not affect. `values` are further fields of `Row`.
    """
    on_cpu = bench.model.device.type == "cpu"
    note = outcome.note or rival.note or "processor time" * on_cpu
    row = bench.row(racer, figure, "ratio", note=note, **values)
    for part in (outcome, rival):
        if not part.samples:
            return replace(row, status=part.status, note=part.note)
    times = [part.processor if on_cpu else part.samples for part in (outcome, rival)]
    return complete_row(row, spread([a / b for a, b in zip(*times, strict=True)]))


def complete_row(
    row: Row, measured: Spread, *, bound: float | None = None, ratio: float | None = None, more_is_better: bool = False
) -> Row:
    """The row with its measurement, its bound, and the share of the bound that was reached."""
    reached = None
    if bound and measured.median > 0:
        reached = measured.median / bound if more_is_better else bound / measured.median
    return replace(
        row,
        repeats=measured.repeats,
        median=measured.median,
        iqr=measured.iqr,
        bound=bound,
        fraction_of_bound=reached,
        ratio_to_full=ratio,
    )


def loads(request: BenchRequest) -> list[Load]:
    """Every batch with every context of the request, shortened as it asks."""
    return [
        Load(batch, request.shortened(tokens), asked=tokens) for batch in request.batches for tokens in request.contexts
    ]
