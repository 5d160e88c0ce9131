"""llama.cpp's formats of a quantized cache (`--cache-type-k`, `--cache-type-v`): q8_0, q5_1 and q4_0.

A block is 32 consecutive channels of a slot: one step, for q5_1 also a minimum, and a code per channel. Bytes are those
of ggml's reference (ggml-quants.c, quantize_row_q8_0_ref and its neighbours): steps are rounded to 16 bits after codes
were computed with them, and two codes of 4 bits that share a byte are 16 channels apart.

llama.cpp turns keys and values by a Hadamard matrix before (pull request 21038, src/llama-kv-cache.cpp): of 64 x 64 for
values, for keys of the largest power of two that divides head_dim, and only if 64 divides it. LLAMA_ATTN_ROT_DISABLE=1
is `rotation=0` here.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import pad

from kvlab.core.stores.code import Code, Coded, half, pack_bits, unpack_bits

BLOCK = 32
LEAST_ROTATION = 64  # llama.cpp's smallest matrix
Format = Literal["q8_0", "q5_1", "q4_0"]
LARGEST: dict[Format, int] = {
    "q8_0": 127,
    "q5_1": 31,
    "q4_0": -8,
}  # the code of the number that a block's step is computed from


@dataclass(frozen=True)
class Blocks(Code):
    """One of ggml's formats. A width that is no multiple of 32, which llama.cpp refuses, is filled by its last channel.

    `rotation`: most rows of the Hadamard matrix, the largest power of two that also divides the width is taken; 0: not
    rotated; None: as in llama.cpp, where `widest` sets no limit.
    """

    format: Format
    widest: bool = False
    rotation: int | None = None
    group: int = 1
    shared: tuple[str, ...] = ()
    scales: tuple[str, ...] = ("step", "least")

    def encode(self, states: Tensor, valid: Tensor) -> dict[str, Tensor]:
        """Codes (B, H, S, bytes), steps and minima (B, H, S, blocks); q5_1 has its fifth bits in `high`."""
        states = self._rotated(states.float().masked_fill(~valid[..., None], 0.0))
        if filling := -states.shape[-1] % BLOCK:
            states = pad(states.flatten(0, 1), (0, filling), mode="replicate").unflatten(0, states.shape[:2])
        blocks = states.unflatten(-1, (-1, BLOCK))
        if self.format == "q5_1":
            least = blocks.amin(-1, keepdim=True)
            step, scaled = _scaled(blocks - least, blocks.amax(-1, keepdim=True) - least, LARGEST["q5_1"])
            codes = (scaled + 0.5).trunc().clamp(0, 31).to(torch.uint8)
            high = pack_bits((codes >> 4).flatten(-2), 1)
            return {"codes": _nibbles(codes & 15), "high": high, "step": step, "least": half(least[..., 0])}
        # The first of several equally far from 0, with its sign: q4_0's step is negative if it is positive.
        furthest = blocks.gather(-1, blocks.abs().argmax(-1, keepdim=True))
        if self.format == "q4_0":
            step, scaled = _scaled(blocks, furthest, LARGEST["q4_0"])
            return {"codes": _nibbles((scaled + 8.5).trunc().clamp(0, 15).to(torch.uint8)), "step": step}
        step, scaled = _scaled(blocks, furthest.abs(), LARGEST["q8_0"])
        size = scaled.abs()
        whole = size.floor()
        rounded = (whole + (size - whole >= 0.5)) * scaled.sign()  # halves away from 0, as C's roundf
        return {"codes": rounded.to(torch.int8).flatten(-2), "step": step}

    def decode(self, coded: Coded, width: int) -> Tensor:
        return self._rotated(self._blocks(coded, width))

    def products(self, coded: Coded, query: Tensor) -> Tensor:
        """Dot products (B, H, r, S) float32 of `query` (B, H, r, d), which is rotated instead of all slots."""
        return self._rotated(query) @ self._blocks(coded, query.shape[-1]).mT

    def weighted_sum(self, coded: Coded, mass: Tensor, width: int) -> Tensor:
        """`mass` (B, H, r, S) float32 times the decoded states (B, H, r, width); only the sum is rotated back."""
        return self._rotated(mass @ self._blocks(coded, width))

    def _blocks(self, coded: Coded, width: int) -> Tensor:
        """What blocks hold (B, H, S, width) float32, still rotated."""
        step = coded["step"].float()[..., None]
        if self.format == "q8_0":
            return (coded["codes"].float().unflatten(-1, (-1, BLOCK)) * step).flatten(-2)[..., :width]
        count = step.shape[-2] * BLOCK
        codes = unpack_bits(coded["codes"], 4, count).unflatten(-1, (-1, BLOCK // 2, 2)).mT.flatten(-2)
        if self.format == "q4_0":
            return ((codes - 8).float() * step).flatten(-2)[..., :width]
        codes = codes + 16 * unpack_bits(coded["high"], 1, count).view_as(codes)
        return (codes.float() * step + coded["least"].float()[..., None]).flatten(-2)[..., :width]

    def _rotated(self, states: Tensor) -> Tensor:
        """`states` (..., d) times the matrix, which is its own inverse."""
        size = self.matrix_size(states.shape[-1])
        if size < 2:
            return states
        return (states.unflatten(-1, (-1, size)) @ hadamard(size, states.device)).flatten(-2)

    def matrix_size(self, width: int) -> int:
        """Rows of the Hadamard matrix for states of this width; 0 or 1: not rotated."""
        divisor = width & -width
        if self.rotation is None:
            most = divisor if self.widest else LEAST_ROTATION
            return min(divisor, most) if divisor >= LEAST_ROTATION else 0
        return min(divisor, 1 << self.rotation.bit_length() - 1) if self.rotation else 0


def _scaled(blocks: Tensor, number: Tensor, code: int) -> tuple[Tensor, Tensor]:
    """(16-bit steps (..., blocks) by which `number` (..., blocks, 1) has this code, `blocks` in steps not rounded)."""
    step = number / code
    return half(step[..., 0]), blocks * torch.where(step == 0, 0, 1 / step)


def _nibbles(codes: Tensor) -> Tensor:
    """Pack codes (..., blocks, 32) below 16: channel j of a block and channel j + 16 share a byte."""
    return pack_bits(codes.unflatten(-1, (2, BLOCK // 2)).mT.flatten(-3), 4)


@lru_cache(maxsize=16)
def hadamard(size: int, device: torch.device) -> Tensor:
    """Sylvester's Hadamard matrix (size, size) float32 of a power of two, divided by the root of its size."""
    matrix = torch.ones(1, 1)
    while len(matrix) < size:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    return (matrix / size**0.5).to(device)
