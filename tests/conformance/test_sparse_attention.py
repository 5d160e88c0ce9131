"""Sparse attention over evicting and whole methods: every family, padding, both types, a second turn, shared passes."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from kvlab.core.cache import CompressedCache, make_cache
from kvlab.core.cache.cache_copy import copy_cache
from kvlab.core.cache.fan_out_cache import FanOutCache
from kvlab.core.errors import UserError
from kvlab.core.methods import make_method
from kvlab.core.methods.sparse_attention import SPARSE_ATTENTIONS
from tests.conformance.test_matrix import COMPRESSIBLE, batch, decode, lab_model, near, turn

NAMES = list(SPARSE_ATTENTIONS)
# What makes sparse attention leave out most of two dozen tokens.
SHORT = {
    "quest": "quest/page=4/least=1/dense_layers=0",
    "magicpig": "magicpig/bits=3/tables=8/sinks=1/recent=3",
    "vattention": "vattention/sinks=1/recent=3",
    "pqcache": "pqcache/bits=3/sinks=1/recent=3",
    "retroinfer": "retroinfer/cluster=3/sinks=1/recent=3",
    "shadowkv": "shadowkv/chunk=4/recent=3/rank_share=0.5",
}
PAIRS = [
    (name, family)
    for place, name in enumerate(NAMES)
    for family in COMPRESSIBLE[place % 3 :: 3]
    if (name, "alibi" in family) != ("retroinfer", True)  # it says so: a test below
]
PAIRS.append(("shadowkv", "falcon-alibi"))  # the one kind that turns keys back, on a model that turns none


STORES = ("short-kivi4", "short-turbo3", "short-fp8")


def everything(name: str) -> str:
    exact_at = SPARSE_ATTENTIONS[name].exact_at
    return "/".join([name, *(f"{key}={value}" for key, value in exact_at.items()), "dense_layers=0"])


def cache_of(family: str, read: str, method: str = "full", budget: float = 1.0, dtype=torch.float32, **given):
    return make_cache(lab_model(family, dtype), method, budget, read=read, **given)


@pytest.mark.parametrize(("name", "family"), PAIRS)
def test_reading_everything_is_the_method_itself(name: str, family: str) -> None:
    """In a padded batch, with slots evicted, and in a turn behind it."""
    (ids, mask), lab = batch(), lab_model(family, torch.float32)
    for method, budget in (("full", 1.0), ("snapkv", 0.5)):
        given = {"window": 3, "kernel": 3} if method == "snapkv" else {}
        plain, own = (cache_of(family, read, method, budget, **given) for read in ("all", everything(name)))
        assert near(decode(lab, own, ids, mask), decode(lab, plain, ids, mask))
        assert near(turn(lab, own, mask), turn(lab, plain, mask))
        assert near(decode_more(lab, own, mask), decode_more(lab, plain, mask)), "a decode step behind a turn"


def decode_more(lab, cache: CompressedCache, mask: torch.Tensor) -> torch.Tensor:
    length = cache.get_seq_length()
    seen = torch.cat([mask, mask.new_ones(len(mask), length + 1 - mask.shape[1])], 1)
    with torch.inference_mode():
        position = seen.sum(-1, keepdim=True) - 1
        ids = torch.full((len(mask), 1), 11)
        given = {"attention_mask": seen, "position_ids": position, "past_key_values": cache}
        return lab(ids, **given).logits[:, -1].float()


@pytest.mark.parametrize("name", NAMES)
def test_a_padded_row_reads_what_it_reads_alone(name: str) -> None:
    (ids, mask), lab = batch(), lab_model("llama", torch.float32)
    for method, given in (("full", {}), ("snapkv", {"window": 3, "kernel": 3}), ("h2o", {})):
        make = partial(cache_of, "llama", SHORT.get(name, name), method, 0.6, **given)
        both = decode(lab, make(), ids, mask)
        pads = int((mask[1] == 0).sum())
        alone = decode(lab, make(), ids[1:, pads:], mask[1:, pads:])
        assert near(both[1:], alone, 2e-4), method


@pytest.mark.parametrize("name", NAMES)
def test_bfloat16_stays_close_to_float32(name: str) -> None:
    ids, mask = batch()
    exact, rounded = (
        decode(lab_model("llama", dtype), cache_of("llama", everything(name), dtype=dtype), ids, mask)
        for dtype in (torch.float32, torch.bfloat16)
    )
    plain = decode(lab_model("llama", torch.bfloat16), cache_of("llama", "all", dtype=torch.bfloat16), ids, mask)
    assert (rounded - exact).abs().mean() < 2 * (plain - exact).abs().mean() + 1e-3


@pytest.mark.parametrize("name", NAMES)
def test_a_shared_pass_and_a_copy_read_what_a_cache_reads_alone(name: str) -> None:
    (ids, mask), lab = batch(1), lab_model("llama", torch.float32)
    makes = [
        partial(cache_of, "llama", SHORT.get(name, name)),
        partial(cache_of, "llama", SHORT.get(name, name), "adakv", 0.5, window=2, kernel=3),
        partial(cache_of, "llama", "all", "h2o", 0.5),
    ]
    alone = [decode(lab, make(), ids, mask) for make in makes]
    shared = FanOutCache([make() for make in makes], torch.device("cpu"))
    with torch.inference_mode():
        lab(ids, past_key_values=shared)
        shared.split()
        for step in (1, 2):
            token = torch.full((3, 1), (step - 1) * 7 % 90 + 3)
            position = torch.full((3, 1), ids.shape[1] + step - 1)
            logits = lab(token, position_ids=position, past_key_values=shared).logits[:, -1].float()
            for place, own in enumerate(alone):
                assert near(logits[place], own[0, step], 2e-4)
        again = copy_cache(shared.branches[0].cache)
        token = torch.full((1, 1), 30)
        position = torch.full((1, 1), ids.shape[1] + 2)
        first = lab(token, position_ids=position, past_key_values=again).logits
        assert torch.equal(first, lab(token, position_ids=position, past_key_values=shared.branches[0].cache).logits)


@pytest.mark.parametrize(("name", "store"), [(name, STORES[place % 3]) for place, name in enumerate(NAMES)])
def test_packed_slots_are_read_as_they_are_held(name: str, store: str) -> None:
    import tests.conformance.variants  # noqa: F401  registers the stores

    (ids, mask), lab = batch(), lab_model("llama", torch.float32)
    plain, own = (cache_of("llama", read, "packed", store=store) for read in ("all", everything(name)))
    assert near(decode(lab, own, ids, mask, steps=6), decode(lab, plain, ids, mask, steps=6), 1e-3)


@pytest.mark.parametrize("name", NAMES)
def test_merging_methods_go_on_with_the_attention_of_what_was_read(name: str) -> None:
    (ids, mask), lab = batch(), lab_model("llama", torch.float32)
    for method in ("keepkv", "zsmerge", "d2o"):
        cache = cache_of("llama", SHORT.get(name, name), method, 0.5)
        assert torch.isfinite(decode(lab, cache, ids, mask, steps=5)).all(), method


def test_centroids_have_no_place_for_alibi() -> None:
    (ids, mask), lab = batch(), lab_model("falcon-alibi", torch.float32)
    with pytest.raises(UserError, match=r"read=retroinfer estimates .* ALiBi"):
        decode(lab, cache_of("falcon-alibi", "retroinfer"), ids, mask)


def test_a_low_rank_state_cannot_be_left_out() -> None:
    with pytest.raises(UserError, match=r"less cannot be combined with read=quest: .* low-rank state"):
        make_cache(lab_model("llama", torch.float32), make_method("less", weights="untrained", read="quest"), 0.5)


class Watching:
    """An observer that reads slots, so that decisions are plans and no kernel makes them."""

    full = True

    def attended(self, *_: object) -> None: ...

    def compressed(self, *_: object) -> None: ...


@pytest.mark.parametrize("name", NAMES)
def test_a_recorded_run_reads_what_an_unrecorded_one_reads(name: str) -> None:
    """Slots are then evicted by plans; unrecorded, in place, and the next token fills the free slot."""
    (ids, mask), lab = batch(1), lab_model("llama", torch.float32)
    for method in ("h2o", "keepkv"):
        alone, watched = (cache_of("llama", SHORT.get(name, name), method, 0.5, observer=o) for o in (None, Watching()))
        assert near(decode(lab, watched, ids, mask, steps=6), decode(lab, alone, ids, mask, steps=6), 2e-4), method


def test_bytes_read_are_those_of_the_chosen_slots_and_of_the_index() -> None:
    """Two layers (of four heads' rows): the first reads everything; bytes held count the index too."""
    (ids, mask), lab = batch(1), lab_model("llama", torch.float32)
    plain, own = cache_of("llama", "all"), cache_of("llama", "quest/slots=8/page=4/least=1/dense_layers=1")
    decode(lab, plain, ids, mask)
    assert plain.memory().bytes_read == plain.memory().live_bytes
    decode(lab, own, ids, mask)
    first, *others = own.memory().layers
    slot = first.live_bytes // (2 * 26)  # two heads, 24 tokens and two steps
    assert first.bytes_read == 2 * slot * (25 + 26) // 2, "everything, mean of both steps"
    page = 2 * 16 * 4  # a minimum and a maximum of 16 float32 channels
    for layer in others:
        chosen = 2 * slot * (4 + (1 + 2) / 2)  # a whole page, and that of the newest token, which has begun
        assert layer.bytes_read == chosen + 2 * 7 * page, "two of seven pages"
        assert layer.live_bytes == first.live_bytes + 2 * 7 * page
    assert own.memory().bytes_read < plain.memory().bytes_read
