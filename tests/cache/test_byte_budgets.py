"""Budgets in bytes: how they are written, and that live bytes never exceed what was promised."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from transformers import PreTrainedModel

from kvlab.core.budget import Budget, Sizes
from kvlab.core.cache import make_cache
from kvlab.core.choice import MethodChoice
from kvlab.core.errors import UserError
from kvlab.core.methods import make_method, registered
from kvlab.core.stores import STORES
from kvlab.models.load import prepare
from tests.families import tiny_model

LAYERS, PROMPT, STEPS, PADS = 2, 200, 45, 40
ENOUGH = 10  # steps where nothing waits to be packed; more than any method's buffer here
NO_PROFILE = ("duoattention", "headkv")  # tiny models have none
BUDGETED = [
    name
    for name, method in registered().items()
    if method().needs_budget and method.family != "reference" and name not in NO_PROFILE
]
OWN = {
    "rkv": {"buffer": 8},
    "less": {"weights": "untrained"},
    "kvzap": {"heads": "untrained"},
    "fast-kvzip": {"gates": "untrained"},
    "lukv": {"curves": "even"},
    "triattention": {"queries": "untrained", "buffer": 8},
    "qfilter": {"queries": "untrained"},
    "lazyeviction": {"buffer": 8},
}  # what waits on top must itself fit
SEVERAL = ("h2o", "snapkv", "keepkv", "adakv", "kvzip", "rkv")
STORED = ["native", *(name for name, store in STORES.items() if store.packs and "-" not in name)]


@pytest.mark.parametrize(
    ("text", "unit", "number", "words"),
    [
        ("10%B", "share of bytes", 0.1, "10 % of the bytes"),
        ("2.5% B", "share of bytes", 0.025, "2.5 % of the bytes"),
        ("64MiB", "bytes", 64 * 2**20, "64 MiB"),
        ("1.5 GB", "bytes", 1.5e9, "1.5 GB"),
        ("4096B", "bytes", 4096, "4096 B"),
        ("20%", "fraction", 0.2, "20 %"),
        ("128", "slots", 128, "128 slots"),
    ],
)
def test_a_budget_says_its_unit(text: str, unit: str, number: float, words: str) -> None:
    budget = Budget.parse(text)
    assert (budget.unit, budget.number, budget.description) == (unit, pytest.approx(number), words)
    assert Budget.from_number(budget.number, unit).number == pytest.approx(number)
    choice = MethodChoice(method="h2o", budget=budget.amount)
    assert MethodChoice.model_validate_json(choice.model_dump_json()) == choice
    assert choice.label == f"h2o {words}"


@pytest.mark.parametrize("text", ["0%B", "101%B", "B", "-3MiB", "12TiB", "1e3B", "10%b", "0.2B"])
def test_what_is_no_budget_says_what_one_is(text: str) -> None:
    with pytest.raises(UserError, match="or bytes"):
        Budget.parse(text)


def test_slots_within_bytes_by_counting() -> None:
    """The largest number of slots whose bytes, added up one by one, stay within the size."""
    for native, packed, beside in ((2**30, 40.0, 0), (10, 13.5, 64), (0, 13.5, 0)):
        sizes = Sizes(32, 40, packed, native, beside)
        for size in (200, 999, 5000):
            total, count = float(beside), 0
            while (total := total + (40 if count < native else packed)) <= size:
                count += 1
            assert Budget(f"{size}B").slots(1, sizes) == max(count, 1)


@cache
def lab_model(dtype: torch.dtype) -> PreTrainedModel:
    return prepare(tiny_model("llama", dtype, num_hidden_layers=LAYERS))


def live_bytes(
    method: str, budget: str, dtype: torch.dtype, store: str = "native", **settings: object
) -> tuple[list[int], int]:
    """(live bytes after the prompt and each decode step, bytes of the full cache's keys and values)."""
    ids = torch.randint(3, 97, (2, PROMPT), generator=torch.Generator().manual_seed(5))
    mask = torch.ones_like(ids)
    mask[1, :PADS] = 0
    model, told = lab_model(dtype), []
    cache = make_cache(model, make_method(method, store=store, **OWN.get(method, {}), **settings), budget)
    with torch.inference_mode():
        steps = STEPS if store != "native" else ENOUGH
        for step in range(steps if cache.settings.pipeline.decode else 1 + cache.settings.pipeline.deferred):
            new = (ids * mask) if step == 0 else torch.full((2, 1), 7 + step)
            grown = torch.cat([mask, mask.new_ones(2, step)], 1)
            position = (grown.cumsum(-1) - 1)[:, -new.shape[1] :].clamp_min(0)
            model(new, attention_mask=grown, position_ids=position, past_key_values=cache)
            told.append(cache.memory().live_bytes)
    layer = cache.compressed_layers()[0]
    full = (
        LAYERS * layer.head_index.heads * int(mask.sum()) * 2 * 16 * dtype.itemsize
    )  # layers, heads, tokens, keys and values
    return told[cache.settings.pipeline.deferred :], full


# Every method natively; what codes and scales take is the same whatever the method, so each store has two methods.
PAIRS = [("native", method) for method in BUDGETED] + [
    (store, method) for at, store in enumerate(STORED[1:]) for method in SEVERAL[at % 3 :: 3]
]


@pytest.mark.parametrize(("store", "method"), PAIRS)
def test_live_bytes_never_exceed_a_share(store: str, method: str) -> None:
    both = ((0.5, torch.float32), (0.3, torch.bfloat16))
    # By turns over the methods; each store sees both, as codes take the same whatever they were made of.
    share, dtype = both[BUDGETED.index(method) % 2 if store == "native" else SEVERAL.index(method) // 3 % 2]
    told, full = live_bytes(method, f"{100 * share:g}%B", dtype, store)
    # What a decision at the next pass has not dropped yet is not there to be counted.
    assert max(told) <= share * full, (share, dtype)


@pytest.mark.parametrize("store", ["native", "kivi4", "turbo3"])
@pytest.mark.parametrize("method", ["h2o", "snapkv", "adakv", "less", "pyramidkv"])
def test_live_bytes_never_exceed_a_size(method: str, store: str) -> None:
    told, full = live_bytes(method, "64KiB", torch.bfloat16, store)
    assert max(told) <= 64 * 2**10 < full
    assert told[0] > 0.6 * 64 * 2**10, "and most of it is used"


def test_packed_slots_are_more_for_the_same_bytes() -> None:
    def slots(store: str) -> float:
        cache = make_cache(lab_model(torch.bfloat16), make_method("snapkv", store=store), "40%B")
        with torch.inference_mode():
            lab_model(torch.bfloat16)(torch.full((1, 400), 5), past_key_values=cache)
        return cache.memory().live_slots

    assert slots("kivi4") > 1.3 * slots("native")
