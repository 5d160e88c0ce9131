"""What a method makes of a text depends on the text alone: not on other rows, on passes, or on what the cache held."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from kvlab.cache import CompressedCache, make_cache
from kvlab.errors import UserError
from kvlab.methods import registered
from kvlab.models.load import LoadedModel, load_model
from tests.conformance.variants import Variant, every_variant

PROMPT, TURNS = 60, (1, 1, 3, 1)  # tokens of the prompt, and of the passes that follow
PADS = (0, 13, 37)  # padding in front of each row
VARIANTS = every_variant()


@pytest.fixture(scope="module")
def lab(tiny_model_folder: Path) -> LoadedModel:
    """With a tokenizer: some methods read requests of their own, or where sentences end."""
    return load_model(str(tiny_model_folder), device="cpu")


@cache
def text() -> tuple[Tensor, Tensor]:
    """(ids, mask), a row for each of `PADS`."""
    ids = torch.randint(5, 250, (len(PADS), PROMPT + sum(TURNS)), generator=torch.Generator().manual_seed(3))
    mask = torch.ones_like(ids)
    for row, pads in enumerate(PADS):
        mask[row, :pads] = 0
    return ids * mask, mask


# What makes short texts come in several pieces, and few of their queries be kept.
FEW: dict[str, dict[str, Any]] = {"attention-matching": {"queries": 5}, "exactmerge2": {"queries": 5}}


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


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_a_row_alone_is_the_row_in_a_batch(lab: LoadedModel, variant: Variant) -> None:
    ids, mask = text()
    together = read(lab, fresh(lab, variant), ids, mask)
    for row, pads in enumerate(PADS):
        alone = read(lab, fresh(lab, variant), ids[row : row + 1, pads:], mask[row : row + 1, pads:])
        torch.testing.assert_close(
            together[row], alone[0], **tolerance(variant), msg=lambda said, row=row: f"row {row}: {said}"
        )


def pieces(variant: Variant) -> tuple[int, ...]:
    """Passes of a prompt of `PROMPT` tokens, the last one long enough for the short windows of `variants`."""
    return (7, 1, PROMPT - 7 - 1 - 16, 16)


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_an_announced_prompt_in_pieces_is_the_prompt_in_one_pass(lab: LoadedModel, variant: Variant) -> None:
    """Or one sentence before anything is dropped."""
    ids, mask = text()
    compressed = fresh(lab, variant)
    compressed.expect(PROMPT)
    try:
        found = read(lab, compressed, ids, mask, *pieces(variant))[:, -len(TURNS) - 1 :]
    except UserError:
        seen = compressed.get_seq_length()
        assert all(int(layer.slots.valid[0].sum(-1).min()) == seen for layer in compressed.compressed_layers() if seen)
        return
    torch.testing.assert_close(found, read(lab, fresh(lab, variant), ids, mask), **tolerance(variant))


METHODS = [Variant(name) for name in registered()]


@pytest.mark.parametrize("budget", [0.3, 9, "40%B"])
@pytest.mark.parametrize("chunk", [7, 25])
@pytest.mark.parametrize("variant", METHODS, ids=str)
def test_generate_in_chunks_is_generate_in_one_pass(
    lab: LoadedModel, variant: Variant, chunk: int, budget: float | int | str
) -> None:
    """Slots and text, padded rows too, or one sentence before anything is stored."""
    ids, mask = text()
    given = {"input_ids": ids[:, :PROMPT], "attention_mask": mask[:, :PROMPT], "max_new_tokens": 4, "do_sample": False}

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


LOSING = [variant for variant in METHODS if variant.method != "full"]


@pytest.mark.parametrize("variant", LOSING, ids=str)
def test_a_second_pass_of_unknown_kind_is_refused_and_a_turn_is_not(lab: LoadedModel, variant: Variant) -> None:
    """Several tokens straight behind the first pass may be the rest of the prompt; behind a generated one they are not.

    Nor are they where the first pass was announced to be the prompt, or where `generate` made it.
    """
    ids, _ = text()
    ids = ids[:1]
    with torch.inference_mode():
        unknown = fresh(lab, variant)
        lab.model(ids[:, :40], past_key_values=unknown)
        slots = unknown.memory().live_slots
        with pytest.raises(UserError, match=r"cache\.expect\(50\)"):
            lab.model(ids[:, 40:50], past_key_values=unknown)
        assert (unknown.get_seq_length(), unknown.memory().live_slots) == (40, slots)
        unknown.expect(40)
        lab.model(ids[:, 40:50], past_key_values=unknown)

        told, stepped = fresh(lab, variant), fresh(lab, variant)
        told.expect(40)
        lab.model(ids[:, :40], past_key_values=told)
        lab.model(ids[:, 40:50], past_key_values=told)
        lab.model(ids[:, :39], past_key_values=stepped)
        lab.model(ids[:, 39:40], past_key_values=stepped)
        lab.model(ids[:, 40:50], past_key_values=stepped)
        generated = fresh(lab, variant)
        once = {"max_new_tokens": 1, "do_sample": False, "eos_token_id": None, "past_key_values": generated}
        lab.model.generate(ids[:, :40], **once)
        lab.model.generate(ids[:, :50], **once)
    assert {cache.get_seq_length() for cache in (unknown, told, stepped, generated)} == {50}


def test_what_was_announced_is_held_to(lab: LoadedModel) -> None:
    ids, _ = text()
    with torch.inference_mode():
        compressed = fresh(lab, Variant("h2o"))
        compressed.expect(40)
        with pytest.raises(UserError, match="A prompt of 40 tokens was announced"):
            lab.model(ids[:, :41], past_key_values=compressed)
        lab.model(ids[:, :40], past_key_values=compressed)
        with pytest.raises(UserError, match="has decided about a prompt of 40 tokens"):
            compressed.expect(60)
        short = make_cache(lab, "snapkv", 0.5, window=8)
        short.expect(40)
        with pytest.raises(UserError, match="last 8 queries"):
            lab.model(ids[:, :35], past_key_values=short)
        assert short.get_seq_length() == 0
        later = fresh(lab, Variant("h2o"))
        for size, message in ((None, None), (8, "leave prefill_chunk_size out")):
            given = {"max_new_tokens": 1, "past_key_values": later, "prefill_chunk_size": size, "eos_token_id": None}
            if message is None:
                lab.model.generate(ids[:1, :30], **given)
                continue
            with pytest.raises(UserError, match=message):
                lab.model.generate(ids[:1], **given)
        assert later.get_seq_length() == 30
    with pytest.raises(UserError, match="whole number"):
        compressed.expect(0)


class Interrupted(Exception):
    pass


STORES = ("native", "short-kivi4", "short-turbo4")


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("variant", METHODS, ids=str)
def test_after_a_reset_a_cache_is_a_fresh_one(lab: LoadedModel, variant: Variant, store: str) -> None:
    """Whatever it held: a padded batch with steps, a prompt that was interrupted, or one that came as embeddings."""
    (ids, mask), variant = text(), Variant(variant.method, {} if store == "native" else {"store": store})
    first, second = (ids[1:2, 20:], mask[1:2, 20:]), fresh(lab, variant)
    expected = read(lab, fresh(lab, variant), *first)
    used = fresh(lab, variant)
    read(lab, used, ids, mask)
    used.reset()
    assert used.get_seq_length() == 0
    assert torch.equal(read(lab, used, *first), expected)

    def interrupt(*_: object) -> None:
        raise Interrupted

    second.expect(PROMPT)
    hook = lab.model.model.layers[1].mlp.register_forward_pre_hook(interrupt)
    with pytest.raises((Interrupted, UserError)):
        read(lab, second, ids, mask, 40, 20)
    hook.remove()
    second.reset()
    assert torch.equal(read(lab, second, *first), expected)


@pytest.mark.parametrize("method", ["semanticache", "h2o"])
def test_embeddings_of_a_second_text_are_not_read_as_the_first(lab: LoadedModel, method: str) -> None:
    ids, _ = text()
    embedded = lab.model.get_input_embeddings()(ids[:1, :40]).detach()
    found = []
    for earlier in (False, True):
        compressed = fresh(lab, Variant(method))
        with torch.inference_mode():
            if earlier:
                lab.model(ids[1:2, :40], past_key_values=compressed)
                compressed.reset()
            lab.model(inputs_embeds=embedded, past_key_values=compressed)
            found.append(lab.model(ids[:1, 40:41], past_key_values=compressed).logits)
    assert torch.equal(*found)
