"""Run a method through a case and record, after each pass, what the properties need."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from kvlab.cache import CompressedCache
from kvlab.cache.layers.compressed_layer import CompressedLayer
from kvlab.checking.case import Case, walk
from kvlab.methods import Method


@dataclass(frozen=True)
class LayerAfterPass:
    """One layer after one pass; tensors are (B, H), `tokens_seen` is (B,)."""

    step: int  # 0 is the prompt
    layer: int
    live: Tensor
    budget: Tensor
    newest: Tensor  # the largest position among valid slots
    votes: Tensor  # of valid slots and dropped tokens
    tokens_seen: Tensor
    finite: bool  # keys, values and log masses of valid slots

    @property
    def place(self) -> str:
        """Layer and step, as part of a message."""
        return f"in layer {self.layer} after {'the prompt' if self.step == 0 else f'decode step {self.step}'}"


@dataclass(frozen=True)
class Observed:
    """Logits (rows, steps, vocabulary), layers after each pass, and final bytes (layer, reported, actual)."""

    logits: Tensor
    layers: tuple[LayerAfterPass, ...]
    allocated: tuple[tuple[int, int, int], ...]


@lru_cache(maxsize=64)
def observed(method: Method, case: Case) -> Observed:
    """Run the case once; cached per method and case."""
    cache, (ids, mask) = case.cache(method), case.prompt()
    states: list[LayerAfterPass] = []
    passes = 0

    def record() -> None:
        nonlocal passes
        states.extend(_state(layer, passes) for layer in cache.compressed_layers())
        passes += 1

    logits = walk(case.model(), cache, ids, mask, record)
    return Observed(logits, tuple(states), _allocated(cache))


def _state(layer: CompressedLayer, step: int) -> LayerAfterPass:
    slots = layer.slots
    assert slots is not None and layer.budget is not None
    valid = slots.valid
    parts = (slots.keys[valid], slots.values[valid], slots.log_mass[valid])
    return LayerAfterPass(
        step,
        layer.layer_idx,
        slots.live(),
        layer.budget.clone(),
        slots.position.masked_fill(~valid, -1).amax(-1),
        slots.votes.masked_fill(~valid, 0).sum(-1) + layer.evicted_votes,
        layer.tokens_seen.clone(),
        all(bool(torch.isfinite(part).all()) for part in parts),
    )


def _allocated(cache: CompressedCache) -> tuple[tuple[int, int, int], ...]:
    rows = []
    for layer, reported in zip(cache.compressed_layers(), cache.memory().layers, strict=True):
        taken: dict[int, int] = {}
        for table in layer.tables:
            state = [*table.slots.own().values(), *table.head_state.values()]
            for tensor in (table.slots.keys, table.slots.values, *state):
                storage = tensor.untyped_storage()
                taken[storage.data_ptr()] = storage.nbytes()
        rows.append((layer.layer_idx, reported.allocated_bytes, sum(taken.values())))
    return tuple(rows)
