"""LagKV: keep tokens that stand out from those that follow."""

from dataclasses import dataclass

import torch
from pydantic import Field
from torch import Tensor

from kvlab.core.contract import AttentionPass, Capabilities, LowestScore, Pipeline, Preset, Slots, gather
from kvlab.core.contract.method import DecodeCompression, Sinks, register
from kvlab.core.contract.numerics import round_relatively
from kvlab.core.methods.eviction.window_methods import PROMPT_ONLY, RKV_BUFFER
from kvlab.core.methods.scorers.wrapper import PromptScorer

TAIL = 2.0  # above every rank: slots without a following partition are evicted last, oldest first


@dataclass(frozen=True)
class Lag(PromptScorer):
    """Split the prompt after its `sinks` into partitions of `lag` tokens, and compare each with the next one.

    A token's key is scaled per channel to the range of the next partition; its standard deviation over channels is
    taken, and a softmax over its partition; likewise for its value. Score = rank by the mean of both, over `lag`, so
    each partition gives up equally many. The last full partition and what follows have no range and are kept.
    """

    sinks: int = 4
    lag: int = 128

    @property
    def capabilities(self) -> Capabilities:
        """Scores are computed anew at each decision while decoding."""
        return Capabilities(recall=self.recall)

    def update(self, slots: Slots, layer_pass: AttentionPass, first: bool) -> dict[str, Tensor]:
        return self.recall(slots, layer_pass) if first else {}

    def recall(self, slots: Slots, layer_pass: AttentionPass) -> dict[str, Tensor]:
        """The same for the current slots, in text order; needs no query."""
        order = slots.in_text()
        tokens = slots.live()  # (B, H): padding is at the end of the order
        score = TAIL + slots.position.float() / slots.position.shape[-1]
        parts = max((order.shape[-1] - self.sinks) // self.lag, 0)
        if parts < 2:
            return {"score": score}
        chosen = order[..., self.sinks : self.sinks + parts * self.lag]  # (B, H, parts * lag)
        both = []
        for states in (slots.keys, slots.values):
            # Softmax over a partition of the deviation over channels, scaled to the next partition's range.
            cut = gather(states, chosen).float().unflatten(2, (parts, self.lag))
            low = cut[:, :, 1:].amin(-2, keepdim=True)
            high = cut[:, :, 1:].amax(-2, keepdim=True)
            # Channels that are constant in the next partition, to rounding, would be divided by 0.
            least = torch.maximum(low.abs(), high.abs()).mul(1e-3).clamp_min(1e-6)
            scaled = (cut[:, :, :-1] - low) / torch.maximum(high - low, least)
            both.append(scaled.std(-1).softmax(-1))
        spread = (both[0] + both[1]) / 2  # (B, H, parts - 1, lag)
        rank = round_relatively(spread).argsort(dim=-1, stable=True).argsort(-1).float() / self.lag
        followed = self.sinks + self.lag * torch.arange(2, parts + 1, device=tokens.device) <= tokens[..., None]
        old = score.gather(2, chosen)[..., : -self.lag]
        rank = torch.where(followed[..., None].expand_as(rank), rank, old.unflatten(-1, rank.shape[-2:]))
        return {"score": score.scatter(2, chosen[..., : -self.lag], rank.flatten(-2))}


@register
class LagKV(DecodeCompression):
    """Keeps, in each partition of the prompt, the tokens that vary most relative to the next partition's range.

    Uses no queries and no attention. The last full partition and what follows are kept as long as the budget allows.
    Acts on the prompt only, unless `decode=budget`.
    """

    name = "lagkv"
    family = "eviction"
    title = "LagKV"

    sinks: Sinks = 4
    lag: int = Field(128, ge=2, description="tokens of a partition")

    paper = "https://arxiv.org/abs/2504.04704"
    presets = {
        "paper": Preset(
            "the paper's experiments, as in kvpress",
            {
                "sinks": (4, "kvpress, lagkv_press.py, n_sink"),
                "lag": (128, "kvpress, lagkv_press.py, lag_size"),
            },
            beyond="The original keeps a share of each partition; here the budget is met exactly, by the same ranks.",
        ),
    }
    reasons = {
        "sinks": "the paper's",
        "lag": "the paper's",
        "decode": PROMPT_ONLY,
        "buffer": RKV_BUFFER,
    }

    def pipeline(self) -> Pipeline:
        score = Lag(sinks=self.sinks, lag=self.lag)
        return self.with_decoding(Pipeline(score, select=LowestScore(self.sinks), decode=False))
