"""SimLayerKV: which layers are lazy, from their attention worked out by hand, and what they keep."""

from __future__ import annotations

import math

import pytest
import torch

from kvlab.core.cache import make_cache
from tests.methods.test_kvzap import HEADS, LAYERS, TOKENS, lab

SINKS, RECENT, GROUP = 2, 5, 2


class Watcher:
    """Each layer's queries and keys (rotated) of the prompt."""

    def __init__(self) -> None:
        self.seen: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def attended(self, layer_idx: int, slots, seen, output) -> None:
        self.seen[layer_idx] = seen.query[0].double(), slots.keys[0].double()

    def compressed(self, *_: object) -> None: ...


def share(query: torch.Tensor, key: torch.Tensor, queries: int) -> float:
    """Mean over heads and last queries of the attention that sinks and recent tokens get."""
    found = []
    for head in range(HEADS * GROUP):
        for row in range(TOKENS - queries, TOKENS):
            logit = [float(query[head, row] @ key[head // GROUP, t]) / math.sqrt(16) for t in range(row + 1)]
            weight = [math.exp(each) for each in logit]
            near = [w for t, w in enumerate(weight) if t < SINKS or t >= TOKENS - RECENT]
            found.append(sum(near) / sum(weight))
    return sum(found) / len(found)


@pytest.mark.parametrize("queries", [1, 3])
def test_lazy_layers_stream_and_the_others_keep_all(queries: int) -> None:
    model, watcher = lab(), Watcher()
    ids = torch.randint(3, 97, (1, TOKENS), generator=torch.Generator().manual_seed(3))
    with torch.inference_mode():
        model.model(ids, past_key_values=make_cache(model, "full", observer=watcher))
    shares = [share(*watcher.seen[layer], queries) for layer in range(LAYERS)]
    threshold = (sorted(shares)[0] + sorted(shares)[1]) / 2
    lazy = [each > threshold for each in shares]
    options = {"sinks": SINKS, "recent": RECENT, "queries": queries}
    cache = make_cache(model, "simlayerkv", threshold=threshold, **options)
    with torch.inference_mode():
        model.model(ids, past_key_values=cache)
    near = [*range(SINKS), *range(TOKENS - RECENT, TOKENS)]
    for is_lazy, layer in zip(lazy, cache.compressed_layers(), strict=True):
        # once a layer has dropped tokens, later layers of the same pass still see the whole prompt
        slots = layer.slots
        assert slots is not None
        for position, valid in zip(slots.position[0], slots.valid[0], strict=True):
            assert sorted(position[valid].tolist()) == (near if is_lazy else list(range(TOKENS)))
    assert True in lazy and False in lazy
