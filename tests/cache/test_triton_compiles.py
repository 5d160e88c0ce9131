"""The fused kernel fits the GPUs people have: compiled ahead of time for two generations, no GPU needed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from itertools import product
from pathlib import Path

import pytest
import torch

from kvlab.core.attention.kernels import LaunchShape, launch_shape, shared_bytes
from kvlab.core.errors import UserError

KIB = 1024
# What a kernel may ask for: 99 KiB on 3090, 4090, A10, L4, L40S; 163 on an A100; 227 on an H100.
SMALL, A100, H100 = 99 * KIB, 163 * KIB, 227 * KIB
WIDTHS, GROUPS = (64, 80, 96, 128, 256), range(1, 9)
TYPES = ("bfloat16", "float16", "float32")
needs_triton = pytest.mark.skipif(
    find_spec("triton") is None, reason="the package triton is not installed: pip install kvlab[kernels]"
)


@pytest.mark.parametrize("limit", [SMALL, A100, H100])
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("width", WIDTHS)
def test_a_shape_fits_every_device(width: int, dtype: str, limit: int) -> None:
    kind = getattr(torch, dtype)
    for group in GROUPS:
        found = launch_shape(width, kind, limit, group)
        # The tiles of keys and values that are under way at once, and nothing else counted.
        assert 2 * (found.stages - 1) * found.block * width * kind.itemsize < limit
        assert found.block in (16, 32, 64) and found.warps in (4, 8)
        assert launch_shape(width, kind, 2 * limit, group).block >= found.block, "more room, smaller tiles"


def test_what_a_3090_could_not_hold_is_made_smaller() -> None:
    """64 slots and three stages took 140.5 KiB at head_dim 256 in bfloat16, and fitted at 128."""
    assert launch_shape(128, torch.bfloat16, SMALL) == LaunchShape(block=64, stages=3, warps=4)
    assert launch_shape(256, torch.bfloat16, SMALL).block < 64
    assert shared_bytes(256, torch.bfloat16, 64, 3) > 140 * KIB


def test_nothing_fits_says_so() -> None:
    with pytest.raises(UserError, match="does not fit 16 KiB of shared memory at head_dim 256 in float32"):
        launch_shape(256, torch.float32, 16 * KIB)


WHOLE_GRID = os.environ.get("KVLAB_KERNEL_GRID") == "full"  # `make kernels`
HALVES = ("bfloat16", "float16")


def _cases() -> list[dict]:
    """One of each kernel the compiler makes: of the widths 65 to 128, of the groups 2 to 8, and of both 16-bit types
    with the same loads it makes the same. The whole grid on demand.
    """
    cases = []
    for architecture, shared in ((80, SMALL), (90, H100)):
        device = {"architecture": architecture, "shared": shared}
        slices = [
            *product(["bfloat16"], (64, 80, 256), (1, 7)),
            *product(["float16"], (128, 256), (8,)),
            *product(["float32"], (64, 128) if architecture == 80 else (), (4,)),
        ]
        for dtype, width, group in product(HALVES, WIDTHS, GROUPS) if WHOLE_GRID else slices:
            for bias in (False, True) if WHOLE_GRID else (group > 1,):
                cases.append(device | {"dtype": dtype, "head_dim": width, "group": group, "bias": bias})
    return cases


def _decisions() -> list[dict]:
    """The decision kernel for everything that may become of a slot; of the widths 65 to 128 it makes the same."""
    slices = [
        *product((90,), range(5), ["bfloat16"], (256,), ["int16"]),
        *product((80,), range(1, 5), ["float16"], (64,), ["int32"]),
    ]
    grid = product((80, 90), range(5), HALVES, WIDTHS, ("int16", "int32"))
    names = ("architecture", "decides", "dtype", "head_dim", "numbers")
    return [dict(zip(names, case, strict=True)) for case in (grid if WHOLE_GRID else slices)]


def _compiled(cases: list[dict], room: Path) -> list[list[dict]]:
    environment = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_DUMP_PTXAS_LOG": "1"}
    environment["TRITON_CACHE_DIR"] = str(room)  # what lies in a cache tells no registers
    command = [sys.executable, "-m", "tests.cache.compile_ahead", json.dumps(cases)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@needs_triton
def test_compiled_kernels_fit(tmp_path: Path) -> None:
    """Shared memory inside the device's and inside what was reckoned with; registers without spills; long offsets."""
    cases = _cases()
    for case, kernels in zip(cases, _compiled(cases, tmp_path), strict=True):
        width, kind, group = case["head_dim"], getattr(torch, case["dtype"]), case["group"]
        chosen = launch_shape(width, kind, case["shared"], group)
        stretch, together = kernels
        assert stretch["shared"] <= shared_bytes(width, kind, chosen.block, chosen.stages, group), case
        for kernel, warps in ((stretch, chosen.warps), (together, 8)):
            assert kernel["spilled"] == 0, case
            assert kernel["shared"] <= case["shared"], case
            assert len(kernel["narrow"]) == 1, f"only a program's first slot is counted in 32 bits: {kernel['narrow']}"
            assert kernel["registers"] * 32 * warps <= 65536 // 2, f"fewer than two programs at once: {case}"


@needs_triton
def test_compiled_decisions_fit(tmp_path: Path) -> None:
    """A head is one program of four warps: a few sums in shared memory, registers without spills, long offsets."""
    cases = _decisions()
    for case, (kernel,) in zip(cases, _compiled(cases, tmp_path), strict=True):
        assert kernel["shared"] <= 4 * KIB, case
        assert kernel["spilled"] == 0, case
        assert not kernel["narrow"], f"an offset in 32 bits: {kernel['narrow']}"
        assert kernel["registers"] * 32 * 4 <= 65536 // 2, f"fewer than two programs at once: {case}"
