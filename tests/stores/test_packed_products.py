"""Attention to packed slots without decoding them first: the same numbers as decoding, for every store."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from kvlab.core.contract.rotary import Rotary
from kvlab.core.stores import STORES, turbo
from kvlab.core.stores.bit_packing import pack_bits
from kvlab.core.stores.quantized_states import PackedStates
from kvlab.core.stores.unpack_kernel import unpack_kernel
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
    products, whole = states.products(query, columns), states.whole()
    values = replace(states, turn=None)  # they are never turned
    total, decoded, expected = values.weighted_sum(mass, columns), values.whole(), torch.zeros(2, 2, 3, WIDTH)
    for place, slot in enumerate(range(columns.start, columns.stop)):
        for row in range(3):
            dot = (query[:, :, row] * whole[:, :, slot]).sum(-1)
            torch.testing.assert_close(products[:, :, row, place], dot, rtol=1e-4, atol=1e-4)
            expected[:, :, row] += mass[:, :, row, place, None] * decoded[:, :, slot]
    torch.testing.assert_close(total, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
@pytest.mark.parametrize("count", [1, 7, 8, 33, 64])
def test_unpack_kernel_gives_the_level_of_every_code(bits: int, count: int) -> None:
    unpack = unpack_kernel()
    if unpack is None:
        pytest.skip("numba is not installed here")
    codes = torch.randint(0, 2**bits, (2, 3, count), generator=torch.Generator().manual_seed(count))
    levels = torch.arange(2**bits).float() - 0.5
    assert unpack(pack_bits(codes, bits), bits, count, levels).equal(codes - 0.5)


@pytest.mark.parametrize("name", [name for name in PACKING if isinstance(STORES[name].keys, turbo.Rotated)])
def test_torch_and_the_compiled_loop_decode_alike(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    code = STORES[name].keys
    assert code is not None
    coded = code.encode(draw(1, 2, ROOM, WIDTH), torch.ones(1, 2, ROOM, dtype=torch.bool))
    compiled = code.decode(coded, WIDTH)
    monkeypatch.setattr(turbo, "unpack_kernel", lambda: None)
    assert code.decode(coded, WIDTH).equal(compiled)
