"""Scissorhands: what was unimportant to the last queries stays unimportant."""

from dataclasses import dataclass

import torch
from pydantic import Field
from torch import Tensor

from kvlab.core.contract import AttentionPass, DecodeCompression, LowestScore, Pipeline, Preset, Recent, Slots, register
from kvlab.core.methods.eviction.window_methods import RKV_BUFFER, SHARED_HEADS
from kvlab.core.methods.scorers.window import query_mass
from kvlab.core.methods.scorers.wrapper import WindowScorer


@dataclass(frozen=True)
class Persistence(WindowScorer):
    """Score = -(number of the last `window` queries whose attention to the slot was below 1 / slots they saw).

    The attention is the mean over the group. Only queries that saw the slot count. Of equal scores the older goes
    first.
    """

    def update(self, slots: Slots, layer_pass: AttentionPass, first: bool) -> dict[str, Tensor]:
        """`score` (B, H, S) float32 on the first prefill; later tokens keep score 0."""
        if not first:
            return {}
        rows = min(self.window, layer_pass.num_new)
        newest = slots.position.masked_fill(~slots.valid, -1).amax((1, 2))  # (B,)
        time = newest[:, None] - torch.arange(rows - 1, -1, -1, device=newest.device)
        return {"score": _score(slots, query_mass(slots, layer_pass, rows).mean(2), time)}

    def recall(self, slots: Slots, layer_pass: AttentionPass) -> dict[str, Tensor]:
        """`score` (B, H, S) float32 from the newest queries."""
        mass = layer_pass.recalled_mass(slots.position, self.window).mean(2)
        return {"score": _score(slots, mass, layer_pass.recalled_queries(self.window)[1])}


def _score(slots: Slots, mass: Tensor, time: Tensor) -> Tensor:
    """Scores (B, H, S) from the attention `mass` (B, H, r, S) of queries at `time` (B, r)."""
    saw = slots.valid[:, :, None] & (slots.position[:, :, None] <= time[:, None, :, None])
    share = 1 / saw.sum(-1, keepdim=True).clamp_min(1)
    newness = (slots.position + 1) / (time.amax(-1)[:, None, None] + 2)  # below 1
    return newness - ((mass < share) & saw).sum(2)


@register
class Scissorhands(DecodeCompression):
    """Evicts the tokens that most of the last queries gave less than an equal share of their attention.

    With `decode=budget` it counts anew, with the newest queries, whenever `buffer` tokens have gathered; the original
    evicts half of the budget at a time.
    """

    name = "scissorhands"
    family = "eviction"
    title = "Scissorhands"

    window: int = Field(400, ge=1, description="last queries that count (history window)")
    recent: Recent = 10

    paper = "https://arxiv.org/abs/2305.17118"
    presets = {
        "paper": Preset(
            "a fixed budget while generating",
            {
                "decode": ("budget", "abstract: the cache stays within a fixed budget"),
            },
            beyond=(
                "The paper's window and recent tokens could not be confirmed. It evicts half of the budget at a time. "
                f"{SHARED_HEADS}"
            ),
        ),
    }
    reasons = {
        "window": "our choice: long enough that a token is not judged by a few queries",
        "recent": "our choice: too few queries have seen the newest tokens",
        "decode": "as with the other methods of this kind; `budget` keeps the newest queries too, which takes bytes",
        "buffer": RKV_BUFFER,
    }

    def pipeline(self) -> Pipeline:
        select = LowestScore(recent=self.recent)
        return self.with_decoding(Pipeline(Persistence(window=self.window), select=select, decode=False))
