"""One conversation through every method and variant: prompt, several tokens at once, decoding, a second turn, decoding.

Each runs as a left-padded batch in float32 and bfloat16, and in float32 as the padded row alone, on every family. All
of it is `make conformance` (KVLAB_CONFORMANCE=full); `make test` takes every variant on one family, which rotate, and
every method and preset once more in bfloat16, the first three passes: a choice changed within a method reads and writes
the same columns in the same type.
"""

from __future__ import annotations

import os
from functools import cache
from itertools import product

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from kvlab.core.cache import CompressedCache, make_cache
from kvlab.core.errors import UserError
from kvlab.core.methods import make_method
from kvlab.core.stores import NATIVE
from kvlab.models.load import prepare
from tests.conformance.test_matrix import near
from tests.conformance.variants import Variant, every_variant
from tests.families import EVERY, FAMILIES, padded_rows, tiny_model

PROMPT, PADS, BUDGET = 24, 7, 0.3
TURNS = (PROMPT, 3, 1, 5, 1)  # tokens of each pass: prompt, append, decode, second turn, decode
ALIBI = ("falcon-alibi", "falcon-alibi-grouped", "bloom", "mpt")
SUPPORTED_FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "phi3", "gemma")
DTYPES = (torch.float32, torch.bfloat16)
FULL = os.environ.get("KVLAB_CONFORMANCE") == "full"


def cells() -> list[tuple[Variant, str, torch.dtype]]:
    """Everything, or each variant on one family in float32, and each method and preset on another in bfloat16."""
    if FULL:
        return [(variant, family, dtype) for family, dtype, variant in product(EVERY, DTYPES, every_variant())]
    families = [family for family in FAMILIES if family != "mistral-sliding"]
    return [
        (variant, families[(place + 6 * half) % len(families)], dtype)
        for half, dtype in enumerate(DTYPES)
        for place, variant in enumerate(every_variant())
        if dtype == torch.float32 or variant.changed.keys() <= {"preset"}
    ]


def resolved(variant: Variant) -> dict[str, object]:
    """Every hyper-parameter, those of named settings filled in."""
    return make_method(variant.method, **variant.settings).model_dump()


def refusal(variant: Variant, family: str) -> str | None:
    """What is said where a variant cannot run on a family."""
    settings = resolved(variant)
    if family == "mistral-sliding" and variant.method != "full":
        return "there is nothing to compress"
    absorbs = variant.method == "less" or settings.get("settle") == "less"
    if family in ALIBI and absorbs:
        return "uses ALiBi"
    if family == "gpt-oss" and absorbs:
        return "learned attention sinks"
    if family in ALIBI and settings.get("positions") == "cache":
        return "no rotary positions"
    return None


@cache
def lab_model(family: str, dtype: torch.dtype) -> PreTrainedModel:
    return prepare(tiny_model(family, dtype))


@cache
def text() -> tuple[Tensor, Tensor]:
    return padded_rows(2, sum(TURNS), PADS, seed=5)


@pytest.mark.parametrize(("variant", "family", "dtype"), cells(), ids=lambda part: str(part).removeprefix("torch."))
def test_a_conversation(variant: Variant, family: str, dtype: torch.dtype) -> None:
    if (sentence := refusal(variant, family)) is not None:
        with pytest.raises(UserError, match=sentence) as error:
            talk(variant, family, dtype, slice(0, 1), 0)
        assert str(error.value).count("\n") == 0
        pytest.skip(str(error.value))
    together = talk(variant, family, dtype, slice(0, 2), 0)
    if dtype == torch.float32:  # in half precision a batch may round otherwise, and a tie fall the other way
        alone = talk(variant, family, dtype, slice(1, 2), PADS)
        rounds = variant.changed.get("store", NATIVE) != NATIVE  # where rounding ends up may turn on the last bit
        assert near(alone[0], together[1], 0.05 if rounds else 1e-4)


def talk(variant: Variant, family: str, dtype: torch.dtype, rows: slice, skip: int) -> Tensor:
    """Logits (rows, passes, vocabulary) behind each pass, all invariants checked after each."""
    ids, mask = (part[rows, skip:] for part in text())
    model, found, end = lab_model(family, dtype), [], 0
    compressed = make_cache(model, variant.method, BUDGET, **variant.settings)
    check = Invariants(variant, compressed)
    compressed.expect(TURNS[0] - skip)  # several tokens follow at once, which are no part of the prompt
    with torch.inference_mode():
        passes = TURNS if FULL or dtype == torch.float32 else TURNS[:3]  # decisions of later turns see no other numbers
        for place, count in enumerate((passes[0] - skip, *passes[1:])):
            begun, end = end, end + count
            position = (mask[:, :end].cumsum(-1) - 1)[:, begun:].clamp_min(0)
            given = {"attention_mask": mask[:, :end], "position_ids": position, "past_key_values": compressed}
            found.append(model(ids[:, begun:end], **given).logits[:, -1].float())
            check(mask[:, :end], place)
    logits = torch.stack(found, 1)
    assert torch.isfinite(logits).all()
    return logits


class Invariants:
    """Check the invariants of a cache after a pass; `mask` and `place` are those of the pass."""

    def __init__(self, variant: Variant, compressed: CompressedCache) -> None:
        self.method, self.settings = make_method(variant.method, **variant.settings), resolved(variant)
        self.pipeline, self.compressed = self.method.pipeline(), compressed

    def __call__(self, mask: Tensor, place: int) -> None:
        tokens = mask.sum(-1)
        prompt = mask[:, : mask.shape[1] - sum(TURNS[1 : place + 1])].sum(-1)
        generated = int((tokens - prompt)[0])
        layers = self.compressed.compressed_layers()
        for layer in layers:
            slots = layer.slots
            assert slots is not None and layer.budget is not None
            assert (layer.tokens_seen == tokens).all()
            # More tokens follow the prompt than `buffer`, so keeping within it takes decisions.
            on_top = self.pipeline.buffer if self.pipeline.decode else generated
            assert (slots.live() <= layer.budget + on_top).all(), "over budget"
            newest = slots.position.masked_fill(~slots.valid, -1).amax(-1)
            assert (newest == tokens[:, None] - 1).all(), "the newest token must stay"
            votes = slots.votes.masked_fill(~slots.valid, 0).sum(-1) + layer.evicted_votes
            torch.testing.assert_close(votes, tokens[:, None].expand_as(votes).float(), msg="tokens without a slot")
            for column in (slots.keys, slots.values, slots.log_mass):
                assert torch.isfinite(column[slots.valid]).all(), "not finite"
        if self.method.needs_budget and not self.settings.get("spare_layers"):
            given = torch.stack([layer.budget.float().mean(-1) for layer in layers if layer.budget is not None]).mean(0)
            assert (given <= (prompt * BUDGET).round().clamp_min(1) + 1e-3).all(), (
                "layers and heads may differ, not their mean"
            )
