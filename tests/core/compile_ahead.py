"""Compiles the fused kernel as its launcher would launch it on a GPU that is not here; prints what came out as JSON.

`python -m tests.core.compile_ahead` in a process of its own: the interpreter that the other tests use cannot compile,
and which of the two Triton is, it settles when it is imported.
"""

from __future__ import annotations

import json
import re
import sys
from contextlib import redirect_stdout
from io import StringIO
from typing import Any

import torch

HEADS, SLOTS = 2, 300


class PretendDriver:
    """As much of Triton's driver as choosing a target takes."""

    def __init__(self, architecture: int) -> None:
        self.architecture = architecture

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", self.architecture, 32)

    def get_current_device(self) -> int:
        return self.architecture  # compiled kernels are kept by device

    def get_current_stream(self, device: int) -> int:
        return 0


def compile_case(architecture: int, shared: int, dtype: str, head_dim: int, group: int, bias: bool) -> list[dict]:
    """What the compiler says of both kernels.

    Shared memory, registers and spilled bytes a thread, and the products that are taken in 32 bits.
    """
    from triton.runtime import driver

    from kvlab.attention import ragged_kernel

    driver.set_active(PretendDriver(architecture))
    ragged_kernel.shared_memory = lambda device: shared
    told, kind = [], getattr(torch, dtype)
    for kernel in (ragged_kernel._stretch, ragged_kernel._together):
        kernel.run = _only_compiling(type(kernel).run.__get__(kernel), told)
    query, keys = torch.zeros(1, HEADS, group, head_dim, dtype=kind), torch.zeros(1, HEADS, SLOTS, head_dim, dtype=kind)
    ragged_kernel.ragged_attention(query, keys, keys, torch.zeros(1, HEADS, SLOTS) if bias else None, 1.0)
    return told


def _only_compiling(run: Any, told: list[dict]) -> Any:
    def compiling(*given: Any, grid: Any, warmup: bool, **named: Any) -> None:
        with redirect_stdout(StringIO()) as assembler:  # TRITON_DUMP_PTXAS_LOG=1
            compiled = run(*given, grid=grid, warmup=True, **named)
        log = assembler.getvalue()
        registers, spilled = (re.findall(rf, log) for rf in (r"Used (\d+) registers", r"(\d+) bytes spill stores"))
        told.append(
            {
                "shared": compiled.metadata.shared,
                "registers": int(registers[0]),
                "spilled": int(spilled[0]),
                "narrow": re.findall(r"%\S+ = arith.muli .* : \S*i32\b", compiled.asm["ttir"]),
            }
        )

    return compiling


if __name__ == "__main__":
    print(json.dumps([compile_case(**case) for case in json.loads(sys.argv[1])]))
