"""Low rank and ThinK: what they learn from a prompt is what a plain loop finds; generated tokens stay as they are."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from kvlab.core.cache import make_cache
from kvlab.core.cache.table.packed_table import PackedTable
from kvlab.core.errors import UserError
from kvlab.core.methods import make_method
from kvlab.core.stores import store_of
from kvlab.core.stores.code import query_squares
from tests.stores.test_stores import draw, lab_model

TOKENS, NEW = 90, 30


def packed(store: str, method: str = "full", budget: float = 1.0, new: int = NEW) -> tuple[PackedTable, PackedTable]:
    """The first layer's table in `store` and in the lossless one, after a prompt and `new` tokens."""
    ids, tables = torch.randint(3, 97, (1, TOKENS + new), generator=torch.Generator().manual_seed(2)), []
    for name in (store, "exact"):
        cache = make_cache(lab_model(), make_method(method, store=name), budget)
        with torch.inference_mode():
            for first, last in ((0, TOKENS), *((at, at + 1) for at in range(TOKENS, TOKENS + new))):
                lab_model()(ids[:, first:last], past_key_values=cache)
        tables.append(cache.compressed_layers()[0].tables[0])
    assert all(isinstance(table, PackedTable) for table in tables)
    return tables[0], tables[1]


def in_text(table: PackedTable, side: str) -> Tensor:
    """States (H, tokens, d) in order of the text."""
    slots = table.whole()
    order = slots.in_text()[..., : int(slots.live().max())]
    return getattr(slots, side).gather(2, order[..., None].expand(*order.shape, 16))[0].double()


def unturned(keys: Tensor, back: bool) -> Tensor:
    """Llama's rotation of keys (H, T, 16) by their place, one coordinate pair after the other; `back` reverses it."""
    turned = keys.clone()
    for pair in range(8):
        angle = torch.arange(keys.shape[1]) * 10_000.0 ** (-pair / 8) * (-1 if back else 1)
        x, y = keys[..., pair], keys[..., pair + 8]
        turned[..., pair] = x * angle.cos() - y * angle.sin()
        turned[..., pair + 8] = y * angle.cos() + x * angle.sin()
    return turned


@pytest.mark.parametrize("side", ["keys", "values"])
def test_low_rank_is_the_truncated_svd_of_the_prompt(side: str) -> None:
    """numpy's SVD of the packed slots; keys before rotation. The first 4 slots, the newest 16 and new ones stay."""
    table, exact = packed("low_rank/rank=5")
    ours, expected = in_text(table, side), in_text(exact, side)
    plain = unturned(expected, back=True) if side == "keys" else expected
    for head, states in enumerate(plain):
        middle = states[4 : TOKENS - 16].numpy()
        left, sizes, right = np.linalg.svd(middle, full_matrices=False)
        states[4 : TOKENS - 16] = torch.from_numpy(left[:, :5] * sizes[:5] @ right[:5])
        lost = (sizes[5:] ** 2).sum() / (sizes**2).sum()
        assert lost > 1e-3, (head, lost)
    torch.testing.assert_close(ours, unturned(plain, back=False) if side == "keys" else plain, rtol=0, atol=4e-3)


def test_a_basis_is_counted_once_and_a_full_one_loses_nothing() -> None:
    table, exact = packed("low_rank/rank=16", new=0)
    assert table.part_bytes()["scales"] == 2 * table.slots.keys.shape[1] * 16 * 16 * 2  # keys and values, 16 bits
    assert table.part_bytes()["codes"] == 2 * table.slots.keys.shape[1] * table.room * 16 * 2
    assert (in_text(table, "keys") - in_text(exact, "keys")).abs().max() < 4e-3


def test_think_keeps_the_channels_that_the_last_queries_weigh_most() -> None:
    """Equation 2 by loops over channels, keys and queries, averaged over the query heads of a KV head."""
    width, rows, heads, group = 16, 5, 2, 2
    keys, query = draw(1, heads, 40, width, seed=1), draw(1, heads * group, 12, width, seed=2)
    keys, query = keys * torch.linspace(0.5, 2, width), query * torch.linspace(2, 0.4, width)
    valid, code = torch.ones(1, heads, 40, dtype=torch.bool), store_of("think/pruned=40").keys
    real = torch.ones(1, 12, dtype=torch.bool)
    real[0, 9] = False
    assert code is not None
    learned = replace(code, **code.learn(keys, valid, query_squares(query, real, heads, rows)))
    back = learned.decode(learned.encode(keys, valid), width)
    last = [row for row in range(12) if row != 9][-rows:]
    for head in range(heads):
        score = [
            sum(float(query[0, head * group + g, r, c] * keys[0, head, t, c]) ** 2
                for g in range(group) for r in last for t in range(40))
            for c in range(width)
        ]  # fmt: skip
        kept = sorted(range(width), key=lambda c: -score[c])[: width - int(0.4 * width)]
        assert learned.channels[0, head].tolist() == sorted(kept)
        gone = [c for c in range(width) if c not in kept]
        assert (back[0, head][:, gone] == 0).all()
        torch.testing.assert_close(back[0, head][:, kept], keys[0, head][:, kept], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("side", ["keys", "values"])
def test_gear_adds_the_best_low_rank_part_of_kivis_error(side: str) -> None:
    """numpy's SVD of what KIVI loses; a later slot's error is smaller than KIVI's too."""
    states, real = draw(1, 2, 64, 32, seed=4) * torch.linspace(0.2, 3, 32), torch.ones(1, 2, 64, dtype=torch.bool)
    gear, kivi = (getattr(store_of(name), side) for name in ("gear2/rank=3", "kivi2"))
    code = replace(gear, **gear.learn(states, real, None))
    plain, back = (one.decode(one.encode(states, real), 32) for one in (kivi, code))
    for head in range(2):
        left, sizes, right = np.linalg.svd((states - plain)[0, head].double().numpy())
        expected = plain[0, head].double() + torch.from_numpy(left[:, :3] * sizes[:3] @ right[:3])
        torch.testing.assert_close(back[0, head].double(), expected, rtol=0, atol=5e-3)
    later = draw(1, 2, 64, 32, seed=5) * torch.linspace(0.2, 3, 32)
    lost = [(one.decode(one.encode(later, real), 32) - later).square().sum((2, 3)) for one in (kivi, code)]
    assert (lost[1] < 0.98 * lost[0]).all()


@pytest.mark.parametrize("store", ["low_rank", "think"])
def test_native_slots_of_a_method_that_evicts_while_decoding_leave_no_holes_behind(store: str) -> None:
    """Generated tokens are never packed, and the table does not grow by those that left."""
    table, _ = packed(store, "h2o", 0.3, new=40)
    assert table.width - table.room <= table.occupied + table.scheme.lot


def test_settings_of_other_stores_are_refused() -> None:
    assert store_of("low_rank/rank=24").values.rank == 24
    for wrong, why in (
        ("kivi4/rank=8", "no rank: remove rank=8, or choose gear4 or gear2"), ("low_rank/rank=0", "rank .1 to 64"),
        ("low_rank/pruned=40", "or choose think"), ("think/pruned=100", "pruned .1 to 99"),
    ):  # fmt: skip
        with pytest.raises(UserError, match=why):
            store_of(wrong)
