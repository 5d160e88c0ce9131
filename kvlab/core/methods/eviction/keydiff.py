"""KeyDiff: keep tokens with unusual keys."""

from dataclasses import dataclass

from pydantic import Field
from torch import Tensor
from torch.nn.functional import cosine_similarity, normalize

from kvlab.core.contract import LowestScore, Method, Pipeline, Preset, Recent, Sinks, Slots, register, round_to_step
from kvlab.core.methods.scorers.wrapper import SlotScorer


@dataclass(frozen=True)
class UnusualKeys(SlotScorer):
    """Score = -cos(k, mean of the head's unit keys): unusual keys are kept (KeyDiff).

    Cosines are multiples of 2^-16: in a text of one token, keys as far from the middle are equally unusual.
    """

    def rate(self, slots: Slots) -> Tensor:
        """Scores (B, H, S) float32, relative to the mean of the current slots."""
        units = normalize(slots.keys.float(), dim=-1) * slots.valid[..., None]
        mean = units.sum(2, keepdim=True) / slots.live()[..., None, None].clamp_min(1)
        return -round_to_step(cosine_similarity(units, mean, dim=-1))


@register
class KeyDiff(Method):
    """Keeps the tokens whose keys are least similar to the head's mean key. Uses no queries.

    With `block` the prompt is processed in blocks, and after each block old and new slots are cut back to the budget,
    as while decoding; the mean is that of the current slots. So the whole prompt is never held.
    """

    name = "keydiff"
    family = "eviction"
    title = "KeyDiff"

    sinks: Sinks = 0
    recent: Recent = 1
    block: int = Field(0, ge=0, description="prompt tokens between two decisions; 0: one decision about all")

    paper = "https://arxiv.org/abs/2504.15364"
    presets = {
        "paper": Preset(
            "the paper's rule",
            {
                "sinks": (0, "only keys decide; kvpress, keydiff_press.py"),
                "recent": (1, "only keys decide; the newest token is always kept here"),
                "block": (128, "block-wise: cache and block are cut back to the budget after every 128 tokens"),
            },
            beyond="By default kvpress compresses the prompt at once.",
        ),
    }
    reasons = {
        "sinks": "the paper's",
        "recent": "the paper's",
        "block": "the prompt is compressed at once, as for the other methods here; the paper's blocks bound its memory",
    }

    def pipeline(self) -> Pipeline:
        return Pipeline(UnusualKeys(), select=LowestScore(self.sinks, self.recent), block=self.block)
