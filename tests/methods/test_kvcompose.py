"""KVCompose: composite tokens of all layers, rank by rank, and what each head keeps."""

from __future__ import annotations

import torch

from kvlab.core.cache import make_cache
from tests.cache.test_second_pass import ASK, TOKENS, expected_scores, lab, run, text

BUDGET, LAYERS, HEADS = 9, 3, 2


def test_heads_of_a_layer_keep_equally_many_of_their_own() -> None:
    model, ids = lab(), text()
    attention = expected_scores(model, ids, [ASK + ids[0, 1:].tolist()], "max")  # (L, H, T)
    score = [
        [
            [float(attention[layer, h, t]) + sum(float(attention[layer, o, t]) for o in range(HEADS)) / HEADS
             for t in range(TOKENS)]
            for h in range(HEADS)
        ]
        for layer in range(LAYERS)
    ]  # fmt: skip
    newest = TOKENS - 1
    composite = [
        [sum(sorted(head[:newest], reverse=True)[rank] for head in layer) / HEADS for rank in range(newest)]
        for layer in score
    ]
    composite[0] = [max(layer[rank] for layer in composite) for rank in range(newest)]
    every = sorted(((mean, -number) for number, layer in enumerate(composite) for mean in layer), reverse=True)
    won = [-number for _, number in every[: (BUDGET - 1) * LAYERS]]
    cache = make_cache(model, "kvcompose", BUDGET)
    run(model, cache, ids)
    counts = [won.count(number) + 1 for number in range(LAYERS)]
    assert sum(counts) == BUDGET * LAYERS and len(set(counts)) > 1
    for number, layer in enumerate(cache.compressed_layers()):
        slots = layer.slots
        assert slots is not None
        for head in range(HEADS):
            best = sorted(range(newest), key=lambda t: -score[number][head][t])[: counts[number] - 1]
            found = sorted(slots.position[0, head][slots.valid[0, head]].tolist())
            assert found == sorted([*best, newest]), (number, head)
    assert torch.equal(cache.compressed_layers()[0].budget, torch.full((1, HEADS), counts[0]))
