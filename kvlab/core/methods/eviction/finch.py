"""Finch: keep what the question at the prompt's end attends to, at new positions."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from kvlab.core.contract import AttentionPass, Evict, LowestScore, NewKeys, Pipeline, Plan, Preset, Slots, View
from kvlab.core.contract.method import Method, register
from kvlab.core.contract.parts import NONE, Capabilities, Selector
from kvlab.core.errors import UserError
from kvlab.core.methods.scorers.wrapper import PromptOnly, PromptScorer


@dataclass(frozen=True)
class QuestionAttention(PromptScorer):
    """Score_j = sum over the last `window` queries i of (i + 1) A[i, j], mean over the group, set at prefill.

    Attention weights of a later query are smaller because more tokens share them; i + 1 is their number.
    """

    window: int

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(prompt_rows=lambda tokens: self.window)

    def update(self, slots: Slots, layer_pass: AttentionPass, first: bool) -> dict[str, Tensor]:
        """`score` (B, H, S) float32 on the first prefill."""
        if not first:
            return {}
        newest = slots.position.masked_fill(~slots.valid, -1).amax((1, 2)).float()  # (B,)
        age = torch.arange(min(self.window, layer_pass.num_new) - 1, -1, -1, device=newest.device)
        visible = (newest[:, None] + 1 - age).clamp_min(0)  # (B, r)
        return {"score": layer_pass.column_mass(self.window, visible)}


@dataclass(frozen=True)
class EvictAndCloseGaps:
    """Evict all victims, and turn each remaining key forward by the number of tokens missing between it and the end.

    Rotary attention depends on distances only, so this equals counting positions from 0 inside the cache, as Finch
    does, while new tokens keep their positions in the text. For methods that compress the prompt only: keys are turned
    once, in float32.
    """

    capabilities: ClassVar[Capabilities] = NONE

    state: Mapping[str, float] = field(default_factory=dict, hash=False)

    def settle(self, view: View, select: Selector) -> Plan:
        """Raises UserError for a model without rotary positions."""
        slots = view.slots
        rotary = view.layer_pass.rotary
        if rotary is None:
            raise UserError("This model has no rotary positions to count inside the cache: use positions 'original'.")
        keep = select.victims(view, view.excess(), view.most_excess).keep(slots.valid)
        # Number of tokens (B, H, S) that left between each kept slot and the end of the text.
        order = slots.in_text()
        from_here = keep.gather(2, order).long().flip(-1).cumsum(-1).flip(-1)
        behind = torch.zeros_like(from_here).scatter(2, order, from_here)
        missing = view.tokens_seen[:, None, None] - behind - slots.position
        turn = torch.where(keep, missing, 0).to(torch.int32)
        index = torch.arange(slots.position.shape[-1], device=turn.device).expand_as(slots.position)
        turned = rotary.turn(slots.keys, turn).to(slots.keys.dtype)
        return Plan(keep=keep, new_keys=NewKeys(index, torch.where(turn[..., None] == 0, slots.keys, turned)))


@register
class Finch(Method):
    """Keeps the prompt tokens that the question attends to, each of its queries weighed by how many tokens it saw.

    The question is the last `window` tokens of the prompt. `positions="cache"`, as published, turns the remaining keys
    so that they stand next to each other. Acts once, after the prompt; the paper's chunks of the document are not here.
    """

    name = "finch"
    family = "eviction"
    title = "Finch"
    keeps_window = True

    window: int = Field(32, ge=1, description="tokens of the question at the prompt's end; they always stay")
    positions: Literal["original", "cache"] = Field(
        "original", description="positions of tokens in the text, or of slots inside the cache (as published)"
    )

    paper = "https://direct.mit.edu/tacl/article/doi/10.1162/tacl_a_00716/125280"
    presets = {
        "paper": Preset(
            "the whole document at once, positions counted inside the cache",
            {
                "positions": ("cache", "kvpress, finch_press.py, rerotate_keys"),
            },
            beyond=(
                "Set `window` to the question's tokens. The paper reads the document in chunks and compresses after "
                "each."
            ),
        ),
    }
    reasons = {
        "window": "our choice, SnapKV's; the question of a prompt is rarely longer",
        "positions": "as with all other methods here, and for models without rotary positions",
    }

    def pipeline(self) -> Pipeline:
        settle = EvictAndCloseGaps() if self.positions == "cache" else Evict()
        score = PromptOnly(QuestionAttention(window=self.window))
        select = LowestScore(recent=self.window)
        return Pipeline(score, select=select, settle=settle, decode=False)
