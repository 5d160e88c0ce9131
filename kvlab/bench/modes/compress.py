"""Mode `compress`: the cost of decisions, for the prompt and per decode step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from transformers.cache_utils import Cache

from kvlab.bench.bench import Bench, complete_row, has_budget, loads, scale_spread
from kvlab.bench.competitors import Load, SlotContender
from kvlab.bench.device import spread
from kvlab.bench.fill import attend_by_hand, fill, normal
from kvlab.bench.race import Outcome
from kvlab.bench.rows import Row
from kvlab.core.budget import Budget
from kvlab.core.cache import make_cache
from kvlab.core.choice import FULL, MethodChoice
from kvlab.core.methods import make_method


class PromptDecision(SlotContender):
    """A contender whose step fills a new cache; `seconds` are the layers' decision times."""

    def prepare(self) -> None:
        self.check()
        self.seconds: list[float] = []

    def make_cache(self) -> Cache:
        method = make_method(self.choice.method, **self.choice.hyper_parameters)
        return make_cache(self.model.model, method, self.choice.budget, seed=self.request.seed, timed=True)

    def step(self) -> None:
        self.cache = self.make_cache()
        fill(self.model, self.cache, self.load.batch, self.load.prompt, seed=self.request.seed)
        self.seconds.append(self.cache.settings.prefill_compress_seconds)

    @property
    def live_bytes(self) -> int:
        return 0


class AttentionStep(SlotContender):
    """A contender whose step appends, attends and decides in every layer for one token; no projection, no MLP."""

    def prepare(self) -> None:
        super().prepare()
        shape = self.model.shape
        batch = self.load.batch
        source = torch.Generator(self.model.device).manual_seed(self.request.seed + 1)
        self.states = [
            normal(self.model, source, batch, heads, 1, shape.head_dim)
            for heads in (shape.num_attention_heads, shape.num_key_value_heads, shape.num_key_value_heads)
        ]

    def step(self) -> None:
        query, keys, values = self.states
        for layer in self.cache.compressed_layers():
            attend_by_hand(layer, self.model.attention_modules[layer.layer_idx], query, keys, values)


def measure(bench: Bench) -> Iterator[Row]:
    """Seconds of the prompt's decision, and milliseconds that decisions add to a decode step."""
    for load in loads(bench.request):
        choices = [choice for choice in bench.request.choices_run() if choice.method != "full"]
        yield from _prompt_decisions(bench, load, choices)
        yield from _step_decisions(bench, load, choices)


def _prompt_decisions(bench: Bench, load: Load, choices: Sequence[MethodChoice]) -> Iterator[Row]:
    racers = [PromptDecision(bench.model, load, bench.request, choice) for choice in choices]
    outcomes = bench.race(racers, steps=1, resident=True)
    for racer, outcome in zip(racers, outcomes, strict=True):
        row = bench.row(racer, "prompt decision", "s", status=outcome.status, note=outcome.note)
        if outcome.samples:
            row = complete_row(row, spread(racer.seconds[-bench.request.repeats :]))
        yield row


def _step_decisions(bench: Bench, load: Load, choices: Sequence[MethodChoice]) -> Iterator[Row]:
    """Each method against a full cache with as many tokens as its budget: equal slots, no decisions."""
    slots = {_slots(choice, load) for choice in choices if has_budget(choice)}
    plain = {n: AttentionStep(bench.model, Load(load.batch, n), bench.request, FULL) for n in sorted(slots)}
    racers = [AttentionStep(bench.model, load, bench.request, choice) for choice in choices]
    outcomes = bench.race([*plain.values(), *racers])
    undecided = dict(zip(plain, outcomes, strict=False))
    for number, racer in plain.items():
        yield _step_row(bench, racer, undecided[number])
    for choice, racer, outcome in zip(choices, racers, outcomes[len(plain) :], strict=True):
        yield _step_row(bench, racer, outcome)
        if has_budget(choice):  # without a budget there is no cache of equal size to compare with
            yield _decision_row(bench, racer, outcome, undecided[_slots(choice, load)])


def _slots(choice: MethodChoice, load: Load) -> int:
    return min(load.prompt, Budget(choice.budget).slots(load.prompt))


def _step_row(bench: Bench, racer: SlotContender, outcome: Outcome) -> Row:
    row = bench.row(racer, "attention step", "ms/step", status=outcome.status, note=outcome.note)
    if not outcome.samples:
        return row
    least = 1e3 * bench.bytes_seconds(outcome.live_bytes)
    return complete_row(row, scale_spread(spread(outcome.samples), 1e3), bound=least)


def _decision_row(bench: Bench, racer: SlotContender, outcome: Outcome, undecided: Outcome) -> Row:
    """Differences per round, so that a slow round does not count as a slow decision."""
    row = bench.row(racer, "scoring and deciding", "ms/step")
    for part in (outcome, undecided):
        if not part.samples:
            return replace(row, status=part.status, note=part.note)
    gaps = [1e3 * (with_it - without) for with_it, without in zip(outcome.samples, undecided.samples, strict=True)]
    ratio = spread(outcome.samples).median / spread(undecided.samples).median
    return replace(
        complete_row(row, spread(gaps)), note=f"{ratio:.2f} x the attention step over as many slots undecided"
    )
