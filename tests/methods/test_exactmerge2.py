"""exactmerge 2: its regression against keys as they will be held, its stores, its bytes, its single pass."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from kvlab.core.budget import Budget
from kvlab.core.cache import CompressedCache, make_cache
from kvlab.core.cache.table import apply_plan
from kvlab.core.cache.table.slot_table import SlotTable
from kvlab.core.contract.pipeline import LowestScore
from kvlab.core.contract.view import HEAD_MASS, Slots
from kvlab.core.methods import Method, make_method
from kvlab.core.methods.allocators.model_wide import ModelWide, protected_by
from kvlab.core.methods.settlers.matching import MatchAttention
from kvlab.core.stores import STORES, store_under
from tests.cache.test_byte_budgets import live_bytes
from tests.conformance.test_matrix import lab_model
from tests.methods.test_attention_matching import ASKED, BATCH, HEADS, WINDOW, rows_of, solved, view

RIDGE, VALUE_RIDGE, UNTOUCHED, WINDOW_WEIGHT, BOX = 0.1, 0.4, 0.25, 3.0, 3.0


def log_mass_of(kept: Tensor, heard: Tensor, whole: Tensor, fixed: int) -> Tensor:
    """Weights w with kept w near `whole`: ridge towards 1, then two projected gradient steps within the box.

    Those of the last `fixed` slots are 1.
    """
    low, high, count = math.exp(-BOX), math.exp(BOX), kept.shape[1] - fixed
    rows, target = kept[:, :count] * heard, (whole - kept[:, count:].sum(1, keepdim=True)) * heard
    ones = torch.ones(count, dtype=torch.float64)
    strength = RIDGE * float(rows.square().sum()) / count
    w = solved(rows, target, ones[:, None], strength)[:, 0].clamp(low, high)
    vector = ones.clone()
    for _ in range(8):
        vector = rows.T @ (rows @ vector)
        vector = vector / vector.norm()
    steepest = 1.1 * float((rows @ vector).square().sum())
    for _ in range(2):
        w = (w - rows.T @ (rows @ w - target[:, 0]) / steepest).clamp(low, high)
    return torch.cat([w, torch.ones(fixed, dtype=torch.float64)])


@pytest.mark.parametrize("newest", [0, 2])
def test_what_is_packed_is_fitted_to_its_rounded_keys(newest: int) -> None:
    """The columns of the regression are shares of keys as the store gives them back, its targets the full cache's.

    The newest slots stay as they are, so that the others make up for what is missing with them as they are.
    """
    store = replace(STORES["turbo3"], sinks=1, residual=2)
    given = replace(view(), store=store)
    given_to_both = ASKED, WINDOW, WINDOW_WEIGHT, True, True, RIDGE, UNTOUCHED, BOX
    settle = MatchAttention(*given_to_both, newest=newest, value_ridge=VALUE_RIDGE)
    plan = settle.settle(given, LowestScore(1, 2))
    after = apply_plan.apply(given.slots.map(torch.clone), plan)
    moved = 0.0
    for b, h in product(range(BATCH), range(HEADS)):
        stays, keys = plan.keep[b, h].nonzero()[:, 0], given.slots.keys[b, h].clone()
        for slot in stays[1:-2].tolist():  # slots lie in the order of the text: all but the first and the last two
            own = keys[slot].expand(1, 1, store.lot, -1)
            back = store.keys.decode(
                store.keys.encode(own, torch.ones(1, 1, store.lot, dtype=torch.bool)), own.shape[-1]
            )
            keys[slot] = back[0, 0, 0]
        (whole, weight), (rounded, _) = (rows_of(given, b, h, WINDOW_WEIGHT, k) for k in (None, keys))
        heard, value = weight.sqrt()[:, None], given.slots.values[b, h].double()
        w = log_mass_of(rounded[:, stays], heard, whole.sum(1, keepdim=True), newest)
        shares = rounded[:, stays] * w / (rounded[:, stays] * w).sum(1, keepdim=True)
        score, fresh = given.slots.score[b, h, stays], value[stays].clone()
        free = score.argsort(descending=True, stable=True).argsort() >= int(UNTOUCHED * len(stays))
        free &= torch.arange(len(stays)) < len(stays) - newest
        strength = VALUE_RIDGE * float((shares[:, free] * heard).square().sum()) / int(free.sum())
        target = (whole @ value - shares[:, ~free] @ fresh[~free]) * heard
        fresh[free] = solved(shares[:, free] * heard, target, fresh[free], strength)
        torch.testing.assert_close(after.log_mass[b, h, stays].double(), w.log(), rtol=1e-3, atol=2e-4)
        torch.testing.assert_close(after.values[b, h, stays].double(), fresh, rtol=2e-3, atol=2e-4)
        moved = max(moved, float((keys - given.slots.keys[b, h]).abs().max()))
        assert (after.values[b, h, stays][~free] == given.slots.values[b, h, stays][~free]).all()
        assert (after.log_mass[b, h, stays[len(stays) - newest :]] == 0).all()
    assert moved > 0.05, "or nothing was rounded"


def test_a_budget_in_bytes_is_filled_with_packed_slots() -> None:
    """The more bytes, the more bits; slots and shares of the prompt stay native."""
    adaptive = {"2%B": "centred3", "5%B": "centred4", "64KiB": "centred4", "10%B": "centred5", "20%B": "centred6",
                "33%B": "centred6", "34%B": "int8", "100%B": "int8"}  # fmt: skip
    auto = {"5%B": "lean4", "33%B": "lean4", "34%B": "int8", "100%B": "int8", "64KiB": "lean4"}
    for rule, budgets in (("adaptive", adaptive), ("auto", auto)):
        for amount, name in {**budgets, 0.2: "native", 128: "native", 1.0: "native"}.items():
            assert store_under(rule, Budget(amount)) is STORES[name], amount
    assert store_under("kivi4", Budget(0.2)) is STORES["kivi4"]


@pytest.mark.parametrize("settings", [{}, {"decode": "budget", "buffer": 5}, {"refit": "values"}], ids=str)
@pytest.mark.parametrize("share", [0.25, 0.5])
def test_live_bytes_stay_within_the_share_in_its_own_store(share: float, settings: dict[str, object]) -> None:
    """Codes, scales, log mass and what waits on top counted, padded rows included; most of it is used."""
    told, full = live_bytes("exactmerge2", f"{100 * share:g}%B", torch.bfloat16, "adaptive", **settings)
    assert max(told) <= share * full
    assert told[0] > 0.6 * share * full


def test_long_generations_stay_within_the_budget() -> None:
    """80 tokens behind a prompt of 60, in slots and in bytes."""
    model = lab_model("llama", torch.bfloat16)
    ids = torch.randint(3, 97, (1, 60), generator=torch.Generator().manual_seed(5))
    for budget, most in ((20, None), ("12KiB", 12 * 2**10)):
        method = make_method("exactmerge2", decode="budget", buffer=4, window=3, recent=2, sinks=1)
        cache = make_cache(model, method, budget)
        with torch.inference_mode():
            model(ids, past_key_values=cache)
            for step in range(80):
                model(torch.tensor([[3 + step % 90]]), past_key_values=cache)
                memory = cache.memory()
                assert memory.live_slots <= 24 if most is None else memory.live_bytes <= most, step
        assert memory.live_slots > 15


@pytest.mark.parametrize("newest", [0, 4])
def test_the_newest_slots_are_as_the_model_made_them(newest: int) -> None:
    """Mass and values, in every layer and head; those before them are refitted."""
    ids = torch.randint(3, 97, (1, 60), generator=torch.Generator().manual_seed(6))
    method = make_method("exactmerge2", newest=newest, recent_share=1.0)
    for slots, own in beside_its_own_values(method, 30, ids):
        late = slots.valid & (slots.position >= 60 - 4)
        same = torch.isclose(slots.values, own, atol=1e-5).all(-1) & (slots.log_mass == 0)
        assert late.sum(-1).eq(4).all()
        assert same[late].all() == (newest == 4)
        assert not same[slots.valid & ~late].all()


def test_few_slots_are_not_filled_with_the_newest_tokens() -> None:
    """Of `recent` tokens no more stay than a share of the slots, rounded down, but always the newest."""
    model = lab_model("llama", torch.float32)
    ids = torch.randint(3, 97, (1, 90), generator=torch.Generator().manual_seed(7))
    for slots, share, most in ((64, 1 / 16, 4), (63, 1 / 16, 3), (20, 1 / 16, 1), (40, 0.5, 8), (12, 1.0, 8)):
        method = make_method("exactmerge2", recent=8, recent_share=share, sinks=1)
        pipeline = method.pipeline()
        assert isinstance(pipeline.allocate, ModelWide) and pipeline.allocate.select is pipeline.select
        cache = make_cache(model, method, slots)
        with torch.inference_mode():
            model(ids, past_key_values=cache)
        table = cache.compressed_layers()[0].buckets[0].table
        given = replace(view(), budget=torch.full((1, 1), slots), tokens_seen=torch.tensor([90]))
        given.slots.position = torch.arange(90).expand(1, 1, 90)
        assert protected_by(pipeline.select, given)[0, 0].nonzero()[:, 0].tolist() == [0, *range(90 - most, 90)], (
            slots,
            share,
        )
        assert (table.visible().position == 89).any(-1).all()


@pytest.mark.parametrize("store", ["lean4", "int8", "kivi4"])
def test_a_settled_log_mass_takes_two_bytes_beside_codes(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is off by less than two thousandths, and by nothing natively; whoever reads it gets float32."""
    model, ids = lab_model("llama", torch.float32), torch.arange(3, 93)[None]

    def table(store: str, **settings: object) -> SlotTable:
        cache = make_cache(model, make_method("exactmerge2", store=store, **settings), 40)
        with torch.inference_mode():
            model(ids, past_key_values=cache)
        return cache.compressed_layers()[0].buckets[0].table

    light, native, no_mass = table(store), table("native"), table(store, refit="values")
    assert (light.slots.log_mass.dtype, native.slots.log_mass.dtype) == (torch.float16, torch.float32)
    assert light.visible().log_mass.dtype == light.whole().log_mass.dtype == torch.float32
    assert light.slot_bytes() - no_mass.slot_bytes() == 2
    monkeypatch.setattr("kvlab.core.contract.slot_columns.LIGHT_MASS", torch.float32)
    exact = table(store)
    assert exact.slots.log_mass.abs().max() > 0.1
    assert torch.equal(light.slots.position, exact.slots.position)
    torch.testing.assert_close(light.visible().log_mass, exact.visible().log_mass, rtol=0, atol=0.002)
    again = light.compacted(light.slots.with_columns(valid=light.valid()).in_text(), 3, light.live().flatten().tolist())
    assert again.slots.log_mass.dtype == torch.float32


def test_former_names_of_the_second_pass_are_read() -> None:
    """Runs, rows and links of earlier versions call the setting `rehearse`, and KVzip's score `rehearsal`."""
    assert make_method("exactmerge2", rehearse=False) == make_method("exactmerge2", second_pass=False)
    scored = [make_method("compose", score=name).pipeline().score for name in ("rehearsal", "second-pass")]
    assert scored[0] == scored[1] == make_method("kvzip").pipeline().score


def test_a_single_pass_keeps_the_window_and_refits_values_alone() -> None:
    """The last tokens that are asked stay, up to a quarter of a head's slots; without a second pass no mass is."""
    ids = torch.randint(3, 97, (1, 90), generator=torch.Generator().manual_seed(8))
    for slots, window in ((40, 6), (40, 32), (13, 32)):
        method = make_method("exactmerge2", second_pass=False, heads="untrained", window=window, newest=2)
        for held, own in beside_its_own_values(method, slots, ids):
            stay = (held.valid.sum(-1, keepdim=True) // 4).clamp_max(window)
            late = held.valid & (held.position >= 90 - stay)
            assert torch.equal(late.sum(-1, keepdim=True), stay), (slots, window)
            assert HEAD_MASS not in held.extra and bool((held.log_mass[held.valid] == 0).all())
            assert (~torch.isclose(held.values, own, atol=1e-5).all(-1) & held.valid).any()


def test_a_single_pass_over_the_budget_goes_by_what_the_newest_queries_look_at() -> None:
    """With `decode=budget` a generated token's score is the most attention it got, and no foreseen score is lost."""
    model = lab_model("llama", torch.float32)
    ids = torch.randint(3, 97, (1, 40), generator=torch.Generator().manual_seed(9))
    single = {"second_pass": False, "heads": "untrained", "window": 3, "newest": 1, "refit": "none"}
    cache = make_cache(model, make_method("exactmerge2", decode="budget", buffer=4, **single), 12)
    with torch.inference_mode():
        model(ids, past_key_values=cache)
        foreseen = scores(cache)
        for step in range(4):
            model(torch.tensor([[50 + step]]), past_key_values=cache)
    for before, now in zip(foreseen, scores(cache), strict=True):
        assert all(score > 0 for score in before.values())
        assert all(now[token] >= before[token] for token in before.keys() & now.keys())
        assert all(0 < now[token] <= 1 for token in now if token >= 40)


def beside_its_own_values(method: Method, budget: int, ids: Tensor) -> Iterator[tuple[Slots, Tensor]]:
    """Of each table the slots it holds after the prompt, and the values their tokens had (1, W, S, d)."""
    model = lab_model("llama", torch.float32)
    cache, full = make_cache(model, method, budget), make_cache(model, "full", 1.0)
    with torch.inference_mode():
        model(ids, past_key_values=full)
        model(ids, past_key_values=cache)
    for layer, whole in zip(cache.compressed_layers(), full.compressed_layers(), strict=True):
        before = whole.buckets[0].table.visible().values[0]
        for number, bucket in enumerate(layer.buckets):
            held, heads = bucket.table.visible(), layer.head_index.heads_in(number)[0]
            place = held.position.long().clamp_min(0)[..., None]
            yield held, before[heads].gather(2, place.expand_as(held.values))


def scores(cache: CompressedCache) -> list[dict[int, float]]:
    """{position: score} of what the first row's first KV head of each layer holds."""
    found = []
    for slots in (layer.slots for layer in cache.compressed_layers()):
        assert slots is not None
        here = slots.valid[0, 0]
        found.append(dict(zip(slots.position[0, 0][here].tolist(), slots.score[0, 0][here].tolist(), strict=True)))
    return found


@pytest.mark.parametrize("budget", [1, 16, 65, 96, 97, 197, 370, 5000])
def test_growing_recent_tokens_are_few_of_few_slots(budget: int) -> None:
    """A sixteenth of the first 96 slots and a quarter of the others; at most `recent`, at least 1."""
    share = math.floor(sum(1 for slot in range(budget) if slot < 96) / 16) + math.floor(max(budget - 96, 0) / 4)
    given = SimpleNamespace(budget=torch.tensor([[budget]]))
    recent, _ = LowestScore(1, 64, most="growing")._bounds(given)
    assert int(recent) == max(1, min(64, share))
