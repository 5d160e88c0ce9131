"""The Triton kernel against plain torch, in Triton's interpreter where there is no GPU."""

from __future__ import annotations

import os
from types import ModuleType

import pytest
import torch

from kvlab.attention import seen as seen_module
from kvlab.attention.kernels import reference
from kvlab.attention.seen import PassSeen

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture(scope="module")
def kernel() -> ModuleType:
    pytest.importorskip("triton", reason="the package triton is not installed: pip install kvlab[kernels]")
    if DEVICE == "cpu":
        assert os.environ["TRITON_INTERPRET"] == "1", "tests/conftest.py turns the interpreter on before triton loads"
    from kvlab.attention import ragged_kernel

    return ragged_kernel


def draw(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


@pytest.mark.parametrize(("dtype", "close"), [(torch.float32, 2e-5), (torch.float16, 4e-3), (torch.bfloat16, 3e-2)])
@pytest.mark.parametrize(("group", "slots", "dim"), [(1, 5, 16), (4, 64, 32), (3, 130, 24), (8, 300, 128)])
def test_equals_plain_torch(
    kernel: ModuleType, group: int, slots: int, dim: int, dtype: torch.dtype, close: float
) -> None:
    """Any group, any number of slots, widths that are no power of two; log mass and invalid slots."""
    query, keys, values = (draw(n, 2, 2, size, dim).to(dtype) for n, size in ((1, group), (2, slots), (3, slots)))
    bias = draw(4, 2, 2, slots)
    bias[0, 1, slots // 2 :] = -torch.inf
    for given in (None, bias):
        found = kernel.ragged_attention(query, keys, values, given, dim**-0.5)
        expected = reference(query, keys, values, given, dim**-0.5)
        for ours, theirs in zip(found, expected, strict=True):
            torch.testing.assert_close(ours.float(), theirs.float(), rtol=close, atol=close)
        torch.testing.assert_close(found[1].sum(-1), torch.ones_like(found[1].sum(-1)), rtol=1e-5, atol=1e-5)


def test_reads_part_of_a_longer_table_in_place(kernel: ModuleType) -> None:
    """A table with room to grow: the first slots of every head, whose strides are those of the whole."""
    query, keys, values, bias = draw(1, 2, 3, 2, 16), draw(2, 2, 3, 90, 16), draw(3, 2, 3, 90, 16), draw(4, 2, 3, 90)
    part = [tensor[:, :, :70] for tensor in (keys, values, bias)]
    found = kernel.ragged_attention(query, *part, 0.25)
    for ours, theirs in zip(found, reference(query, *part, 0.25), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=2e-5, atol=2e-5)


def test_a_head_without_slots_gets_nothing(kernel: ModuleType) -> None:
    query, keys, values = draw(1, 1, 2, 2, 16), draw(2, 1, 2, 80, 16), draw(3, 1, 2, 80, 16)
    bias = torch.zeros(1, 2, 80, device=DEVICE)
    bias[0, 1] = -torch.inf
    output, mass, _ = kernel.ragged_attention(query, keys, values, bias, 0.25)
    assert (output[0, 1] == 0).all()
    assert (mass[0, 1] == 0).all()
    torch.testing.assert_close(mass[0, 0].sum(-1), torch.ones(2, device=DEVICE))


def test_large_logits_do_not_overflow(kernel: ModuleType) -> None:
    query, keys, values = 60 * draw(1, 1, 1, 2, 16), 60 * draw(2, 1, 1, 150, 16), draw(3, 1, 1, 150, 16)
    found = kernel.ragged_attention(query, keys, values, None, 0.25)
    assert all(torch.isfinite(part).all() for part in found)
    torch.testing.assert_close(found[0], reference(query, keys, values, None, 0.25)[0], rtol=1e-4, atol=1e-4)


def test_a_decode_pass_is_the_same_through_the_kernel(kernel: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """What scorers may ask after `attend_one` does not depend on who did the attention."""
    query, keys, values, bias = draw(1, 2, 6, 1, 16), draw(2, 2, 3, 90, 16), draw(3, 2, 3, 90, 16), draw(4, 2, 3, 90)
    monkeypatch.setattr(seen_module, "one_query_kernel", lambda device: None)
    plain = PassSeen(query, keys, bias[:, :, None], None, 0.25)
    expected = (plain.attend_one(values), plain.last_mass(), plain.last_logits())
    monkeypatch.setattr(seen_module, "one_query_kernel", lambda device: kernel.ragged_attention)
    fused = PassSeen(query, keys, bias[:, :, None], None, 0.25)
    found = (fused.attend_one(values), fused.last_mass(), fused.last_logits())
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.shape == theirs.shape
        torch.testing.assert_close(ours, theirs, rtol=2e-5, atol=2e-5)
