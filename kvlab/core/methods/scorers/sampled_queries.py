"""Sampled future queries, from a Gaussian of the layer's hidden states."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from kvlab.core.contract import AttentionPass, Rotary

RowMask = Tensor
ROW_BLOCK = 4096


@dataclass(frozen=True)
class FutureQueries:
    """GVote's samples (Algorithm 1, lines 4-7): states from N(mean, diag variance), projected, rotated ahead.

    Statistics are per channel over the given rows. Queries for the `n_future` positions after the prompt are rotated by
    the mean cosines and sines of those positions (`average`, the paper: shortens high frequencies, to 0.69 on average
    over 64 positions), or sample by sample at evenly spaced positions (`sampled`: keeps lengths). All batch rows share
    one draw of noise from the layer's generator, so that samples depend neither on the place in the batch nor on
    padding.
    """

    samples: int = 8
    n_future: int = 64
    rope_mode: Literal["average", "sampled"] = "average"

    def draw(self, layer_pass: AttentionPass, rows: RowMask, start: Tensor) -> Tensor:
        """Rotated queries (B, Hq, samples, d); statistics over `rows` (B, q), first future position `start` (B,)."""
        states = layer_pass.hidden_states
        assert states is not None, "a scorer that needs hidden states is given them inside a model"
        return self.draw_from(layer_pass, *moments(states, rows), states.dtype, start)

    def draw_from(
        self, layer_pass: AttentionPass, mean: Tensor, deviation: Tensor, dtype: torch.dtype, start: Tensor
    ) -> Tensor:
        """The same for given statistics (B, hidden) float32; the model's states have `dtype`."""
        source = random_source(layer_pass, mean.device)
        noise = torch.randn(self.samples, mean.shape[-1], generator=source, device=mean.device)
        sampled = mean[:, None] + deviation[:, None] * noise
        query = layer_pass.project_queries(sampled.to(dtype), start + self.n_future // 2).float()
        if layer_pass.rotary is None:
            return query
        query = layer_pass.rotary.lengthened(query)
        if self.rope_mode == "average":
            return average_turn(query, layer_pass.rotary, start, self.n_future)
        offset = (torch.arange(self.samples, device=query.device) * 2 + 1) * self.n_future // (2 * self.samples)
        position = (start[:, None] + offset)[:, None]  # (B, 1, samples)
        return layer_pass.rotary.turn(query, position.expand(query.shape[:3]))


def moments(states: Tensor, rows: RowMask) -> tuple[Tensor, Tensor]:
    """(mean, standard deviation), each (B, hidden) float32, of `states` (B, q, hidden) over `rows` (B, q) bool.

    The variance divides by n - 1. Computed in blocks; states outside `rows` are ignored, NaN included.
    """
    count = rows.sum(-1, keepdim=True)
    mean = _sum(states, rows, torch.zeros((), device=states.device), 1) / count.clamp_min(1)
    variance = _sum(states, rows, mean[:, None], 2) / (count - 1).clamp_min(1)
    return mean, variance.sqrt()


def average_turn(states: Tensor, rotary: Rotary, start: Tensor, count: int) -> Tensor:
    """Rotate `states` (B, H, n, d) by the mean cosine and sine of positions start .. start + count - 1, float32."""
    frequencies = rotary.inverse_frequencies.to(states.device)
    position = start[:, None] + torch.arange(count, device=states.device)  # (B, count)
    angle = position[..., None].float() * frequencies
    cosine = angle.cos().mean(1)[:, None, None]
    sine = angle.sin().mean(1)[:, None, None]
    return rotary.rotated(states, cosine, sine)


def _sum(states: Tensor, rows: RowMask, centre: Tensor, power: int) -> Tensor:
    total = states.new_zeros(states.shape[0], states.shape[-1], dtype=torch.float32)
    for block, real in zip(states.split(ROW_BLOCK, 1), rows.split(ROW_BLOCK, 1), strict=True):
        total += (block.float() - centre).pow(power).masked_fill(~real[..., None], 0.0).sum(1)
    return total


def random_source(layer_pass: AttentionPass, device: torch.device) -> torch.Generator:
    """The pass's own generator; without one, the layer's number is the seed."""
    if layer_pass.generator is not None:
        return layer_pass.generator
    layer = getattr(layer_pass.module, "layer_idx", None) or 0
    return torch.Generator(device=device).manual_seed(layer)
