"""MorphKV: a cache of constant size, refined at every step by the attention of the newest queries."""

from dataclasses import dataclass
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from kvlab.core.contract import LowestScore, Method, Pipeline, Preset, Slots, register
from kvlab.core.methods.scorers.wrapper import WindowScorer


@dataclass(frozen=True)
class FusedWindow(WindowScorer):
    """Score = sum or maximum over the last `window` queries of their attention to slots older than the window.

    A query's logits are summed over the group before the softmax, which is over the older slots alone (the authors'
    code). It keeps the logits of each query as they were; here kept queries look at the current slots again, which
    gives the same for slots that stayed.
    """

    over: Literal["sum", "max"] = "sum"

    def _scored(self, slots: Slots, logits: Tensor) -> dict[str, Tensor]:
        """Scores from `logits` (B, H, G, r, S), -inf at hidden slots."""
        newest = slots.position.masked_fill(~slots.valid, -1).amax(-1, keepdim=True).int()
        older = slots.valid & (slots.position <= newest - self.window)
        # nan_to_num: rows before the text see nothing, nor do any where there are no older slots
        share = torch.softmax(logits.sum(2).masked_fill(~older[:, :, None], -torch.inf), -1).nan_to_num(0.0)
        return {"score": share.sum(2) if self.over == "sum" else share.amax(2)}


@register
class MorphKV(Method):
    """Keeps the newest tokens, and those older ones that the newest queries attend to, decided at every step.

    The queries' attention is summed or maximized over them. The prompt is compressed by the same rule. The authors'
    code evicts while generating only; its `evict_after` is `buffer`.
    """

    name = "morphkv"
    family = "eviction"
    title = "MorphKV"
    keeps_window = True

    window: int = Field(32, ge=1, description="last queries that vote; these tokens always stay")
    over: Literal["sum", "max"] = Field("sum", description="of a token's attention from these queries")
    buffer: int = Field(1, ge=1, description="generated tokens kept before each decision")

    paper = "https://arxiv.org/abs/2503.00979"
    presets = {
        "paper": Preset(
            "the sum over recent tokens, decided at every step",
            {
                "over": ("sum", "morphkv/models/patch_llama.py, sum_fused"),
                "buffer": (1, "the paper evicts at every step; patch_llama.py, evict_after 1"),
            },
        ),
        "code": Preset(
            "the README's run of LongGenBench",
            {
                "over": ("max", "README.md, --morph_type max_fused"),
                "buffer": (1, "the paper evicts at every step; patch_llama.py, evict_after 1"),
                "window": (200, "README.md, -ws 200 -mc 4000"),
            },
        ),
    }
    reasons = {
        "window": "that of the published LongBench runs (ws32); 200 of a short prompt would be the budget",
        "over": "the paper names both",
    }

    def pipeline(self) -> Pipeline:
        score = FusedWindow(window=self.window, over=self.over)
        return Pipeline(score, select=LowestScore(recent=self.window), buffer=self.buffer)
