"""Attention to packed slots without decoding them first: the same numbers as decoding, for every store."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from kvlab.core.contract.rotary import Rotary
from kvlab.core.stores import STORES
from kvlab.core.stores.quantized_states import PackedStates, dense_states
from tests.stores.test_stores import PACKING, draw, learned

ROOM, NATIVE, WIDTH = 64, 5, 40


@pytest.mark.parametrize("name", PACKING)
@pytest.mark.parametrize("columns", [slice(0, ROOM + NATIVE), slice(3, 45), slice(50, ROOM + 2), slice(ROOM + 1, 68)])
def test_products_and_sums_are_those_of_the_decoded_slots(name: str, columns: slice) -> None:
    """Loops over heads and slots of what `whole` decodes."""
    store = STORES[name]
    assert store.keys is not None
    mean = draw(2, 2, 1, WIDTH) if store.centred else None
    keys, real = draw(2, 2, ROOM, WIDTH), torch.ones(2, 2, ROOM, dtype=torch.bool)
    code, angle = learned(store.keys, keys, real), torch.arange(ROOM).expand(2, 2, -1)
    turn = (Rotary(torch.logspace(0, -3, WIDTH // 2)).turn, angle) if store.unrotated else ()
    states = PackedStates(code, code.encode(keys, real), draw(2, 2, NATIVE, WIDTH), ROOM, mean, *turn)
    query, mass = draw(2, 2, 3, WIDTH), draw(2, 2, 3, columns.stop - columns.start).abs()
    products, whole = states.products(query, columns), dense_states(states)
    values = replace(states, turn=None)  # they are never turned
    total, decoded, expected = values.weighted_sum(mass, columns), dense_states(values), torch.zeros(2, 2, 3, WIDTH)
    for place, slot in enumerate(range(columns.start, columns.stop)):
        for row in range(3):
            dot = (query[:, :, row] * whole[:, :, slot]).sum(-1)
            torch.testing.assert_close(products[:, :, row, place], dot, rtol=1e-4, atol=1e-4)
            expected[:, :, row] += mass[:, :, row, place, None] * decoded[:, :, slot]
    torch.testing.assert_close(total, expected, rtol=1e-4, atol=1e-4)
