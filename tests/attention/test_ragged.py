"""Heads and rows of unequal length: what is dropped is freed, and nothing else changes."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import PreTrainedModel

from kvlab.core.attention import layer_pass
from kvlab.core.cache import CompressedCache, make_cache
from kvlab.core.cache.buckets import regroup
from kvlab.core.cache.buckets.regroup import fewest_groups
from kvlab.core.methods import registered
from kvlab.core.table_growth import BLOCK, room_to_grow
from kvlab.models.load import prepare
from tests.families import cache_for, tiny_model

LONG, PADS = 400, 150
UNEQUAL: list[tuple[str, dict]] = [
    ("adakv", {}),
    ("gvote", {}),
    ("exactmerge", {}),
    ("pyramidinfer", {}),
    ("d2o", {"variant": "code"}),
    ("compose", {"score": "h2o", "allocate": "adakv", "settle": "keepkv"}),
    ("compose", {"score": "zsmerge", "allocate": "adakv", "settle": "zsmerge"}),
]
# Each new query's attention is needed, so that decoding goes through its kernel; others call sdpa.
SCORES_EVERY_STEP = ("pyramidinfer", "d2o", "compose")


@cache
def model() -> PreTrainedModel:
    return prepare(tiny_model("llama"))


def prompt(rows: int = 2) -> tuple[Tensor, Tensor]:
    ids = torch.randint(3, 97, (rows, LONG), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    mask[1:2, :PADS] = 0
    return ids * mask, mask


def passes(
    slots: CompressedCache, lengths: tuple[int, ...], rows: int = 2, after: Callable[[], None] = lambda: None
) -> Tensor:
    """Logits of the prompt's last token and of everything after it, fed `lengths` tokens at a time.

    Calls `after` behind each pass.
    """
    ids, mask = prompt(rows)
    slots.expect(ids.shape[1])
    with torch.inference_mode():
        position = (mask.cumsum(-1) - 1).clamp_min(0)
        logits = [model()(ids, attention_mask=mask, position_ids=position, past_key_values=slots).logits[:, -1:]]
        after()
        for step, count in enumerate(lengths):
            mask = torch.cat([mask, torch.ones(rows, count, dtype=torch.long)], 1)
            more = torch.full((rows, count), 9 + step)
            position = (mask.cumsum(-1) - 1)[:, -count:]
            logits.append(model()(more, attention_mask=mask, position_ids=position, past_key_values=slots).logits)
            after()
    return torch.cat(logits, 1)


def in_one_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(regroup, "MOST_PADDING", 1e9)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 500), min_size=1, max_size=7), st.floats(1, 1.5))
def test_groups_are_the_fewest_that_waste_little(lengths: list[int], most: float) -> None:
    groups = fewest_groups(lengths, most)
    assert sorted(index for group in groups for index in group) == list(range(len(lengths)))
    assert _padded(lengths, groups) <= most * sum(lengths) + 1e-6
    for fewer in _splits(sorted(lengths, reverse=True), len(groups) - 1):
        assert sum(len(group) * group[0] for group in fewer) > most * sum(lengths) - 1e-6


def _padded(lengths: list[int], groups: list[list[int]]) -> int:
    return sum(len(group) * max(lengths[index] for index in group) for group in groups)


def _splits(falling: list[int], count: int) -> list[list[list[int]]]:
    """Every split of a list into `count` runs, none empty."""
    if count <= 1:
        return [[falling]] if count == 1 else []
    return [
        [falling[:first], *rest] for first in range(1, len(falling)) for rest in _splits(falling[first:], count - 1)
    ]


@pytest.mark.parametrize(("method", "options"), UNEQUAL)
def test_several_tables_give_what_one_gives(method: str, options: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    """Decode steps, a second turn of several tokens, and decode steps again."""
    apart = cache_for(model(), method, 0.2, **options)
    split = passes(apart, (1, 1, 5, 1, 1))
    assert all(len(layer.buckets) > 1 for layer in apart.compressed_layers()), "the example has nothing to split"
    in_one_table(monkeypatch)
    together = cache_for(model(), method, 0.2, **options)
    assert (passes(together, (1, 1, 5, 1, 1)) - split).abs().max() < 1e-4
    for layer, other in zip(apart.compressed_layers(), together.compressed_layers(), strict=True):
        assert len(other.buckets) == 1
        assert torch.equal(layer.budget, other.budget)
        assert torch.equal(layer.per_head(lambda s: s.live()), other.per_head(lambda s: s.live()))
        assert torch.allclose(layer.evicted_votes, other.evicted_votes)
        for name in ("position", "votes", "valid"):
            assert _by_position(layer.slots, name) == _by_position(other.slots, name), name


@pytest.mark.parametrize(("method", "options"), [one for one in UNEQUAL if one[0] in SCORES_EVERY_STEP])
def test_unequal_lengths_are_the_same_through_the_fused_kernel(
    method: str, options: dict, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The backend that CUDA uses, in Triton's interpreter: same logits, same slots."""
    pytest.importorskip("triton", reason="the package triton is not installed: pip install kvlab[kernels]")
    if torch.cuda.is_available():
        pytest.skip(
            "the interpreter is for machines without CUDA; there tests/attention/test_ragged_kernel.py runs compiled"
        )
    from kvlab.core.attention.triton_decode import ragged_attention

    plain = cache_for(model(), method, 0.2, **options)
    expected = passes(plain, (1, 5, 1))
    calls = []

    def counted(*given):
        calls.append(given[1].shape[2])
        return ragged_attention(*given)

    monkeypatch.setattr(layer_pass, "one_query_kernel", lambda device: counted)
    fused = cache_for(model(), method, 0.2, **options)
    assert (passes(fused, (1, 5, 1)) - expected).abs().max() < 1e-4
    assert len(set(calls)) > 1, "tables of several lengths went through the kernel"
    for layer, other in zip(plain.compressed_layers(), fused.compressed_layers(), strict=True):
        assert torch.equal(layer.slots.position, other.slots.position)
        assert torch.equal(layer.slots.valid, other.slots.valid)


def _by_position(slots, name: str) -> list[dict[int, float]]:
    flat = zip(*(getattr(slots, part).flatten(0, 1) for part in ("position", name, "valid")), strict=True)
    return [dict(zip(p[v].tolist(), x[v].tolist(), strict=True)) for p, x, v in flat]


@pytest.mark.parametrize("method", [name for name in registered() if name not in ("compose", "full")])
def test_allocated_is_live_and_little_more(method: str) -> None:
    """At most 1.05 times what is live, and one block a head: after the prompt, while decoding, after a second turn."""
    slots = cache_for(model(), method, 0.2)

    def look() -> None:
        for told, layer in zip(slots.memory().layers, slots.compressed_layers(), strict=True):
            room = BLOCK * sum(table.slot_bytes() * table.slots.position[..., 0].numel() for table in layer.tables)
            assert told.allocated_bytes <= 1.05 * told.live_bytes + room, method

    passes(slots, (1, 1, 3, 1), after=look)


def test_equal_heads_stay_in_one_table() -> None:
    slots = make_cache(model(), "snapkv", 0.2)
    with torch.inference_mode():
        model()(prompt()[0], past_key_values=slots)
    for layer in slots.compressed_layers():
        assert layer.head_index.whole
        assert layer.tables[0].is_dense, "nothing needs a mask"


def test_a_growing_table_is_copied_rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    """Room comes by the block (5 %) and 2 %: a table of 400 slots is copied once in 28 steps and never holds more."""
    slots = make_cache(model(), "full")
    table_ids, steps = set(), 150
    with torch.inference_mode():
        model()(prompt(1)[0], past_key_values=slots)
        for _ in range(steps):
            model()(torch.tensor([[9]]), past_key_values=slots)
            table = slots.compressed_layers()[0].tables[0]
            table_ids.add(table.slots.keys.data_ptr())
            assert table.capacity <= 1.05 * table.width + BLOCK
    assert len(table_ids) <= 1 + -(-steps // room_to_grow(prompt(1)[0].shape[1]))


@pytest.mark.parametrize("method", ["adakv", "gvote"])
def test_beams_move_between_tables(method: str) -> None:
    """Rows repeated and permuted: each goes on as the row it came from."""
    slots, plain = cache_for(model(), method, 0.2), make_cache(model(), method, 0.2)
    passes(slots, (1, 1)), passes(plain, (1, 1))
    slots.batch_repeat_interleave(2)
    slots.reorder_cache(torch.tensor([3, 0, 1, 1]))
    mask = prompt()[1]
    mask = torch.cat([mask, torch.ones(2, 3, dtype=torch.long)], 1)
    with torch.inference_mode():
        expected = model()(
            torch.full((2, 1), 5), attention_mask=mask, position_ids=mask.sum(-1, True) - 1, past_key_values=plain
        ).logits
        source = torch.tensor([1, 0, 0, 0])
        moved = model()(
            torch.full((4, 1), 5),
            attention_mask=mask[source],
            position_ids=mask[source].sum(-1, True) - 1,
            past_key_values=slots,
        ).logits
    assert (moved - expected[source]).abs().max() < 1e-4
    for layer, other in zip(slots.compressed_layers(), plain.compressed_layers(), strict=True):
        assert torch.equal(layer.budget, other.budget[source])
        assert torch.allclose(layer.evicted_votes, other.evicted_votes[source])


@pytest.mark.parametrize("method", ["snapkv", "adakv", "gvote", "zsmerge", "pyramidkv"])
def test_the_prompt_never_takes_more_than_one_uncompressed_layer(method: str) -> None:
    """Before a layer runs, those before it are compressed; its own table and the new ones are its peak."""
    slots, before = cache_for(model(), method, 0.2), []
    layers = slots.compressed_layers()
    for layer in layers:
        attend = layer.attend
        layer.attend = lambda *given, attend=attend: before.append(slots.memory().allocated_bytes) or attend(*given)
    with torch.inference_mode():
        model()(prompt(1)[0], past_key_values=slots)
    for index, layer in enumerate(layers):
        whole = LONG * layer.head_index.heads * layer.tables[0].slot_bytes()
        compressed = [other.table_bytes() for other in layers[:index]]
        assert before[index] == sum(compressed) + whole
        assert layer.peak_bytes == whole + layer.table_bytes()
        assert layer.table_bytes() < whole
