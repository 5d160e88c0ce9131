"""Eight bits a number and a scale a slot: e4m3 floats, and whole numbers."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kvlab.stores.code import Coded, half

E4M3 = torch.float8_e4m3fn
LARGEST = {"fp8": torch.finfo(E4M3).max, "int8": 127.0}
LEAST_SCALE = 2.0**-24  # the least number that 16 bits hold


@dataclass(frozen=True)
class Eight:
    """`fp8`: float8 e4m3 (4 bits of exponent, 3 of mantissa); `int8`: whole numbers from -127 to 127.

    Divided by a scale, the slot's largest number / the largest that is held. Inference engines freeze one scale for a
    whole tensor, which has to be calibrated; a scale a slot costs 16 bits and needs nothing to be known beforehand.
    """

    kind: str
    group: int = 1
    shared: tuple[str, ...] = ()
    scales: tuple[str, ...] = ("scale",)

    def encode(self, states: Tensor, valid: Tensor) -> dict[str, Tensor]:
        """One byte a number."""
        states = states.float().masked_fill(~valid[..., None], 0.0)
        scale = half((states.abs().amax(-1, keepdim=True) / LARGEST[self.kind]).clamp_min(LEAST_SCALE))
        scaled = (states / scale.float()).clamp(-LARGEST[self.kind], LARGEST[self.kind])
        codes = scaled.to(E4M3).view(torch.uint8) if self.kind == "fp8" else scaled.round().to(torch.int8)
        return {"codes": codes, "scale": scale}

    def decode(self, coded: Coded, width: int) -> Tensor:
        """(B, H, S, width) float32."""
        codes = coded["codes"].view(E4M3) if self.kind == "fp8" else coded["codes"]
        return codes.float() * coded["scale"].float()
