"""Mode `prefill`: seconds to read and compress the prompt."""

from collections.abc import Iterator

from torch import nn

from kvlab.bench.bench import Bench, best_baseline, complete_row, loads, ratio_row
from kvlab.bench.competitors import Contender, Load, PlainContender, SlotContender, StaticContender, contenders
from kvlab.bench.device import spread
from kvlab.bench.models import BenchModel
from kvlab.bench.rows import Row
from kvlab.core.contract.parts import optional
from kvlab.core.methods import make_method

# Scores from the last queries of a prompt, and scores accumulated over all queries.
WINDOW_OVER_PLAIN = "prompt / plain transformers', windowed scores"
ALL_OVER_PLAIN = "prompt / plain transformers', accumulated scores"


class PrefillRacer:
    """A contender whose step prefills a new cache with a prompt of random tokens."""

    warmup = 0

    def __init__(self, contender: Contender) -> None:
        self.contender = contender
        self.at_work = contender.at_work
        self.release = contender.release
        self.prepare = contender.check
        self.expected_bytes = contender.expected_bytes  # of one cache at a time: nothing is kept between turns

    @property
    def live_bytes(self) -> int:
        return self.contender.live_bytes if self.contender.cache is not None else 0

    def step(self) -> None:
        self.contender.cache = None
        self.contender.cache = self.contender.make_cache()
        self.contender.prefill()


def measure(bench: Bench) -> Iterator[Row]:
    """Every method and full cache at each batch and context, in turns."""
    for load in loads(bench.request):
        # without the compiled decode step, which does not affect prefill
        racers = [c for c in contenders(bench.model, load, bench.request) if not isinstance(c, StaticContender)]
        outcomes = bench.race([PrefillRacer(racer) for racer in racers], steps=1)
        # One row each: seconds, with the larger of compute and bandwidth bound.
        best = best_baseline(racers, outcomes)
        full = spread(outcomes[best].samples).median if best is not None else None
        for index, (racer, outcome) in enumerate(zip(racers, outcomes, strict=True)):
            row = bench.row(racer, "prefill", "s", status=outcome.status, note=outcome.note, is_full=index == best)
            if outcome.samples:
                took = spread(outcome.samples)
                least = max(
                    prompt_flops(bench.model, racer.load) / bench.peaks.flops_per_second,
                    bench.bytes_seconds(bench.model.bytes_per_pass + outcome.live_bytes),
                )
                row = complete_row(row, took, bound=least, ratio=took.median / full if full else None)
            yield row
        # Each method's time over plain transformers', named by whether it accumulates the attention of all queries.
        plain = next(o for c, o in zip(racers, outcomes, strict=True) if isinstance(c, PlainContender))
        for racer, outcome in zip(racers, outcomes, strict=True):
            if isinstance(racer, SlotContender) and not racer.is_baseline and plain.samples and outcome.samples:
                pipeline = make_method(racer.choice.method, **racer.choice.hyper_parameters).pipeline()
                figure = ALL_OVER_PLAIN if optional(pipeline.score, "accumulate") is not None else WINDOW_OVER_PLAIN
                yield ratio_row(bench, racer, figure, outcome, plain)


def prompt_flops(model: BenchModel, load: Load) -> float:
    """Operations of a prefill: two per weight and token, plus causal attention; one output token per row."""
    weights = sum(m.weight.numel() for m in model.model.modules() if isinstance(m, nn.Linear))
    output = model.model.get_output_embeddings()
    head = output.weight.numel() if output is not None else 0
    shape = model.shape
    attention = 2 * shape.num_hidden_layers * shape.num_attention_heads * shape.head_dim * load.context**2
    return load.batch * (2.0 * (weights - head) * load.context + 2.0 * head + attention)
