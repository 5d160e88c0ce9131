"""SimCalKV slot by slot, as repaired and as its code has it."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from kvlab.core.methods import make_method
from tests.cache.layers import DIM
from tests.methods.merging import ROTARY, Layer
from tests.methods.test_pair_merge import unrotated
from tests.methods.test_selection import TOKENS, mass_of, prompt

BUDGET, RECENT = 12, 5


@pytest.mark.parametrize("variant", ["repaired", "code"])
@pytest.mark.parametrize("threshold", [0.0, 0.4])
def test_pairs_merge_slot_by_slot(variant: str, threshold: float) -> None:
    layer = Layer(make_method("simcalkv", variant=variant, threshold=threshold, recent=RECENT), BUDGET, ROTARY)
    query, key, value = prompt()
    layer.feed(query, key, value)
    mass = mass_of(query, key).sum(1)
    for head in range(2):
        old = sorted(range(TOKENS - RECENT), key=lambda t: -float(mass[head, t]))
        stay = [*old[: BUDGET - RECENT], *range(TOKENS - RECENT, TOKENS)]
        into: dict[int, list[int]] = {t: [] for t in stay}
        for token in old[BUDGET - RECENT :]:
            cosine = {t: float(torch.cosine_similarity(key[0, head, token], key[0, head, t], dim=0)) for t in stay}
            best = max(cosine, key=cosine.__getitem__)
            if cosine[best] > threshold:
                into[best].append(token)
        asked: list[Tensor] = [query[0, h, -1].double() for h in (2 * head, 2 * head + 1)]
        if variant == "code":
            asked = [unrotated(q, TOKENS - 1) for q in asked]
        table = layer.table(head)
        assert sorted(table) == sorted(stay)
        for token, joined in into.items():
            slot, k, v = table[token], key[0, head].double(), value[0, head].double()
            assert int(slot["votes"]) == 1 + len(joined)
            if not joined:
                torch.testing.assert_close(slot["key"].double(), k[token])
                assert float(slot["log_mass"]) == 0
                continue
            middle = (k[token] + sum(k[t] for t in joined) / len(joined)) / 2
            w = {t: math.exp(sum(float(q @ k[t]) for q in asked) / 2 / math.sqrt(DIM)) for t in (token, *joined)}
            mean = sum(w[t] * v[t] for t in w) / sum(w.values())
            torch.testing.assert_close(slot["value"].double(), mean, atol=1e-5, rtol=1e-4)
            shifted = middle + math.log(2) if variant == "code" else middle
            torch.testing.assert_close(slot["key"].double(), shifted, atol=1e-5, rtol=1e-4)
            assert float(slot["log_mass"]) == pytest.approx(0.0 if variant == "code" else math.log(2))


def test_two_equal_tokens_weigh_as_two_only_when_repaired() -> None:
    """Equal keys and values but one: the repaired merge of a pair keeps its share of attention, the code's does not."""
    query, key, value = (each[:, :, :4].clone() for each in prompt())
    key[:, :, 2], value[:, :, 2] = key[:, :, 1], value[:, :, 1]
    key[:, :, 0] = query.unflatten(1, (2, 2)).sum((2, 3))  # which all queries look at
    off = {}
    for variant in ("repaired", "code"):
        layer = Layer(make_method("simcalkv", variant=variant, recent=1, threshold=0.9), 3)
        whole = layer.feed(query, key, value)[:, :, -1:]
        off[variant] = float((layer.ask(query[:, :, -1:]) - whole).norm() / whole.norm())
        assert (layer.slots.most_votes() == 2).all(), "the pair, and no other, merged"
    assert off["repaired"] < 1e-5 < 0.01 < off["code"]
