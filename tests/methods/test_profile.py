"""Profiles of head shares: budgets by them, the file, and the refusal of another model's."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kvlab.core.cache import make_cache
from kvlab.core.contract import LowestScore, Slots, View
from kvlab.core.errors import UserError
from kvlab.core.fitted.kinds import PROFILES, write_profile
from kvlab.core.methods.allocators.profile import HeadProfile, HeadShares
from kvlab.core.methods.composition.composed import compose
from kvlab.models.load import LoadedModel, load_model, prepare
from tests.families import tiny_model

LAYERS, HEADS = 3, 2


def shares_of(numbers: list[float]) -> HeadShares:
    table = torch.tensor(numbers).view(LAYERS, HEADS).tolist()
    return HeadShares((0.2,), (tuple(tuple(row) for row in table),))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(0, 10), min_size=6, max_size=6).filter(lambda n: sum(n) > 1e-6),
    st.integers(8, 60),
    st.integers(1, 8),
    st.sampled_from(["shares", "two"]),
)
def test_budgets_sum_to_the_models(numbers: list[float], average: int, least: int, levels: str) -> None:
    tokens = 50
    select = LowestScore(sinks=least - 1)  # and the newest token
    allocate = HeadProfile(levels=levels, known=shares_of(numbers), select=select)
    budget, place = torch.full((1, HEADS), average), torch.arange(tokens).expand(1, HEADS, -1)
    column = torch.zeros(1, HEADS, tokens)
    slots = Slots(column[..., None], column[..., None], place, column, column, column, torch.ones_like(place) > 0)
    given = slots, None, budget, torch.tensor([tokens]), "prefill", 0, average, False
    budgets = torch.cat([allocate.head_budgets(View(*given, layer, LAYERS)) for layer in range(LAYERS)])
    assert int(budgets.sum()) == average * LAYERS * HEADS
    if average < tokens:
        assert least <= int(budgets.min()) and int(budgets.max()) <= tokens
        order = torch.tensor(numbers).argsort()
        assert (budgets.flatten()[order].diff() >= 0).all() or len(set(numbers)) < 6
    if levels == "two" and average < tokens:
        assert int(((budgets > least) & (budgets < tokens)).sum()) <= 1


def test_shares_between_two_budgets_follow_the_logarithm() -> None:
    even, one = [[0.5, 0.5]], [[1.0, 0.0]]
    known = HeadShares((0.05, 0.2), tuple(tuple(tuple(row) for row in table) for table in (one, even)))
    expected = {0.01: 1.0, 0.05: 1.0, 0.1: 0.75, 0.2: 0.5, 0.9: 0.5}
    for budget, share in expected.items():
        assert float(known.at(budget)[0, 0]) == pytest.approx(share)


def lab(seed: int = 0) -> LoadedModel:
    model = prepare(tiny_model("llama"))
    return LoadedModel(model, None, "tiny")


def written(path: Path, shares: Tensor) -> Path:
    write_profile(path, [0.1, 0.3], shares, lab().model, {"model": "tiny"})
    return path


def test_a_file_gives_every_score_its_budgets(tmp_path: Path) -> None:
    """Sinks and newest stay, the total is the budget, heads follow the profile; rows of a batch have their own."""
    wanted = torch.tensor([[1.0, 1.0], [8.0, 4.0], [1.0, 1.0]]).expand(2, -1, -1)
    path = written(tmp_path / "tiny.safetensors", wanted)
    model, ids = lab(), torch.randint(3, 97, (2, 60), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    mask[1, :20] = 0
    for score in ("snapkv", "recency"):
        method = compose(score, "profile", profile=str(path), sinks=1, recent=2)
        cache = make_cache(model, method, 0.3)
        with torch.inference_mode():
            model.model(ids, attention_mask=mask, past_key_values=cache)
        budgets = torch.stack([layer.budget for layer in cache.compressed_layers()], 1)
        assert budgets.sum((1, 2)).tolist() == [18 * 6, 12 * 6]
        assert (budgets[:, 1, 0] > budgets[:, 1, 1]).all() and (budgets[:, 1, 1] > budgets[:, 0, 0]).all()
        live = torch.stack([layer.slots.live() for layer in cache.compressed_layers()], 1)
        assert (live == budgets).all()
        for layer in cache.compressed_layers():
            position, valid = layer.slots.position, layer.slots.valid
            for row, last in ((0, 59), (1, 39)):
                for head in range(HEADS):
                    assert {0, last - 1, last} <= set(position[row, head][valid[row, head]].tolist())


def test_another_models_profile_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "tiny.safetensors", torch.ones(2, LAYERS, HEADS))
    other = LoadedModel(prepare(tiny_model("qwen3")), None, "other")
    with pytest.raises(UserError, match="not created with these weights of other"):
        make_cache(other, "duoattention", 0.3, profile=str(path))
    with pytest.raises(UserError, match="not created with these weights"):
        make_cache(lab(), "duoattention", 0.3)
    with pytest.raises(UserError, match="There is no profile of head shares"):
        make_cache(lab(), "duoattention", 0.3, profile=str(tmp_path / "none"))
    (tmp_path / "text").write_text("not one")
    with pytest.raises(UserError, match="not a profile"):
        make_cache(lab(), "duoattention", 0.3, profile=str(tmp_path / "text"))


@pytest.mark.parametrize("name", ["mini-60", "mini-half"])
def test_a_model_that_has_a_profile_is_told_its_name(name: str) -> None:
    from kvlab.core.assets import asset_path

    known = load_model(str(asset_path(name)), device="cpu")
    with pytest.raises(UserError, match=f"set profile={name}, which was"):
        make_cache(known, "duoattention", 0.3)
    assert make_cache(known, "duoattention", 0.3, profile=name)


def test_the_shipped_profile_is_minis() -> None:
    """Layer 3 of mini, which retrieves, gets more than half of the slots at 20 %."""
    from kvlab.core.assets import asset_path

    known, _, about = PROFILES.read(asset_path("profiles/mini.safetensors"))
    by_layer = known.at(0.2).sum(-1)
    assert by_layer.argmax() == 3 and float(by_layer[3]) > 0.5 and about["model"] == "mini"


def test_smollm2s_shipped_profile_is_of_its_shape() -> None:
    """30 layers of 3 KV heads; at each budget the shares are those of all slots."""
    from kvlab.core.assets import asset_path

    known, _, about = PROFILES.read(asset_path("profiles/smollm2.safetensors"))
    assert about["model"] == "smollm2" and known.at(0.2).shape == (30, 3)
    for budget in (0.05, 0.2):
        assert float(known.at(budget).sum()) == pytest.approx(1.0, abs=1e-5)
        assert float(known.at(budget).min()) >= 0


def test_headkv_splits_by_profile_and_evenly_and_keeps_snapkvs_best(tmp_path: Path) -> None:
    """A head's slots are pool * share + least, as in its authors' runs, and its tokens are SnapKV's for that many."""
    wanted = torch.tensor([[3.0, 1.0], [8.0, 4.0], [2.0, 6.0]])
    path = written(tmp_path / "tiny.safetensors", wanted.expand(2, -1, -1))
    model, average, even = lab(), 20, 0.4
    ids = torch.randint(3, 97, (1, 60), generator=torch.Generator().manual_seed(1))
    options = {"window": 3, "kernel": 3}
    caches = [make_cache(model, "headkv", average, profile=str(path), even=even, **options)]
    counts = []
    for layer in range(3):
        for head in range(HEADS):
            pool, least = average * (1 - even) * 3 * HEADS, average * even
            counts.append(pool * float(wanted[layer, head] / wanted.sum()) + least)
    caches += [make_cache(model, "snapkv", round(count), **options) for count in counts]
    with torch.inference_mode():
        for cache in caches:
            model.model(ids, past_key_values=cache)
    kept = [[layer.slots for layer in cache.compressed_layers()] for cache in caches]
    for place, count in enumerate(counts):
        layer, head = divmod(place, HEADS)
        mine, alone = (
            set(slots.position[0, head][slots.valid[0, head]].tolist())
            for slots in (kept[0][layer], kept[1 + place][layer])
        )
        assert abs(len(mine) - count) < 1
        smaller, larger = sorted((mine, alone), key=len)
        assert smaller <= larger and len(larger) - len(smaller) <= 1
    assert sum(int(slots.valid.sum()) for slots in kept[0]) == average * 3 * HEADS
