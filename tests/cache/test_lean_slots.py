"""A slot carries what its method needs and no more, in as few bytes as the text allows."""

from __future__ import annotations

import pytest
import torch

from kvlab.core.attention.layer_handoff import AttentionCall
from kvlab.core.budget import Budget
from kvlab.core.cache.layers.compressed_layer import CompressedLayer
from kvlab.core.cache.settings import LayerSettings
from kvlab.core.contract import pipeline, slot_columns
from kvlab.core.contract.view import KEY_LENGTH, is_constant
from kvlab.core.methods import make_method
from tests.cache.layers import draw
from tests.methods.merging import ROTARY, Layer, prompt

TOKENS, SHARE = 2048, 0.2
MINI, WIDE = (32, torch.float32), (128, torch.bfloat16)  # head_dim and type
# What a method whose table stays as long as its budget may take of what was promised: share x the full cache.
BARS = [
    *((name, MINI, 1.05) for name in ("window", "streaming-llm", "h2o", "pyramidinfer", "cam", "d2o", "zsmerge")),
    ("pyramid-pool", MINI, 1.05),
    ("keepkv", MINI, 1.05),  # position, votes, log mass and a running average: 12 bytes, none of which follows
    *((name, WIDE, 1.02) for name in ("window", "streaming-llm", "h2o")),
]


@pytest.mark.parametrize(("method", "shape", "most"), BARS)
def test_a_table_takes_what_was_promised(method: str, shape: tuple[int, torch.dtype], most: float) -> None:
    """After a prompt and a few decode steps, all tensors counted: metadata, room, and state beside the slots."""
    dim, dtype = shape
    settings = LayerSettings(make_method(method).pipeline(), Budget(SHARE), num_layers=1)
    layer = CompressedLayer(0, settings)
    for seed, rows in enumerate((TOKENS, 1, 1, 1)):
        query, key, value = draw(seed, 3, 1, 2, rows, dim).to(dtype).unbind(0)
        keys, values = layer.update(key, value)
        layer.attend(query, keys, values, AttentionCall(dim**-0.5))
    (table,) = layer.tables
    tensors = [table.slots.keys, table.slots.values, *table.slots.metadata().values(), *table.head_state.values()]
    held = {tensor.data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}
    shared = sum(tensor.element_size() for tensor in tensors if is_constant(tensor))
    assert sum(held.values()) == layer.table_bytes() + shared
    assert layer.table_bytes() <= most * SHARE * TOKENS * 2 * 2 * dim * dtype.itemsize


@pytest.mark.parametrize("method", ["h2o", "zsmerge", "keepkv", "cam", "d2o", "pyramid-pool", "pyramidinfer"])
def test_wide_numbers_change_nothing(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """16 bits throughout, 32 bits throughout, and 32 bits from the middle of decoding on: the same slots."""
    tokens, steps, made = 60, 8, []
    for short in (10**4, 0, tokens + 4):
        monkeypatch.setattr(slot_columns, "SHORT_TEXT", short)
        layer = Layer(make_method(method), 16, ROTARY)
        layer.feed(*prompt(0, tokens))
        for step in range(steps):
            layer.feed(*prompt(100 + step, 1))
        made.append(layer)
    assert [layer.slots.position.dtype for layer in made] == [torch.int16, torch.int32, torch.int32]
    first, *others = ([layer.table(head) for head in range(2)] for layer in made)
    for other in others:
        for left, right in zip(first, other, strict=True):
            assert left.keys() == right.keys()
            for position, slot in left.items():
                for name, number in slot.items():
                    torch.testing.assert_close(number, right[position][name], rtol=0, atol=0, check_dtype=False)


def test_numbers_get_wide_before_they_are_too_many() -> None:
    """The token after the last that 16 bits can count."""
    layer = Layer(make_method("h2o"), 16)
    layer.feed(*prompt(0, 20))
    layer.layer.cumulative_length = slot_columns.SHORT_TEXT - 1
    layer.layer.tokens_seen.fill_(slot_columns.SHORT_TEXT - 1)
    places = []
    for step in range(3):
        layer.feed(*prompt(100 + step, 1))
        places.append((int(layer.slots.position.max()), layer.slots.position.dtype))
    most = slot_columns.SHORT_TEXT
    assert places == [(most - 1, torch.int16), (most, torch.int32), (most + 1, torch.int32)]


def test_log_mass_follows_from_votes() -> None:
    """ZSMerge's alpha * log(votes) and KeepKV's log(votes) are worked out; the mass that exact merging fits is held."""
    for method, factor in (("zsmerge", 0.6), ("keepkv", None), ("d2o", 0.0)):
        layer = Layer(make_method(method), 16, ROTARY)
        layer.feed(*prompt(0, 60))
        (table,) = layer.layer.tables
        assert is_constant(table.slots.log_mass) == (factor is not None)
        if factor is not None:
            merged = table.slots.votes.float()
            assert (merged > 1).any() or method == "d2o"
            torch.testing.assert_close(table.visible().log_mass, factor * merged.log()[:, :, : table.width])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("method", ["keepkv", "d2o"])
def test_lengths_of_keys_are_current_and_change_nothing(
    method: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a slot is wide enough to hold them: after a prompt, merges, a second turn, and another batch."""
    dim, made = slot_columns.LENGTHS_FROM // 2 // dtype.itemsize, []
    for least in (slot_columns.LENGTHS_FROM, slot_columns.LENGTHS_FROM + 1):
        monkeypatch.setattr(pipeline, "LENGTHS_FROM", least)
        settings = LayerSettings(make_method(method).pipeline(), Budget(16), num_layers=1)
        layer, held = CompressedLayer(0, settings), least <= 2 * dim * dtype.itemsize
        for seed, rows in enumerate((60, 1, 1, 1, 1, 5, 1, 1)):
            query, key, value = draw(seed, 3, 2, 2, rows, dim).unbind(0)
            keys, values = layer.update((key + 2).to(dtype), value.to(dtype))
            layer.attend(query.to(dtype), keys, values, AttentionCall(dim**-0.5))
            if seed == 5:
                layer.batch_repeat_interleave(2)
                layer.batch_select_indices(torch.tensor([1, 3]))
            for table in layer.tables:
                assert (KEY_LENGTH in table.slots.extra) == held
                if held:
                    there = table.valid()
                    measured = table.slots.keys.float().square().sum(-1).sqrt()
                    torch.testing.assert_close(table.slots.extra[KEY_LENGTH][there], measured[there])
        assert any((table.slots.votes > 1).any() for table in layer.tables)
        made.append(layer.slots)
    ours, plain = made
    assert (ours.valid == plain.valid).all() and (ours.votes == plain.votes)[ours.valid].all()
    torch.testing.assert_close(ours.keys[ours.valid], plain.keys[plain.valid])
