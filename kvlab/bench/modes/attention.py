"""Part of mode `decode`: the attention of a decode step alone, under a reading, beside torch's dense attention.

A step appends one token to each compressed layer, keeps the reading's index current, chooses and attends, with random
queries, keys and values; projections and feed-forward are left out. Dense attention is `scaled_dot_product_attention`
over the same slots, without appending.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from kvlab.bench.bench import Bench, ratio_row
from kvlab.bench.competitors import Load, PlainContender, SlotContender
from kvlab.bench.device import spread
from kvlab.bench.fill import attend_by_hand, normal
from kvlab.bench.rows import Row

FIGURE = "attention of a step"


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
    """Appending and attending of one token in every compressed layer, under a reading."""

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
    """A time and a ratio to dense attention for each choice with a reading; nothing without one."""
    request = bench.request
    choices = [choice for choice in request.choices_run() if choice.hyper_parameters.get("read", "all") != "all"]
    if not choices:
        return
    dense = DenseAttention(bench.model, load, request)
    racers = [dense, *(ReadAttention(bench.model, load, request, choice) for choice in choices)]
    outcomes = bench.race(racers)
    for racer, outcome in zip(racers, outcomes, strict=True):
        row = bench.row(racer, FIGURE, "ms/token", status=outcome.status, note=outcome.note, is_full=racer is dense)
        if outcome.samples:
            took = spread(outcome.samples)
            row = replace(row, repeats=took.repeats, median=1e3 * took.median, iqr=1e3 * took.iqr)
        yield row
        if racer is not dense:
            yield ratio_row(bench, racer, f"{FIGURE} / dense", outcome, outcomes[0])
