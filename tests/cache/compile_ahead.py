"""Compiles the kernels as their launchers would launch them on a GPU that is not here; prints what came out as JSON.

`python -m tests.cache.compile_ahead` in a process of its own: the interpreter that the other tests use cannot compile,
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

from kvlab.core.contract.in_place import EVICT, NEAREST, RESIDUAL, SIMILAR, SPREAD, Work

HEADS, SLOTS = 2, 300
KNOWN: dict[str, dict] = {}  # what came of each kernel


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

    from kvlab.core.attention import triton_decode

    driver.set_active(PretendDriver(architecture))
    triton_decode.shared_memory = lambda device: shared
    told, kind = [], getattr(torch, dtype)
    for kernel in (triton_decode._stretch, triton_decode._combine_parts):
        kernel.run = _only_compiling(kernel, told)
    query, keys = torch.zeros(1, HEADS, group, head_dim, dtype=kind), torch.zeros(1, HEADS, SLOTS, head_dim, dtype=kind)
    triton_decode.ragged_attention(query, keys, keys, torch.zeros(1, HEADS, SLOTS) if bias else None, 1.0)
    return told


def compile_decision(architecture: int, decides: int, dtype: str, head_dim: int, numbers: str) -> list[dict]:
    """Compile the decision kernel for one decision (`kvlab.core.cache.layers.dispatch`) and one integer type."""
    from triton.runtime import driver

    from kvlab.core.cache import triton_inplace

    driver.set_active(PretendDriver(architecture))
    told: list[dict] = []
    triton_inplace._decide.run = _only_compiling(triton_inplace._decide, told)
    triton_inplace.decide(some_work(decides, getattr(torch, dtype), head_dim, getattr(torch, numbers)))
    return told


def some_work(kind: int, dtype: torch.dtype, head_dim: int, numbers: torch.dtype) -> Work:
    """A decision with the columns that its methods have, all zeros."""

    def column(dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.zeros(1, HEADS, SLOTS, dtype=dtype)

    scored = {"score": column()} | ({} if kind == EVICT else {"votes": column(numbers)})
    asked = torch.zeros(1, HEADS, 2, dtype=torch.int64)
    averaged = {name: column() for name in ("log_mass", "average")} | {"asked": asked}
    own: dict[int, dict[str, Any]] = {
        EVICT: scored,
        RESIDUAL: scored | {"residual": column(torch.bool), "decay": 0.98},
        NEAREST: {"votes": column(numbers), "alpha": 0.9, "least": 0.8} | averaged,
        SIMILAR: scored | {"threshold": torch.zeros(1, HEADS), "least": 0.5},
        SPREAD: scored | {"reach": 16, "drawn": True, "stream": 2**62},
    }
    many = torch.zeros(1, HEADS, dtype=torch.int64)
    return Work(
        kind=kind,
        keys=torch.zeros(1, HEADS, SLOTS, head_dim, dtype=dtype),
        values=torch.zeros(1, HEADS, SLOTS, head_dim, dtype=dtype),
        position=column(numbers),
        mass=column(),
        tokens_seen=many[0, :1],
        recent=many,
        sinks=many,
        evicted_votes=torch.zeros(1, HEADS),
        **own[kind],
    )


def _only_compiling(kernel: Any, told: list[dict]) -> Any:
    """`kernel.run` that compiles and launches nothing; what it compiled before it knows."""
    run = type(kernel).run.__get__(kernel)

    def compiling(*given: Any, grid: Any, warmup: bool, **named: Any) -> None:
        with redirect_stdout(StringIO()) as assembler:  # TRITON_DUMP_PTXAS_LOG=1
            compiled = run(*given, grid=grid, warmup=True, **named)
        if compiled.hash not in KNOWN:
            log = assembler.getvalue()
            registers, spilled = (re.findall(rf, log) for rf in (r"Used (\d+) registers", r"(\d+) bytes spill stores"))
            KNOWN[compiled.hash] = {
                "shared": compiled.metadata.shared,
                "registers": int(registers[0]),
                "spilled": int(spilled[0]),
                "narrow": re.findall(r"%\S+ = arith.muli .* : \S*i32\b", compiled.asm["ttir"]),
            }
        told.append(KNOWN[compiled.hash])

    return compiling


if __name__ == "__main__":
    every = json.loads(sys.argv[1])
    print(json.dumps([(compile_decision if "decides" in case else compile_case)(**case) for case in every]))
