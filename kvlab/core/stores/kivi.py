"""KIVI (arXiv 2402.02750): keys are quantized per channel over groups of slots, values per token over channels.

Both between the minimum and maximum of a group: x ~ code * step + least, step = range / (2^bits - 1), with step and
least in 16 bits. Keys have channels that are large in every token, values do not (section 3.2). The authors' code
divides by a range of 0 if a group is constant; here such a group is stored exactly.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from kvlab.core.stores.code import Code, Coded, half, pack_bits, unpack_bits

GROUP = 32  # as in the paper


@dataclass(frozen=True)
class PerChannel(Code):
    """Keys: each channel of `group` consecutive slots has a step and a minimum."""

    bits: int
    group: int = GROUP
    shared: tuple[str, ...] = ("step", "least")
    scales: tuple[str, ...] = ("step", "least")

    def encode(self, states: Tensor, valid: Tensor) -> dict[str, Tensor]:
        """Codes packed along a slot's channels; steps and minima (B, H, S / group, d)."""
        groups, real = (tensor.unflatten(2, (-1, self.group)) for tensor in (states.float(), valid[..., None]))
        codes, step, least = _quantised(groups, real, 3, self.bits)
        codes = codes.masked_fill(~real, 0).flatten(2, 3)
        return {"codes": pack_bits(codes, self.bits), "step": step[:, :, :, 0], "least": least[:, :, :, 0]}

    def decode(self, coded: Coded, width: int) -> Tensor:
        codes = unpack_bits(coded["codes"], self.bits, width).unflatten(2, (-1, self.group))
        step, least = (coded[name].float()[:, :, :, None] for name in ("step", "least"))
        return torch.addcmul(least, codes.float(), step).flatten(2, 3)


@dataclass(frozen=True)
class PerToken(Code):
    """Values: each slot has a step and a minimum for every `channels` channels.

    A width not divisible by 32 is cut into the fewest equal parts of at most 32 channels (80 into 27, 27, 26).
    """

    bits: int
    channels: int = GROUP
    group: int = 1
    shared: tuple[str, ...] = ()
    scales: tuple[str, ...] = ("step", "least")

    def encode(self, states: Tensor, valid: Tensor) -> dict[str, Tensor]:
        """Codes packed along a slot's channels; steps and minima (B, H, S, parts)."""
        width = states.shape[-1]
        parts = self._parts(states.float())
        real = valid[..., None, None]
        codes, step, least = _quantised(parts, real, 4, self.bits)
        codes = codes.masked_fill(~real, 0).flatten(3)[..., :width]
        return {"codes": pack_bits(codes, self.bits), "step": step[..., 0], "least": least[..., 0]}

    def decode(self, coded: Coded, width: int) -> Tensor:
        codes = self._parts(unpack_bits(coded["codes"], self.bits, width).float())
        step, least = (coded[name].float()[..., None] for name in ("step", "least"))
        return torch.addcmul(least, codes, step).flatten(3)[..., :width]

    def _parts(self, states: Tensor) -> Tensor:
        """Split into (B, H, S, parts, channels); the last part is padded by repeating its last channel, which keeps its
        range.
        """
        width = states.shape[-1]
        count = -(-width // self.channels)
        size = -(-width // count)
        if padding := count * size - width:
            states = pad(states.flatten(0, 1), (0, padding), mode="replicate").unflatten(0, states.shape[:2])
        return states.unflatten(-1, (count, size))


def _quantised(states: Tensor, real: Tensor, dim: int, bits: int) -> tuple[Tensor, Tensor, Tensor]:
    """(codes, step, least), codes computed for the 16-bit step and least, of the `real` numbers along `dim`."""
    low = states.masked_fill(~real, torch.inf).amin(dim, keepdim=True)
    high = states.masked_fill(~real, -torch.inf).amax(dim, keepdim=True)
    nothing = torch.isinf(low)  # no number is real
    low = low.masked_fill(nothing, 0.0)
    high = high.masked_fill(nothing, 0.0)
    most = 2**bits - 1
    step = half((high - low) / most)
    least = half(low)
    divisor = torch.where(step > 0, step, 1).float()
    return ((states - least.float()) / divisor).round_().clamp_(0, most).to(torch.int32), step, least
