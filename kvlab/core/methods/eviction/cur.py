"""CurDKV: keep the tokens with long keys and long values, compared with their neighbours'."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from kvlab.core.contract import AttentionPass, LowestScore, Method, Pipeline, Preset, Slots, register, round_relatively
from kvlab.core.contract.method import Sinks
from kvlab.core.methods.scorers.wrapper import PromptScorer

TINY = 1e-6


@dataclass(frozen=True)
class SquaredLengths(PromptScorer):
    """Score = |k|^2 |v|^2, each over its sum in the token's part of `part` tokens of the text (CurDKV).

    Squared lengths stand for leverage scores. `of` chooses keys, values, their product or mean; scores sum to 1 over a
    head. They are rounded to .02 % before, so that repeated tokens have equal ones. Prompt only.
    """

    costs_no_step: ClassVar[bool] = True

    of: Literal["product", "mean", "key", "value"] = "product"
    part: int = 16

    def update(self, slots: Slots, layer_pass: AttentionPass, first: bool) -> dict[str, Tensor]:
        """`score` (B, H, S) float32 on the first prefill; later tokens keep score 0."""
        if not first:
            return {}
        which = slots.position.clamp_min(0).long() // self.part
        shares = []
        for states in (slots.keys, slots.values):
            squares = states.float().square().sum(-1) * slots.valid
            total = torch.zeros_like(squares).scatter_add(2, which, squares)
            shares.append(squares / total.gather(2, which).clamp_min(TINY))
        key, value = shares
        score = {"key": key, "value": value, "mean": (key + value) / 2, "product": key * value}[self.of]
        score = round_relatively(score)
        return {"score": score / score.sum(-1, keepdim=True).clamp_min(TINY)}


@register
class CurDKV(Method):
    """Keeps the tokens of highest leverage, approximated by squared lengths of key and value. Uses no queries.

    Leverage scores choose the rows of a CUR decomposition. Follows kvpress (cur_press.py): squared lengths are divided
    by their sum over each `part` tokens of the text, and key and value are multiplied. Acts once, after the prompt.
    """

    name = "cur"
    family = "eviction"
    title = "CurDKV"

    of: Literal["product", "mean", "key", "value"] = Field("product", description="leverage of keys, values, or both")
    part: int = Field(16, ge=1, description="tokens among which lengths are compared")
    sinks: Sinks = 4

    paper = "https://arxiv.org/abs/2509.15038"
    presets = {
        "paper": Preset(
            "the class of kvpress with its defaults",
            {
                "of": ("product", "kvpress, cur_press.py, leverage_type kv_product"),
                "part": (16, "kvpress, cur_press.py, local_window_size"),
                "sinks": (4, "kvpress, cur_press.py, num_sinks"),
            },
            beyond="The random projection before lengths are taken, an option of kvpress that is off, is left out.",
        ),
    }

    def pipeline(self) -> Pipeline:
        score = SquaredLengths(of=self.of, part=self.part)
        return Pipeline(score, select=LowestScore(self.sinks), decode=False)
