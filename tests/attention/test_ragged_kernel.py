"""The Triton kernel against plain torch, in Triton's interpreter where there is no GPU."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from types import ModuleType

import pytest
import torch

from kvlab.core.attention import kernels, layer_pass
from kvlab.core.attention.kernels import reference
from kvlab.core.attention.pass_view import PassView
from kvlab.core.errors import UserError
from tests.cache.kernels import DEVICE, kernel_module


@pytest.fixture(scope="module")
def kernel() -> ModuleType:
    return kernel_module("kvlab.core.attention.triton_decode")


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


@pytest.mark.parametrize("far", ["slots", "heads"])
def test_reads_beyond_two_to_the_31_numbers(kernel: ModuleType, far: str) -> None:
    """Slots or heads so far apart that 32 bits cannot count the numbers between, which nobody touches."""
    if DEVICE == "cuda" and torch.cuda.mem_get_info()[0] < 12 * 2**30:
        pytest.skip("needs 10 GB of the GPU's memory")
    heads, slots, dim = (1, 3, 16) if far == "slots" else (2, 3, 16)
    apart = 2**30 + 8 if far == "slots" else 2**31 + 8
    strides = (0, 0, apart, 1) if far == "slots" else (0, apart, dim, 1)
    spread = [
        torch.empty(2**31 + 128, dtype=torch.float16, device=DEVICE).as_strided((1, heads, slots, dim), strides)
        for _ in range(2)
    ]
    query = draw(1, 1, heads, 2, dim).half()
    for number, table in enumerate(spread):
        table.copy_(draw(2 + number, 1, heads, slots, dim))
    close = [table.contiguous() for table in spread]
    assert close[0].stride() != spread[0].stride()
    for ours, theirs in zip(
        kernel.ragged_attention(query, *spread, None, 0.25), reference(query, *close, None, 0.25), strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=4e-3, atol=4e-3)


def test_large_logits_do_not_overflow(kernel: ModuleType) -> None:
    query, keys, values = 60 * draw(1, 1, 1, 2, 16), 60 * draw(2, 1, 1, 150, 16), draw(3, 1, 1, 150, 16)
    found = kernel.ragged_attention(query, keys, values, None, 0.25)
    assert all(torch.isfinite(part).all() for part in found)
    torch.testing.assert_close(found[0], reference(query, keys, values, None, 0.25)[0], rtol=1e-4, atol=1e-4)


def test_a_decode_pass_is_the_same_through_the_kernel(kernel: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """What scorers may ask after attention of one query does not depend on who did the attention."""
    query, keys, values, bias = draw(1, 2, 6, 1, 16), draw(2, 2, 3, 90, 16), draw(3, 2, 3, 90, 16), draw(4, 2, 3, 90)
    monkeypatch.setattr(layer_pass, "one_query_kernel", lambda device: None)
    plain = PassView(query, keys, bias[:, :, None], None, 0.25)
    expected = (plain.attend(values, every_step=True), plain.last_mass(), plain.last_logits())
    monkeypatch.setattr(layer_pass, "one_query_kernel", lambda device: kernel.ragged_attention)
    fused = PassView(query, keys, bias[:, :, None], None, 0.25)
    found = (fused.attend(values, every_step=True), fused.last_mass(), fused.last_logits())
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.shape == theirs.shape
        torch.testing.assert_close(ours, theirs, rtol=2e-5, atol=2e-5)


class TestWhereItCannotBeMade:
    """Plain torch gives the result, one sentence is logged, and nobody tries again."""

    @pytest.fixture(autouse=True)
    def _as_it_was(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        monkeypatch.setattr(kernels, "_failed", False)
        monkeypatch.setattr(kernels, "find_spec", lambda name: True)
        monkeypatch.delenv(kernels.SWITCH, raising=False)
        kernels.one_query_kernel.cache_clear()
        yield
        kernels.one_query_kernel.cache_clear()

    def _break(self, monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
        def launch(*given: object) -> None:
            raise error

        stand_in = ModuleType("kvlab.core.attention.triton_decode")
        stand_in.ragged_attention = launch
        monkeypatch.setitem(sys.modules, stand_in.__name__, stand_in)

    @pytest.mark.parametrize(
        "error",
        [
            RuntimeError("Failed to find C compiler. Please specify via CC environment variable.\nMore."),
            subprocess.CalledProcessError(1, ["gcc", "main.c"]),
            UserError("The fused attention kernel does not fit 48 KiB of shared memory at head_dim 512."),
            ImportError("libcuda.so.1: cannot open shared object file"),
        ],
    )
    def test_plain_torch_goes_on(
        self, error: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        self._break(monkeypatch, error)
        there = torch.device("cuda")
        given = draw(1, 1, 2, 2, 16), draw(2, 1, 2, 9, 16), draw(3, 1, 2, 9, 16), draw(4, 1, 2, 9), 0.25
        kernel = kernels.one_query_kernel(there)
        assert kernel is not None
        for ours, theirs in zip(kernel(*given), reference(*given), strict=True):
            torch.testing.assert_close(ours, theirs)
        assert kernels.one_query_kernel(there) is None
        (said,) = caplog.messages
        assert "gcc, python3-dev" in said and "KVLAB_KERNELS=off" in said and "\n" not in said

    def test_a_full_device_is_no_reason(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._break(monkeypatch, torch.OutOfMemoryError("out of memory"))
        kernel = kernels.one_query_kernel(torch.device("cuda"))
        assert kernel is not None
        with pytest.raises(torch.OutOfMemoryError):
            kernel(draw(1, 1, 2, 2, 16), draw(2, 1, 2, 9, 16), draw(3, 1, 2, 9, 16), None, 0.25)
        assert kernels.one_query_kernel(torch.device("cuda")) is kernel

    def test_switched_off(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(kernels.SWITCH, "off")
        assert kernels.one_query_kernel(torch.device("cuda")) is None
