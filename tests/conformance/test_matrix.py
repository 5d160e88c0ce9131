"""Every method x every model family x dtype x a left-padded batch. A registered method is in it by being registered.

`make conformance` (KVLAB_CONFORMANCE=full) takes each pair through all of it. `make test` takes each pair through a
full budget, and by turns under a budget: a third of them as a padded batch beside its row alone, a third in one of
three types and budgets, and a third as a padded batch in passes that methods share (test_shared_pass.py).
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import cache

import pytest
import torch
from transformers import PreTrainedModel

from kvlab.checking.case import walk
from kvlab.core.cache import CompressedCache, make_cache
from kvlab.core.methods import registered
from kvlab.models.load import prepare
from tests.families import DEVICE, EVERY, FAMILIES, cache_for, tiny_model

PROMPT, PADS = 24, 7
STEPS = 3  # passes of a decode, the prompt's among them; two more than the interval where decisions wait for others
FEW = 2  # passes where nothing is decided, so that each decode step is like the first
TURN = 5  # tokens at once behind a decode
# The families that test_families.py has a smaller matrix for join in `make conformance`.
FULL = os.environ.get("KVLAB_CONFORMANCE") == "full"
CHOSEN = EVERY if FULL else FAMILIES
COMPRESSIBLE = [family for family in CHOSEN if family != "mistral-sliding"]
METHODS = list(registered())
# LESS has no place for distances, nor beside learned sinks, and says so (tests/attention/test_alibi.py, test_sinks.py).
WITHOUT_LESS = (*(family for family in CHOSEN if "alibi" in family), "bloom", "mpt", "gpt-oss")
PAIRS = [
    (method, family)
    for family in COMPRESSIBLE
    for method in METHODS
    if (method, family in WITHOUT_LESS) != ("less", True)
]


def turn_of(method: str, family: str) -> int:
    """A number that alternates over methods and over families, for pairs that take turns."""
    return METHODS.index(method) + COMPRESSIBLE.index(family)


# Each method in about a third of the families, each family with about a third of the methods.
PADDED, OTHERS, SHARED = ([pair for pair in PAIRS if FULL or turn_of(*pair) % 3 == third] for third in range(3))


@cache
def lab_model(family: str, dtype: torch.dtype) -> PreTrainedModel:
    return prepare(tiny_model(family, dtype))


def batch(rows: int = 2) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    ids = torch.randint(3, 97, (rows, PROMPT), generator=generator)
    mask = torch.ones_like(ids)
    mask[1:, :PADS] = 0
    return (ids * mask).to(DEVICE), mask.to(DEVICE)


def decode(
    model: PreTrainedModel, cache, ids: torch.Tensor, mask: torch.Tensor, after_step=lambda: None, steps: int = STEPS
) -> torch.Tensor:
    """Logits (rows, steps, vocabulary) of teacher-forced steps after the prompt; the forced tokens are arbitrary."""
    return walk(model, cache, ids, mask, lambda _: after_step(), steps)


def turn(model: PreTrainedModel, cache, mask: torch.Tensor, steps: int = STEPS) -> torch.Tensor:
    """Logits (rows, TURN, vocabulary) of several tokens at once, behind `decode` of a prompt with this mask."""
    seen = torch.cat([mask, mask.new_ones(len(mask), steps - 1 + TURN)], 1)
    position = (seen.cumsum(-1) - 1)[:, -TURN:]
    ids = torch.arange(TURN, device=DEVICE).expand(len(mask), -1) + 10
    with torch.inference_mode():
        given = {"attention_mask": seen, "position_ids": position, "past_key_values": cache}
        return model(ids, **given).logits.float()


def near(ours: torch.Tensor, expected: torch.Tensor, most: float = 1e-4) -> bool:
    """Within `most`, of the logit where that is more: some families have logits of size 10."""
    return bool(((ours - expected).abs() < most * expected.abs().clamp_min(1)).all())


@pytest.mark.parametrize("family", CHOSEN)
def test_full_budget_is_plain_transformers(family: str) -> None:
    """Of a prompt, of a decode step and of several tokens at once behind it."""
    (ids, mask), model, lab = batch(), tiny_model(family), lab_model(family, torch.float32)
    kept = _plain_cache(family)
    plain, more = decode(model, kept, ids, mask, steps=FEW), turn(model, kept, mask, FEW)
    for method in _methods_for(family):
        cache = cache_for(lab, method, 1.0)
        assert near(decode(lab, cache, ids, mask, steps=FEW), plain), method
        assert near(turn(lab, cache, mask, FEW), more), method


def _methods_for(family: str) -> list[str]:
    """All methods; for a model with nothing to compress, those a budget can tell to keep everything."""
    if family not in COMPRESSIBLE:
        return [name for name in METHODS if registered()[name].needs_budget is not False]
    return [method for method, pair_family in PAIRS if pair_family == family]


def _plain_cache(family: str):
    from transformers import DynamicCache

    return DynamicCache(config=lab_model(family, torch.float32).config)


@pytest.mark.parametrize("family", CHOSEN)
def test_full_budget_in_bfloat16_stays_close_to_plain(family: str) -> None:
    ids, mask = batch()
    exact = decode(tiny_model(family), _plain_cache(family), ids, mask, steps=FEW)
    rounded = decode(tiny_model(family, torch.bfloat16), _plain_cache(family), ids, mask, steps=FEW)
    plain_error = (rounded - exact).abs().mean()
    # A third of the methods, by turns over the families; in float32 above each meets each.
    for method in _methods_for(family)[slice(None) if FULL else slice(list(CHOSEN).index(family) % 3, None, 3)]:
        cache = cache_for(lab_model(family, torch.bfloat16), method, 1.0)
        ours = decode(lab_model(family, torch.bfloat16), cache, ids, mask, steps=FEW)
        # Rounding order differs, so the yardstick is the error bfloat16 itself makes.
        assert (ours - exact).abs().mean() < 2 * plain_error + 1e-3, method


# (type, budget, decode steps from one decision to the next): one of them for each pair, by turns. The budget of 0.3 in
# float32 is looked at in the padded batch.
BUDGETS = ((torch.float32, 9, 3), (torch.bfloat16, 9, 1), (torch.bfloat16, 1, 1))


def budget_cases() -> Iterable[tuple[str, str, torch.dtype, float | int, int]]:
    """(method, family, type, budget, every)."""
    for method, family in OTHERS:
        for case in BUDGETS if FULL else (BUDGETS[turn_of(method, family) // 3 % len(BUDGETS)],):
            yield method, family, *case


class WithinBudget:
    """To be called after every step of a decode: nothing is over budget, the newest stays, no token is forgotten."""

    def __init__(
        self, method: str, cache: CompressedCache, mask: torch.Tensor, budget: float | int, every: int
    ) -> None:
        self.method, self.cache, self.every = method, cache, every
        self.pipeline, self.steps = registered()[method]().pipeline(), 0
        lengths = mask.sum(-1)
        self.asked = (
            (lengths.double() * budget + 1e-9).floor()
            if isinstance(budget, float)
            else torch.full_like(lengths, budget)
        )

    def __call__(self) -> None:
        on_top = self.every - 1 + self.pipeline.buffer if self.pipeline.decode else self.steps
        for layer in self.cache.compressed_layers():
            slots = layer.slots  # joined from several tables by each look
            assert (slots.live() <= layer.budget + on_top).all()
            newest = slots.position.masked_fill(~slots.valid, -1).amax(-1)
            assert (newest == layer.tokens_seen[:, None] - 1).all(), "the newest token must stay"
            votes = slots.votes.masked_fill(~slots.valid, 0).sum(-1) + layer.evicted_votes
            assert torch.allclose(votes, layer.tokens_seen[:, None].float()), "every token is in a slot or dropped"
        self.steps += 1
        if registered()[self.method].needs_budget:
            slack = self.every - 1 if self.pipeline.decode else 0
            given = torch.stack([layer.budget.float().mean(-1) for layer in self.cache.compressed_layers()]).mean(0)
            assert (given + slack <= self.asked + 1e-3).all(), "layers and heads may differ, their mean may not"


@pytest.mark.parametrize(
    ("method", "family", "dtype", "budget", "every"),
    budget_cases(),
    ids=lambda part: str(part).removeprefix("torch."),
)
def test_budget_is_never_exceeded(method: str, family: str, dtype: torch.dtype, budget: float, every: int) -> None:
    """And the memory table is what the tensors take."""
    ids, mask = batch()
    cache = cache_for(lab_model(family, dtype), method, budget, compress_every=every)
    within = WithinBudget(method, cache, mask, budget, every)
    logits = decode(lab_model(family, dtype), cache, ids, mask, within, max(STEPS, every + 2))
    assert torch.isfinite(logits).all()
    memory_table_is_what_the_tensors_take(cache)


def memory_table_is_what_the_tensors_take(cache: CompressedCache) -> None:
    for layer, told in zip(cache.compressed_layers(), cache.memory().layers, strict=True):
        allocated = live = 0.0
        for table in layer.tables:
            columns = table.slots.metadata().values()
            alike = [column for column in columns if column.untyped_storage().nbytes() == column.element_size()]
            assert {id(column) for column in alike}.isdisjoint(map(id, table.slots.varying_columns().values()))
            # A number that all slots share belongs to no slot; every other column is counted whole.
            own = [column for column in columns if all(column is not one for one in alike)]
            tensors = [table.slots.keys, table.slots.values, *own]
            slots = sum(tensor.untyped_storage().nbytes() for tensor in tensors)
            beside = sum(tensor.untyped_storage().nbytes() for tensor in table.head_state.values())
            allocated += slots + beside
            live += slots * (table.slots.position >= 0).float().mean().item() + beside
        assert told.allocated_bytes == allocated
        assert told.live_bytes == pytest.approx(live)
        assert told.live_slots == pytest.approx(layer.slots.live().float().mean().item())


@pytest.mark.parametrize(("method", "family"), PADDED)
def test_padded_batch_equals_each_row_alone(method: str, family: str) -> None:
    """And keeps within its budget, both rows at once, also with several tokens at once after compression."""
    ids, mask = batch()
    model = lab_model(family, torch.float32)
    cache = cache_for(model, method, 0.3)
    within = WithinBudget(method, cache, mask, 0.3, 1)
    together = decode(model, cache, ids, mask, within)
    assert torch.isfinite(together).all()
    memory_table_is_what_the_tensors_take(cache)
    more = turn(model, cache, mask)
    assert torch.isfinite(more).all()
    assert cache.get_seq_length() == PROMPT + STEPS - 1 + TURN
    if within.pipeline.decode:
        within()
        assert all((layer.slots.live() <= layer.budget).all() for layer in cache.compressed_layers())
    for row, skip in ((0, 0), (1, PADS)) if FULL else ((1, PADS),):
        own, only = cache_for(model, method, 0.3), mask[row : row + 1, skip:]
        alone = decode(model, own, ids[row : row + 1, skip:], only)
        # exactmerge solves a system for what it merges, which adds to rounding: 1.1e-4 on Llama 4
        most = 1e-4 if family in FAMILIES else 2e-4
        assert near(alone[0], together[row], most)
        assert near(turn(model, own, only)[0], more[row], most)


def test_a_model_that_only_slides_says_so() -> None:
    model = lab_model("mistral-sliding", torch.float32)
    with pytest.raises(ValueError, match="nothing to compress"):
        make_cache(model, "h2o", 0.3)
