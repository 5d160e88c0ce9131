"""kvlab's own run of a prompt, and the comparison of its slots with those of a request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kvlab.core.cache import CompressedCache
from kvlab.core.cache.layers.compressed_layer import CompressedLayer
from kvlab.models.load import LoadedModel

TOLERANCE = 1e-3  # of log masses, and of keys and values relative to the largest


@dataclass(frozen=True)
class OwnRun:
    """The answer to a prompt and the cache as it ended."""

    tokens: tuple[int, ...]
    cache: CompressedCache


@torch.inference_mode()
def run_alone(loaded: LoadedModel, cache: CompressedCache, ids: Sequence[int], tokens: int, rows: int = 1) -> OwnRun:
    """The likeliest `tokens` after `ids`, read in one pass into `cache`; with more `rows`, the same text in each."""
    given = torch.tensor([list(ids)] * rows)
    written = list[Tensor]()
    for _ in range(tokens):
        logits = loaded.model(given, past_key_values=cache, logits_to_keep=1).logits[:, -1]
        given = logits.argmax(-1, keepdim=True)
        written.append(given[0, 0])
    return OwnRun(tuple(int(token) for token in written), cache)


@dataclass(frozen=True)
class Likeness:
    """How alike two caches are: whether slots are equal, and the share of heads that keep the same tokens."""

    equal: bool
    heads: float


def compare_caches(ours: CompressedCache, theirs: CompressedCache) -> Likeness:
    """Compare the first rows: tokens and votes of every head exactly; log masses, keys and values within TOLERANCE."""
    same = list[bool]()
    near = True
    for one, other in zip(ours.compressed_layers(), theirs.compressed_layers(), strict=True):
        for head in range(one.head_index.heads):
            left = _in_text(one, head)
            right = _in_text(other, head)
            alike = all(a.shape == b.shape and bool((a == b).all()) for a, b in zip(left[:2], right[:2], strict=True))
            same.append(alike)
            near = near and alike
            for a, b in zip(left[2:], right[2:], strict=True) if near else ():
                scale = a.abs().nan_to_num(posinf=0.0).max().clamp_min(1.0) if a.numel() else 1.0
                near = near and bool(((a - b).abs().nan_to_num(0.0) <= TOLERANCE * scale).all())
    return Likeness(near, sum(same) / len(same))


def _in_text(layer: CompressedLayer, head: int) -> tuple[Tensor, ...]:
    """Positions, votes, log masses, keys and values of the first row's head, in the order of the text."""
    slots = layer.slots
    assert slots is not None
    order = slots.in_text()[0, head][: int(slots.valid[0, head].sum())]
    columns = slots.position, slots.votes, slots.log_mass, slots.keys, slots.values
    return tuple(column[0, head].expand(slots.valid.shape[2], *column.shape[3:])[order] for column in columns)
