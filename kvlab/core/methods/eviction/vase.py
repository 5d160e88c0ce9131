"""VaSE: shield tokens whose values have a large range, and draw the others by attention."""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from kvlab.core.contract import LowestScore, Pipeline, Preset, Protecting, Victims, View, Wrapper
from kvlab.core.contract.method import DecodeCompression, Decoding, register
from kvlab.core.contract.numerics import gumbel_draws, round_relatively
from kvlab.core.methods.eviction.window_methods import Odd
from kvlab.core.methods.scorers.window import TINY, WindowAttention


@dataclass(frozen=True)
class OlderAttention(WindowAttention):
    """Attention among the slots older than the window alone: each query's share of them sums to 1, then is pooled."""

    by_column: ClassVar[bool] = False  # each query's attention is needed, not only the sum of all

    def _aggregated(self, mass: Tensor, candidates: Tensor) -> Tensor:
        mass = mass * candidates[:, :, None, None]
        return super()._aggregated(mass / mass.sum(-1, keepdim=True).clamp_min(TINY), candidates)


@dataclass(frozen=True)
class ShieldedSample(Protecting, Wrapper):
    """Protect the share `shield` of a head's budget, the slots with the largest range of values, and draw the others.

    The range of a slot is the largest number of its value minus the smallest. Sinks that `inner` protects count toward
    the share. Of the others slots are drawn without replacement, with probabilities proportional to their scores (below
    0 counts as 0): the highest of log(score) + Gumbel noise. The noise depends on seed, layer, head, position and
    length of the text, so each decision draws anew, whatever else is in the batch.
    """

    inner: LowestScore
    shield: float

    def victims(self, view: View, excess: Tensor, most: int, barred: Tensor | None = None) -> Victims:
        """The inner selector's, by these scores."""
        slots = view.slots
        seed = 0 if view.generator is None else view.generator.initial_seed()
        noise = gumbel_draws(seed, slots.position + (view.tokens_seen[:, None, None] << 32))
        chance = slots.score.nan_to_num(nan=0.0).clamp_min(TINY).log() + noise
        weighed = chance.masked_fill(self.protected(view), torch.inf)
        return self.inner.victims(replace(view, slots=replace(slots, score=weighed)), excess, most, barred)

    def protected(self, view: View) -> Tensor:
        """Protected slots (B, H, S): sinks, recent tokens, and those with the largest range of values."""
        slots = view.slots
        safe = self.inner.protected(view)
        # Rounded to .02 %, so that repeated tokens have equal ranges on every processor.
        span = round_relatively(slots.values.amax(-1).float() - slots.values.amin(-1).float())
        rank = slots.lowest((-span).masked_fill(safe | ~slots.valid, torch.inf), span.shape[-1]).argsort(-1)
        here = safe & slots.valid
        sinks = (here & (slots.position < self.inner.sinks)).sum(-1)
        room = (view.budget - here.sum(-1)).minimum((view.budget * self.shield).long() - sinks)
        return safe | (slots.valid & (rank < room[..., None]))


@register
class VaSE(DecodeCompression):
    """Shields tokens whose values have a large range, and at each decision draws the others by attention.

    Decides whenever `buffer` tokens were generated. Attention is that of the last `window` queries among older slots,
    averaged over neighbours in the text and over the group's heads. The prompt is compressed by the same rule; the
    authors' code keeps it until the first decision while decoding.
    """

    name = "vase"
    family = "eviction"
    title = "VaSE"
    keeps_window = True

    window: int = Field(64, ge=1, description="last queries that vote; these tokens always stay")
    kernel: Odd = Field(5, ge=1, le=1025, description="width of the mean over neighbours, odd; 1: none")
    shield: float = Field(0.25, ge=0, le=1, description="share of the budget for the largest ranges of values")
    sinks: int = Field(4, ge=0, description="first tokens that always stay, as part of that share")
    decode: Decoding = "budget"
    buffer: int = Field(64, ge=1, description="with `decode=budget`: generated tokens kept before each decision")

    paper = "https://arxiv.org/abs/2606.03928"
    presets = {
        "paper": Preset(
            "the settings of its experiments, as in the authors' code",
            {
                "window": (64, "myscripts/math/eval_range_sink_sample_attn.sh, residual_length"),
                "kernel": (5, "modified/transformers/cache_utils.py, compute_attention_scores, with --smooth"),
                "shield": (0.25, "n_large over token_budget in myscripts/*/eval_range_sink_sample_attn.sh"),
                "sinks": (4, "modified/transformers/cache_utils.py, n_sink"),
                "decode": ("budget", "modified/transformers/cache_utils.py, post_attention_update"),
                "buffer": (64, "modified/transformers/cache_utils.py, one decision per residual_length tokens"),
            },
            beyond=(
                "After its first decision the code averages over neighbours in the order in which slots were chosen, "
                "here in that of the text."
            ),
        ),
    }

    def pipeline(self) -> Pipeline:
        score = OlderAttention(self.window, self.kernel, "average", "zeros")
        select = ShieldedSample(LowestScore(self.sinks, self.window), self.shield)
        return self.with_decoding(Pipeline(score, select=select, decode=False))
