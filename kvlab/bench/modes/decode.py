"""Mode `decode`: time of a decode step and tokens per second; with sparse attention also attention alone.

That attention appends one token to each compressed layer, keeps the index current, chooses and attends, with
random queries, keys and values. Dense attention is `scaled_dot_product_attention` over the same slots.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from kvlab.bench.bench import Bench, best_baseline, loads, ratio_row, time_and_rate
from kvlab.bench.caches import attend_by_hand, normal
from kvlab.bench.competitors import Contender, Load, PlainContender, SlotContender, contenders
from kvlab.bench.device import spread
from kvlab.bench.race import Outcome
from kvlab.bench.rows import Row
from kvlab.core.choice import MethodChoice
from kvlab.core.contract.pipeline import Evict
from kvlab.core.methods import registered

EVICTION = "h2o"  # the reference of merging methods at equal budget
OVER_EVICTION = f"decode step / {EVICTION}'s"
# Unequal layer budgets split a batch into several tables, also for eviction.
OVER_SAME_LAYERS = f"decode step / {EVICTION}'s with its budgets of layers and heads"
ATTENTION = "attention of a step"


def measure(bench: Bench) -> Iterator[Row]:
    """Every method and full cache at each batch and context, in turns; of sparse attention also the attention alone."""
    for load in loads(bench.request):
        racers = contenders(bench.model, load, bench.request)
        outcomes = bench.race(racers)
        # Step time and rate of each contender, with the bandwidth bound and the ratio to the best full cache.
        best = best_baseline(racers, outcomes)
        full = spread(outcomes[best].samples) if best is not None else None
        for index, (racer, outcome) in enumerate(zip(racers, outcomes, strict=True)):
            least = bench.bytes_seconds(bench.model.bytes_per_pass + outcome.live_bytes)
            step = bench.row(
                racer, "decode step", "ms/token", status=outcome.status, note=outcome.note, is_full=index == best
            )
            yield from time_and_rate(step, "decode rate", outcome, least, full, racer.load.batch, 1e3)
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
            OVER_SAME_LAYERS: MethodChoice(method="compose", budget=budget, hyper_parameters={"allocate": method}),
        }
        for figure, rival in rivals.items():
            for other in (other for choice, other in taken if choice == rival):
                yield ratio_row(bench, racer, figure, outcome, other)


class DenseAttention(PlainContender):
    """torch's attention of one query over every token, in every layer."""

    label = "full: torch attention"

    def prepare(self) -> None:
        super().prepare()
        shape = self.model.shape
        source = torch.Generator(self.model.device).manual_seed(self.request.seed)
        heads = shape.num_key_value_heads
        group = shape.num_attention_heads // heads
        self.query = normal(self.model, source, self.load.batch, heads, group, shape.head_dim)

    def step(self) -> None:
        for layer in self.cache.layers:
            scaled_dot_product_attention(self.query, layer.keys, layer.values)


class ReadAttention(SlotContender):
    """Appending and attending of one token in every compressed layer, under sparse attention."""

    def prepare(self) -> None:
        super().prepare()
        self.captures = False
        self.decoder = None
        shape = self.model.shape
        source = torch.Generator(self.model.device).manual_seed(self.request.seed)
        query = (self.load.batch, shape.num_attention_heads, 1, shape.head_dim)
        token = (self.load.batch, shape.num_key_value_heads, 1, shape.head_dim)
        self.states: tuple[Tensor, ...] = tuple(normal(self.model, source, *size) for size in (query, token, token))

    def step(self) -> None:
        for layer in self.cache.compressed_layers():
            attend_by_hand(layer, self.model.attention_modules[layer.layer_idx], *self.states)


def attention_rows(bench: Bench, load: Load) -> Iterator[Row]:
    """A time and a ratio to dense attention for each choice with sparse attention; nothing without one."""
    request = bench.request
    choices = [choice for choice in request.choices_run() if choice.hyper_parameters.get("read", "all") != "all"]
    if not choices:
        return
    dense = DenseAttention(bench.model, load, request)
    racers = [dense, *(ReadAttention(bench.model, load, request, choice) for choice in choices)]
    outcomes = bench.race(racers)
    for racer, outcome in zip(racers, outcomes, strict=True):
        row = bench.row(racer, ATTENTION, "ms/token", status=outcome.status, note=outcome.note, is_full=racer is dense)
        if outcome.samples:
            took = spread(outcome.samples)
            row = replace(row, repeats=took.repeats, median=1e3 * took.median, iqr=1e3 * took.iqr)
        yield row
        if racer is not dense:
            yield ratio_row(bench, racer, f"{ATTENTION} / dense", outcome, outcomes[0])
