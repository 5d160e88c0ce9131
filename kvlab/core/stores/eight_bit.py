"""Eight bits per number and one scale per slot: e4m3 floats or integers; or floats without a scale."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from kvlab.core.stores.code import Code, Coded, half

E4M3 = torch.float8_e4m3fn
LARGEST = {"fp8": torch.finfo(E4M3).max, "int8": 127.0}
LEAST_SCALE = 2.0**-24  # smallest positive float16


@dataclass(frozen=True)
class Plain(Code):
    """Numbers as they are, larger ones clamped: in float8 e4m3, to 448 (vLLM's keys in turboquant_k8v4), or float16."""

    kind: Literal["fp8", "fp16"]
    group: int = 1
    shared: tuple[str, ...] = ()
    scales: tuple[str, ...] = ()

    def encode(self, states: Tensor, valid: Tensor) -> dict[str, Tensor]:
        """One or two bytes per number."""
        states = states.float().masked_fill(~valid[..., None], 0.0)
        if self.kind == "fp16":
            return {"codes": half(states)}
        return {"codes": states.clamp(-LARGEST["fp8"], LARGEST["fp8"]).to(E4M3).view(torch.uint8)}

    def decode(self, coded: Coded, width: int) -> Tensor:
        return (coded["codes"].view(E4M3) if self.kind == "fp8" else coded["codes"]).float()


@dataclass(frozen=True)
class Eight(Code):
    """`fp8`: float8 e4m3 (4 exponent bits, 3 mantissa bits); `int8`: integers from -127 to 127.

    Numbers are divided by a scale: the slot's largest number over the largest representable one. Inference engines use
    one calibrated scale per tensor; a scale per slot costs 16 bits and needs no calibration.
    """

    kind: str
    group: int = 1
    shared: tuple[str, ...] = ()
    scales: tuple[str, ...] = ("scale",)

    def encode(self, states: Tensor, valid: Tensor) -> dict[str, Tensor]:
        """One byte per number."""
        states = states.float().masked_fill(~valid[..., None], 0.0)
        scale = half((states.abs().amax(-1, keepdim=True) / LARGEST[self.kind]).clamp_min(LEAST_SCALE))
        scaled = (states / scale.float()).clamp(-LARGEST[self.kind], LARGEST[self.kind])
        codes = scaled.to(E4M3).view(torch.uint8) if self.kind == "fp8" else scaled.round().to(torch.int8)
        return {"codes": codes, "scale": scale}

    def decode(self, coded: Coded, width: int) -> Tensor:
        codes = coded["codes"].view(E4M3) if self.kind == "fp8" else coded["codes"]
        return codes.float() * coded["scale"].float()
