"""CriticalKV: evict what changes the output least, by attention and projected value."""

from dataclasses import dataclass, replace

import torch
from pydantic import Field
from torch import Tensor

from kvlab.core.contract import LowestScore, Pipeline, Preset, Uniform, Victims, View, register, round_relatively
from kvlab.core.methods.allocators.adaptive import HeadAdaptive
from kvlab.core.methods.eviction import window_methods
from kvlab.core.methods.scorers.value_norm import output_norms
from kvlab.core.methods.selectors.chunks import Reordering


@dataclass(frozen=True)
class Critical(Reordering):
    """Apply `inner` to scores that bound how much evicting a slot changes the output.

    The share `first` of a head's budget goes to the highest scores, protected slots first. The rest goes by (score +
    `epsilon`) * ||W_o v||_1, the norm's mean over the group, rounded to .02 % so that repeated tokens have equal ones.
    """

    first: float = 0.5
    epsilon: float = 1e-4

    def victims(self, view: View, excess: Tensor, most: int, barred: Tensor | None = None) -> Victims:
        """The inner selector's, by these scores."""
        slots = view.slots
        score = slots.score.nan_to_num(nan=0.0)
        standing = score.masked_fill(self.inner.protected(view), torch.inf).masked_fill(~slots.valid, -torch.inf)
        rank = slots.lowest(standing, standing.shape[-1]).argsort(-1)  # from the lowest
        norm = round_relatively(output_norms(slots.values, view.layer_pass.output_weight(), 1).mean(2))
        won = rank >= rank.shape[-1] - (view.budget * self.first).long()[..., None]
        weighed = torch.where(won, torch.inf, (score + self.epsilon) * norm)
        return self.inner.victims(replace(view, slots=replace(slots, score=weighed)), excess, most, barred)


@register
class CriticalKV(window_methods.WindowEvicting):
    """Half of the budget by SnapKV's score, the rest by the score times ||W_o v||, which bounds the output's change.

    The selection works with any score: `compose:score=h2o:select=criticalkv`. `adaptive` splits a layer's
    budget over its heads by the plain score, as in AdaKV.
    """

    name = "criticalkv"
    family = "eviction"
    title = "CriticalKV"

    first: float = Field(0.5, ge=0, le=1, description="share of the budget that goes by the score only")
    epsilon: float = Field(
        1e-4, ge=0, description="added to a score, mean over the window, before multiplying by the value's norm"
    )
    adaptive: bool = Field(False, description="heads compete for a layer's budget as in AdaKV")
    floor: float = Field(0.2, ge=0, le=1, description="with `adaptive`: share of the equal budget no head can lose")

    paper = "https://arxiv.org/abs/2502.03805"
    presets = {
        "paper": Preset(
            "the two stages with SnapKV's score; the authors' code is in kvpress",
            {
                "first": (0.5, "kvpress, criticalkv_press.py, first_stage_ratio"),
                "epsilon": (0.0001, "kvpress, criticalkv_press.py, epsilon"),
            },
            beyond=window_methods.SHARED_HEADS,
        ),
        "ada": Preset(
            "CriticalAdaKV: heads compete first",
            {
                "first": (0.5, "kvpress, criticalkv_press.py, CriticalAdaKVPress, first_stage_ratio"),
                "epsilon": (0.0001, "kvpress, criticalkv_press.py, CriticalAdaKVPress, epsilon"),
                "adaptive": (True, "kvpress, criticalkv_press.py, CriticalAdaKVPress"),
                "floor": (0.2, "kvpress, criticalkv_press.py, CriticalAdaKVPress, alpha_safeguard"),
            },
            beyond=(
                f"{window_methods.SHARED_HEADS}"
                " The original guarantees the floor; here it is mixed into the counts, as in AdaKV's code."
            ),
        ),
    }
    reasons = {
        "adaptive": "the plain form, comparable with SnapKV; see also `preset=ada`",
        "floor": "AdaKV's own",
        "window": "SnapKV's, whose score it takes here",
        "kernel": "SnapKV's",
        "pooling": "SnapKV's",
        **window_methods.WINDOW_REASONS,
        "decode": window_methods.PROMPT_ONLY,
        "buffer": window_methods.RKV_BUFFER,
    }

    def pipeline(self) -> Pipeline:
        allocate = HeadAdaptive(window=self.window, floor=self.floor) if self.adaptive else Uniform()
        # SnapKV's score is a sum over the window; the published epsilon belongs to the mean.
        select = Critical(inner=LowestScore(recent=self.window), first=self.first, epsilon=self.epsilon * self.window)
        return replace(super().pipeline(), allocate=allocate, select=select)
