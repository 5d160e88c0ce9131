"""Going on from a prompt that was not decided about, as the method does or with something given back."""

from __future__ import annotations

import math

import pytest
import torch

from kvlab.core.cache import make_cache
from kvlab.core.cache.cache_copy import PromptCache
from kvlab.core.errors import UserError
from kvlab.core.methods.wrappers.restore import giving_back
from kvlab.core.restore import Restore, head_words, spans
from kvlab.engine.forward import decode_one, prefill
from kvlab.models.load import load_model

METHODS = (
    "streaming-llm", "h2o", "snapkv", "adakv", "zsmerge", "kvmerger", "keepkv", "pyramid-pool", "gvote", "d2o", "cam",
    "exactmerge", "less", "pyramidinfer",
)  # fmt: skip
# A random model's keys are alike by chance only, and LESS has no maps for it.
OPTIONS = {
    "keepkv": {"threshold": -1.0}, "pyramid-pool": {"pooling": "mean"}, "less": {"weights": "untrained"},
}  # fmt: skip
MERGING = ("kvmerger", "pyramid-pool", "zsmerge", "exactmerge", "d2o")
BUDGET, ROOM = 16, 12
CHOSEN = (9, 10, 23, 40)
NEXT = range(5, 5 + ROOM)


@pytest.fixture(scope="module")
def lab(tiny_model_folder):
    return load_model(str(tiny_model_folder))


def text(length: int = 64) -> torch.Tensor:
    return torch.randint(3, 200, (1, length), generator=torch.Generator().manual_seed(0))


def made(lab, method: str, **options):
    return make_cache(lab, method, BUDGET, seed=3, **OPTIONS.get(method, {}) | options)


def held(lab, method: str, **options) -> PromptCache:
    cache = made(lab, method, **options)
    cache.settings.pipeline = giving_back(cache.settings.pipeline, None, (), 0)
    cache.settings.stays_pending = True
    prefill(lab, cache, text())
    return PromptCache(cache)


def given(lab, prefix: PromptCache, method: str, returned: Restore | None):
    pipeline = made(lab, method).settings.pipeline
    layers = [layer.layer_idx for layer in prefix.prompt_cache.compressed_layers()]
    return prefix.cache(giving_back(pipeline, returned, layers, ROOM))


def changed(lab, method: str, returned: Restore):
    """A cache after the prompt, decided about with a change."""
    cache = made(lab, method)
    layers = [layer.layer_idx for layer in cache.compressed_layers()]
    cache.settings.pipeline = giving_back(cache.settings.pipeline, returned, layers, ROOM)
    prefill(lab, cache, text())
    return cache


def decoded(lab, cache) -> torch.Tensor:
    return torch.stack([decode_one(lab, cache, torch.tensor(token)) for token in NEXT])


def held_positions(cache) -> list[list[set[int]]]:
    """Of every layer and head the positions of its slots."""
    found = []
    for layer in cache.compressed_layers():
        slots = layer.slots
        heads = zip(slots.position[0], slots.valid[0], strict=True)
        found.append([set(position[valid].tolist()) for position, valid in heads])
    return found


@pytest.mark.parametrize("method", METHODS)
def test_going_on_gives_what_reading_the_prompt_again_gives_however_often(lab, method: str):
    prefix = held(lab, method)
    again = made(lab, method)
    prefill(lab, again, text())
    expected = decoded(lab, again)
    for _ in range(2):
        torch.testing.assert_close(decoded(lab, given(lab, prefix, method, None)), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("method", METHODS)
def test_all_heads_given_back_are_the_full_cache(lab, method: str):
    full = make_cache(lab, "full")
    prefill(lab, full, text())
    back = given(lab, held(lab, method), method, Restore(kind="heads"))
    torch.testing.assert_close(decoded(lab, back), decoded(lab, full), rtol=0, atol=1e-4)


@pytest.mark.parametrize("method", METHODS)
def test_tokens_given_back_stay_beside_all_that_the_method_keeps(lab, method: str):
    prefix = held(lab, method)
    own, back = (given(lab, prefix, method, back) for back in (None, Restore(tokens=CHOSEN, heads=((0, 0), (1, 1)))))
    for cache in (own, back) if method == "d2o" else ():  # decides at the first token after the prompt
        decode_one(lab, cache, torch.tensor(5))
    before, after = held_positions(own), held_positions(back)
    for layer, heads in enumerate(before):
        for head, kept in enumerate(heads):
            chosen = set(CHOSEN) if (layer, head) in ((0, 0), (1, 1)) else set()
            assert chosen <= after[layer][head]
            if method not in MERGING:  # where others may be merged into the place that a returned token had
                assert after[layer][head] == kept | chosen
    decoded(lab, back)
    assert set(CHOSEN) <= held_positions(back)[0][0], "and never leave while decoding"


@pytest.mark.parametrize("method", METHODS)
def test_dropped_tokens_leave_and_others_take_their_slots(lab, method: str):
    prefix = held(lab, method)
    own = given(lab, prefix, method, None)
    kept = held_positions(own)[0][0]
    chosen = tuple(sorted(kept)[3:6])
    cache = given(lab, prefix, method, Restore(kind="drop", tokens=chosen, heads=((0, 0), (1, 1))))
    for one in (own, cache) if method == "d2o" else ():  # decides at the first token after the prompt
        decode_one(lab, one, torch.tensor(5))
    before, after = held_positions(own), held_positions(cache)
    assert not set(chosen) & after[0][0], "its slots are evicted"
    assert after[0][1] == before[0][1], "another head decides as before"
    if method not in MERGING:
        assert len(after[0][0]) == len(before[0][0]), "the budget stays the same"
    decoded(lab, cache)
    assert not set(chosen) & held_positions(cache)[0][0]


@pytest.mark.parametrize("method", ["h2o", "streaming-llm"])
def test_a_merged_token_joins_the_kept_slot_with_the_most_similar_key(lab, method: str):
    own, full = made(lab, method), make_cache(lab, "full")
    for cache in (own, full):
        prefill(lab, cache, text())
    chosen = tuple(sorted(held_positions(own)[0][0])[3:5])
    dropped, merged = (changed(lab, method, Restore(kind=kind, tokens=chosen)) for kind in ("drop", "merge"))
    assert held_positions(merged)[0] == held_positions(dropped)[0], "others take its slots as if it were dropped"
    before, after = full.compressed_layers()[0].slots, merged.compressed_layers()[0].slots
    keys, values = before.keys[0, 0].double(), before.values[0, 0].double()
    joined: dict[int, list[int]] = {}
    kept = sorted(held_positions(merged)[0][0])
    for token in chosen:
        cosines = [float(torch.cosine_similarity(keys[token], keys[slot], 0)) for slot in kept]
        joined.setdefault(kept[cosines.index(max(cosines))], []).append(token)
    for index in range(after.valid.shape[-1]):
        if after.valid[0, 0, index]:
            slot = int(after.position[0, 0, index])
            members = [slot, *joined.get(slot, [])]
            for state, found in ((keys, after.keys), (values, after.values)):
                torch.testing.assert_close(found[0, 0, index].double(), state[members].mean(0), rtol=0, atol=1e-6)
            assert after.votes[0, 0, index] == len(members)
            assert abs(float(after.log_mass[0, 0, index]) - math.log(len(members))) < 1e-6
    decoded(lab, merged)


def test_a_merging_method_merges_a_chosen_token_by_its_own_rule(lab):
    own = made(lab, "keepkv")
    prefill(lab, own, text())
    chosen = tuple(sorted(held_positions(own)[0][0])[5:7])
    layers = changed(lab, "keepkv", Restore(kind="merge", tokens=chosen, heads=((0, 0),))).compressed_layers()
    slots = layers[0].slots
    assert not set(chosen) & set(slots.position[0, 0][slots.valid[0, 0]].tolist())
    votes = (slots.votes * slots.valid)[0].sum(-1)
    assert votes.tolist() == [64] * len(votes), "its threshold is -1 here, so nothing is lost"


def test_a_method_that_merges_groups_is_refused_in_one_sentence(lab):
    with pytest.raises(UserError, match="merges tokens in groups, so none can be merged by hand: keep or drop it"):
        giving_back(made(lab, "kvmerger").settings.pipeline, Restore(kind="merge", tokens=(3,)), (0, 1), ROOM)


def test_a_token_is_dropped_from_a_cache_that_has_room_for_all(lab):
    cache = make_cache(lab, "h2o", 200, seed=3)
    cache.settings.pipeline = giving_back(cache.settings.pipeline, None, (), 0)
    cache.settings.stays_pending = True
    prefill(lab, cache, text())
    pipeline = make_cache(lab, "h2o", 200, seed=3).settings.pipeline
    layers = [layer.layer_idx for layer in cache.compressed_layers()]
    without = PromptCache(cache).cache(
        giving_back(pipeline, Restore(kind="drop", tokens=(9,), heads=((0, 0),)), layers, ROOM)
    )
    assert held_positions(without)[0] == [
        set(range(64)) - {9},
        *[set(range(64))] * (len(held_positions(without)[0]) - 1),
    ]


@pytest.mark.parametrize("method", ["keepkv", "zsmerge", "kvmerger", "d2o", "cam"])
def test_evicting_instead_of_merging_leaves_what_stayed_as_it_was(lab, method: str):
    prefix = held(lab, method)
    back = given(lab, prefix, method, Restore(kind="evict"))
    decode_one(lab, back, torch.tensor(5))
    keys = [layer.slots.keys for layer in prefix.prompt_cache.compressed_layers()]
    for layer, own in zip(back.compressed_layers(), keys, strict=True):
        slots = layer.slots
        old = slots.valid[0] & (slots.position[0] < 64)
        assert (slots.votes[0][old] == 1).all()
        for head in range(old.shape[0]):
            place = slots.position[0, head][old[head]].long()
            torch.testing.assert_close(slots.keys[0, head][old[head]], own[0, head][place])


@pytest.mark.parametrize("method", ["keepkv", "kvmerger", "pyramid-pool"])
def test_what_would_be_merged_keeps_slots_of_its_own(lab, method: str):
    prefix = held(lab, method)
    own, back = (given(lab, prefix, method, back) for back in (None, Restore(kind="apart")))
    merged = [float((layer.slots.votes * layer.slots.valid).sum()) for layer in own.compressed_layers()]
    assert any(total > layer.slots.valid.sum() for total, layer in zip(merged, own.compressed_layers(), strict=True))
    for layer in back.compressed_layers():
        assert (layer.slots.votes[layer.slots.valid] == 1).all()


def test_names_are_short():
    assert spans((5, 3, 4, 9)) == "3-5, 9"
    assert head_words([(3, 2)]) == "layer 3 head 2"
    assert head_words([(1, 0), (2, 0), (4, 1)]) == "3 heads of layers 1-2, 4"
    assert Restore(tokens=(738, 739)).description == "+ tokens 738-739"
    assert Restore(kind="drop", tokens=(738,), heads=((3, 2),)).description == "without token 738 in layer 3 head 2"
    assert Restore(kind="merge", tokens=(738,), heads=((3, 2),)).description == "merging token 738 in layer 3 head 2"
    assert Restore(kind="heads", heads=((3, 2),)).description == "+ full cache in layer 3 head 2"
