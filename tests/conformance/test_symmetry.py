"""What a method does to a head or to a batch row does not depend on where it stands, and a seed decides the rest."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from kvlab.core.cache import CompressedCache, make_cache
from kvlab.core.methods import make_method
from kvlab.core.methods.eviction.nacl import SampledRest
from kvlab.core.methods.eviction.random import Draws
from kvlab.core.methods.eviction.vase import ShieldedSample
from kvlab.core.methods.merging.cam import ValueMerge
from kvlab.core.methods.merging.less import Absorb
from kvlab.core.methods.scorers.kvzap import PredictedScore
from kvlab.core.methods.scorers.query_statistics import QueryCentres, QueryFilter
from kvlab.core.stores import NATIVE
from kvlab.models.load import prepare
from tests.conformance.variants import Variant, every_variant
from tests.families import DEVICE, padded_rows, tiny_model

HEADS, GROUP, DIM = 2, 2, 16
OTHER_HEADS = [1, 0]
OTHER_QUERIES = [3, 2, 1, 0]  # KV heads swapped, and the query heads of each
OTHER_ROWS = [2, 0, 1]
TURNS = (24, 1, 3, 1)
PADS = 7


@cache
def models() -> tuple[PreTrainedModel, PreTrainedModel]:
    """A model, and the same function with its heads in another order."""
    plain, turned = (prepare(tiny_model("llama", num_hidden_layers=2)) for _ in range(2))
    with torch.no_grad():
        for layer in turned.model.layers:
            own = layer.self_attn
            for linear, order in ((own.q_proj, OTHER_QUERIES), (own.k_proj, OTHER_HEADS), (own.v_proj, OTHER_HEADS)):
                linear.weight.copy_(linear.weight.unflatten(0, (-1, DIM))[order].flatten(0, 1))
            own.o_proj.weight.copy_(own.o_proj.weight.unflatten(1, (-1, DIM))[:, OTHER_QUERIES].flatten(1, 2))
    return plain, turned


@cache
def text() -> tuple[Tensor, Tensor]:
    return padded_rows(3, sum(TURNS), PADS, seed=6)


def talk(
    variant: Variant,
    model: PreTrainedModel,
    rows: list[int],
    seed: int = 0,
    budget: float | int = 0.3,
    turns: tuple[int, ...] = TURNS,
) -> tuple[Tensor, CompressedCache]:
    """(logits (rows, passes, vocabulary) behind each pass, the cache)."""
    (ids, mask), found, end = text(), [], 0
    compressed = make_cache(model, variant.method, budget, seed=seed, **variant.settings)
    with torch.inference_mode():
        for count in turns:
            begun, end = end, end + count
            seen = mask[rows, :end]
            position = (seen.cumsum(-1) - 1)[:, begun:].clamp_min(0)
            given = {"attention_mask": seen, "position_ids": position, "past_key_values": compressed}
            found.append(model(ids[rows, begun:end], **given).logits[:, -1])
    return torch.stack(found, 1), compressed


@cache
def full_cache_logits(store: str) -> Tensor:
    variant = Variant("full", {} if store == NATIVE else {"store": store})
    return talk(variant, models()[0], [0, 1, 2], turns=TURNS[:3])[0]


def places(compressed: CompressedCache) -> list[list[list[list[int]]]]:
    """Positions kept, [layer][row][head]."""
    kept = []
    for layer in compressed.compressed_layers():
        slots = layer.slots
        assert slots is not None
        pairs = zip(slots.position, slots.valid, strict=True)
        kept.append([[sorted(p[v].tolist()) for p, v in zip(*row, strict=True)] for row in pairs])
    return kept


def heads_differ(variant: Variant) -> bool:
    """Whether heads are told apart: by what was fitted to each (LESS, KVzap, TriAttention), or by draws (CaM)."""
    pipeline = make_method(variant.method, **variant.settings).pipeline()
    settings = pipeline.settle
    fitted_or_drawn = PredictedScore | QueryCentres | QueryFilter | Draws
    if isinstance(getattr(pipeline.score, "scorer", pipeline.score), fitted_or_drawn) or isinstance(
        pipeline.select, SampledRest | ShieldedSample
    ):
        return True
    drawn = isinstance(settings, ValueMerge) and settings.draw == "bernoulli"
    return isinstance(settings, Absorb) or drawn or getattr(settings, "pivot", None) == "random"


@pytest.mark.parametrize("variant", every_variant(), ids=str)
def test_order_of_heads_and_rows_changes_nothing_and_a_seed_decides(variant: Variant) -> None:
    plain, turned = models()
    logits, compressed = talk(variant, plain, [0, 1, 2])
    if variant.changed.get("store", NATIVE) != NATIVE or variant in RANDOM:
        again, same = talk(variant, plain, [0, 1, 2])
        # On a GPU merges are summed by atomic additions, whose order is not fixed.
        torch.testing.assert_close(again, logits, rtol=0, atol=0 if DEVICE.type == "cpu" else 1e-4)
        assert places(compressed) == places(same)
    if variant.changed.get("store", NATIVE) != NATIVE:
        return  # where a number is rounded to may turn on the last bit of a sum, whose order changes below
    heads = list(range(len(OTHER_HEADS))) if heads_differ(variant) else OTHER_HEADS
    other, elsewhere = talk(variant, plain if heads_differ(variant) else turned, OTHER_ROWS)
    torch.testing.assert_close(other, logits[OTHER_ROWS], rtol=0, atol=1e-4)
    expected = [[[layer[row][head] for head in heads] for row in OTHER_ROWS] for layer in places(compressed)]
    assert places(elsewhere) == expected


DRAWS = ("cam", "gvote", "random", "compactor", "nacl", "vase", "kvmerger:pivot=random", "exactmerge:futures=4")
RANDOM = [variant for variant in every_variant() if str(variant) in DRAWS]


@pytest.mark.parametrize("variant", RANDOM, ids=str)
def test_another_seed_is_another_draw(variant: Variant) -> None:
    """So that the test above is about seeds at all."""
    plain, _ = models()
    found = [talk(variant, plain, [0, 1, 2], seed)[0] for seed in range(4)]
    assert any(not torch.equal(found[0], other) for other in found[1:])


@pytest.mark.parametrize("variant", every_variant(), ids=str)
def test_nothing_changes_while_everything_is_kept(variant: Variant) -> None:
    """A budget of all tokens is the full cache, whatever a variant would do with less; generated ones stay as well."""
    if not make_method(variant.method, **variant.settings).needs_budget:
        pytest.skip("it takes no budget and chooses its own")
    if make_method(variant.method, **variant.settings).sparse_attention is not None:
        pytest.skip("it reads a part of what is kept")
    plain, _ = models()
    logits, compressed = talk(variant, plain, [0, 1, 2], budget=sum(TURNS), turns=TURNS[:3])
    torch.testing.assert_close(logits, full_cache_logits(variant.changed.get("store", NATIVE)), rtol=0, atol=1e-4)
    assert all((layer.evicted_votes == 0).all() for layer in compressed.compressed_layers())
