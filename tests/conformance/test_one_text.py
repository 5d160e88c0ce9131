"""What a method makes of a text depends on the text alone: not on other rows, on passes, or on what the cache held."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from kvlab.core.cache import CompressedCache, make_cache
from kvlab.core.errors import UserError
from kvlab.core.methods import registered
from kvlab.core.stores import STORES
from kvlab.models.load import LoadedModel, load_model, prepare
from tests.conformance.variants import Variant, every_variant
from tests.families import tiny_model

FULL = os.environ.get("KVLAB_CONFORMANCE") == "full"
PROMPT, TURNS = 48, (1, 3)  # tokens of the prompt, and of the passes that follow
PIECES = (7, 1, 24, 16)  # passes of that prompt, the last one long enough for the windows of `variants`
PADS = (0, 21)  # padding in front of each row
ALONE = list(enumerate(PADS))[0 if FULL else 1 :]  # the rows that are read alone as well
METHODS = [Variant(name) for name in registered()]
PACKED = [name for name in STORES if name.startswith("short-")]
# What makes short texts come in several pieces, and few of their queries be kept.
FEW: dict[str, dict[str, Any]] = {"attention-matching": {"queries": 5}, "exactmerge2": {"queries": 5}}


@pytest.fixture(scope="module")
def lab(tiny_model_folder: Path) -> LoadedModel:
    """With a tokenizer: some methods read requests of their own, or where sentences end."""
    loaded = load_model(str(tiny_model_folder), device="cpu")
    rows = loaded.model.config.vocab_size
    return replace(loaded, model=prepare(tiny_model("llama", num_hidden_layers=2, vocab_size=rows)))


@cache
def text() -> tuple[Tensor, Tensor]:
    """(ids, mask), a row for each of `PADS`."""
    ids = torch.randint(5, 250, (len(PADS), PROMPT + sum(TURNS)), generator=torch.Generator().manual_seed(3))
    mask = torch.ones_like(ids)
    for row, pads in enumerate(PADS):
        mask[row, :pads] = 0
    return ids * mask, mask


def tolerance(variant: Variant) -> dict[str, float]:
    """Sums are taken in another order, and a number may then be packed the other way; logits are of size 10.

    Rows that depended on others differed by .1 to 15.
    """
    return {"rtol": 0, "atol": 0.05 if "store" in variant.changed else 5e-3}


def fresh(lab: LoadedModel, variant: Variant, budget: float | int | str = 0.3) -> CompressedCache:
    return make_cache(lab, variant.method, budget, **FEW.get(variant.method, {}) | variant.settings)


def read(lab: LoadedModel, compressed: CompressedCache, ids: Tensor, mask: Tensor, *passes: int) -> Tensor:
    """(rows, passes, vocabulary) logits behind each pass; without sizes the prompt's pass and `TURNS`."""
    prompt, found, end = ids.shape[1] - sum(TURNS), [], 0
    with torch.inference_mode():
        for count in (*(passes or (prompt,)), *TURNS):
            begun, end = end, end + count
            position = (mask[:, :end].cumsum(-1) - 1)[:, begun:].clamp_min(0)
            given = {"attention_mask": mask[:, :end], "position_ids": position, "past_key_values": compressed}
            found.append(lab.model(ids[:, begun:end], **given).logits[:, -1])
    return torch.stack(found, 1)


def whole_variants() -> list[Variant]:
    """Methods, presets and stores. One choice changed at a time seldom touches how a prompt comes in.

    That its rows are the same alone and in a batch is asked in test_conversation.py.
    """
    return [variant for variant in every_variant() if FULL or variant.changed.keys() <= {"preset", "store"}]


@pytest.mark.parametrize("variant", whole_variants(), ids=str)
def test_a_row_is_the_same_alone_in_a_batch_and_in_pieces(lab: LoadedModel, variant: Variant) -> None:
    """A prompt in pieces was announced; or one sentence comes before anything is dropped."""
    ids, mask = text()
    announced = fresh(lab, variant)
    announced.expect(PROMPT)
    together = read(lab, announced, ids, mask)
    for row, pads in ALONE:
        alone = read(lab, fresh(lab, variant), ids[row : row + 1, pads:], mask[row : row + 1, pads:])
        torch.testing.assert_close(together[row], alone[0], **tolerance(variant))
    compressed = fresh(lab, variant)
    compressed.expect(PROMPT)
    try:
        found = read(lab, compressed, ids, mask, *PIECES)
    except UserError:
        assert all(layer.budget is None for layer in compressed.compressed_layers())
        return
    torch.testing.assert_close(found[:, -len(TURNS) - 1 :], together, **tolerance(variant))


def packed_variants() -> list[Variant]:
    """Every method in a packed store, which rotate over the methods; in `make conformance` in each of them."""
    names = [name for name in registered() if name not in ("packed", "compose")]
    if FULL:
        return [Variant(name, {"store": store}) for name in names for store in PACKED]
    return [Variant(name, {"store": PACKED[place % len(PACKED)]}) for place, name in enumerate(names)]


@pytest.mark.parametrize("variant", packed_variants(), ids=str)
def test_a_row_in_a_packed_store_is_the_same_alone_and_in_a_batch(lab: LoadedModel, variant: Variant) -> None:
    ids, mask = text()
    together = read(lab, fresh(lab, variant), ids, mask)
    for row, pads in ALONE:
        alone = read(lab, fresh(lab, variant), ids[row : row + 1, pads:], mask[row : row + 1, pads:])
        torch.testing.assert_close(together[row], alone[0], **tolerance(variant))


CHUNKS: list[tuple[float | int | str, int]] = [(0.3, 25), (9, 7), ("40%B", 20)]  # one a method, by turns
CUT = [
    (variant, *case)
    for place, variant in enumerate(METHODS)
    for case in (CHUNKS if FULL else [CHUNKS[place % len(CHUNKS)]])
]


@pytest.mark.parametrize(("variant", "budget", "chunk"), CUT, ids=str)
def test_generate_in_chunks_is_generate_in_one_pass(
    lab: LoadedModel, variant: Variant, budget: float | int | str, chunk: int
) -> None:
    """Slots and text, padded rows too, or one sentence before anything is stored."""
    ids, mask = text()
    given = {"input_ids": ids[:, :PROMPT], "attention_mask": mask[:, :PROMPT], "max_new_tokens": 2, "do_sample": False}

    def written(compressed: CompressedCache, **options: int) -> tuple[Any, float]:
        found = lab.model.generate(**given, eos_token_id=None, past_key_values=compressed, **options)
        return found.tolist(), compressed.memory().live_slots

    cut = fresh(lab, variant, budget)
    try:
        in_chunks = written(cut, prefill_chunk_size=chunk)
    except UserError:
        assert cut.get_seq_length() == 0
        return
    assert in_chunks == written(fresh(lab, variant, budget))


def test_most_methods_take_chunks(lab: LoadedModel) -> None:
    """So that the tests above are about chunks at all."""
    refused = set()
    for variant in METHODS:
        try:
            fresh(lab, variant).expect(PROMPT, 25)
        except UserError:
            refused.add(variant.method)
    assert len(refused) < len(METHODS) / 4
    assert not refused & {"h2o", "snapkv", "keepkv", "adakv", "streaming-llm", "kvzip", "attention-matching"}


@pytest.mark.parametrize("variant", [variant for variant in METHODS if variant.method != "full"], ids=str)
def test_a_second_pass_of_unknown_kind_is_refused_and_a_turn_is_not(lab: LoadedModel, variant: Variant) -> None:
    """Several tokens straight behind the first pass may be the rest of the prompt; behind a generated one they are not.

    Nor are they where the first pass was announced to be the prompt, or where `generate` made it.
    """
    ids = text()[0][:1]
    unknown, told, stepped, generated = (fresh(lab, variant) for _ in range(4))
    with torch.inference_mode():
        lab.model(ids[:, :40], past_key_values=unknown)
        slots = unknown.memory().live_slots
        with pytest.raises(UserError, match=r"cache\.expect\(50\)"):
            lab.model(ids[:, 40:50], past_key_values=unknown)
        assert (unknown.get_seq_length(), unknown.memory().live_slots) == (40, slots)
        unknown.expect(40)
        lab.model(ids[:, 40:50], past_key_values=unknown)

        told.expect(40)
        for first, last in ((0, 40), (40, 50)):
            lab.model(ids[:, first:last], past_key_values=told)
        for first, last in ((0, 39), (39, 40), (40, 50)):
            lab.model(ids[:, first:last], past_key_values=stepped)
        for tokens in (40, 50):
            options = {"max_new_tokens": 1, "do_sample": False, "eos_token_id": None}
            lab.model.generate(ids[:, :tokens], past_key_values=generated, **options)
    assert {cache.get_seq_length() for cache in (unknown, told, stepped, generated)} == {50}


def test_what_was_announced_is_held_to(lab: LoadedModel) -> None:
    ids, _ = text()
    compressed, short, later = fresh(lab, Variant("h2o")), make_cache(lab, "snapkv", 0.5, window=8), None
    with torch.inference_mode():
        compressed.expect(40)
        with pytest.raises(UserError, match="A prompt of 40 tokens was announced"):
            lab.model(ids[:, :41], past_key_values=compressed)
        lab.model(ids[:, :40], past_key_values=compressed)
        with pytest.raises(UserError, match="has already compressed a prompt of 40 tokens"):
            compressed.expect(60)
        with pytest.raises(UserError, match="whole number"):
            compressed.expect(0)
        short.expect(40)
        with pytest.raises(UserError, match="last 8 queries"):
            lab.model(ids[:, :35], past_key_values=short)
        assert short.get_seq_length() == 0

    later = fresh(lab, Variant("h2o"))
    options: dict[str, Any] = {"past_key_values": later, "max_new_tokens": 1, "eos_token_id": None}
    lab.model.generate(ids[:1, :30], **options)
    with pytest.raises(UserError, match="do not set prefill_chunk_size"):
        lab.model.generate(ids[:1], prefill_chunk_size=8, **options)
    assert later.get_seq_length() == 30


def test_a_mask_that_is_longer_than_the_text_so_far_hides_the_same_tokens(lab: LoadedModel) -> None:
    ids, mask = text()
    found = []
    for seen in (40, PROMPT):
        with torch.inference_mode():
            given = {"attention_mask": mask[:, :seen], "past_key_values": fresh(lab, Variant("h2o"))}
            position = (mask[:, :40].cumsum(-1) - 1).clamp_min(0)
            lab.model(ids[:, :40], position_ids=position, **given)
        found.append([layer.slots.valid.sum(-1).tolist() for layer in given["past_key_values"].compressed_layers()])
    assert found[0] == found[1]


class Interrupted(Exception):
    """In the middle of a pass."""


HELD_IN = ("native", "short-kivi4")  # one a method, by turns: a store knows no method
HELD = [
    (variant, store)
    for place, variant in enumerate(METHODS)
    for store in (HELD_IN if FULL else [HELD_IN[place % len(HELD_IN)]])
]


@pytest.mark.parametrize(("variant", "store"), HELD, ids=str)
def test_after_a_reset_a_cache_is_a_fresh_one(lab: LoadedModel, variant: Variant, store: str) -> None:
    """Whatever it held: a padded batch with steps, or part of a prompt whose next pass was interrupted."""
    (ids, mask), variant = text(), Variant(variant.method, {} if store == "native" else {"store": store})
    first = ids[:1, 20:], mask[:1, 20:]
    expected = read(lab, fresh(lab, variant), *first)
    used = fresh(lab, variant)
    read(lab, used, ids, mask)
    used.reset()
    assert used.get_seq_length() == 0
    assert torch.equal(read(lab, used, *first), expected)

    def interrupt(*_: object) -> None:
        raise Interrupted

    used.reset()
    hook = lab.model.model.layers[1].mlp.register_forward_pre_hook(interrupt)
    with pytest.raises(Interrupted):
        read(lab, used, ids, mask)
    hook.remove()
    used.reset()
    assert torch.equal(read(lab, used, *first), expected)


def test_a_reset_forgets_what_was_announced(lab: LoadedModel) -> None:
    ids, mask = text()
    used = fresh(lab, Variant("kvzip"))
    used.expect(PROMPT + 10)
    used.limit_second_pass(5)
    used.reset()
    assert torch.equal(read(lab, used, ids, mask), read(lab, fresh(lab, Variant("kvzip")), ids, mask))


def test_embeddings_of_a_second_text_are_not_read_as_the_first(lab: LoadedModel) -> None:
    ids, _ = text()
    embedded, found = lab.model.get_input_embeddings()(ids[:1, :40]).detach(), []
    for earlier in (False, True):
        compressed = fresh(lab, Variant("h2o"))
        with torch.inference_mode():
            if earlier:
                lab.model(ids[1:2, :40], past_key_values=compressed)
                compressed.reset()
            lab.model(inputs_embeds=embedded, past_key_values=compressed)
            found.append(lab.model(ids[:1, 40:41], past_key_values=compressed).logits)
    assert torch.equal(*found)
