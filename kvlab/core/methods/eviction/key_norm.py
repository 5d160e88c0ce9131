"""Key norm: keep tokens with short keys."""

from dataclasses import dataclass

import torch
from pydantic import Field
from torch import Tensor

from kvlab.core.contract import AttentionPass, EqualHeads, LowestScore, Pipeline, Preset, Slots, Uniform, proportional
from kvlab.core.contract.method import Method, Recent, Sinks, register
from kvlab.core.methods.scorers.wrapper import PromptScorer

ONE_LENGTH = 2**-7  # lengths within this share are ties: bfloat16 changes each by up to half of it
STEPS = 1200  # rounding steps per factor of two in length; sqrt(head_dim), the length of normalized keys, is on no edge


@dataclass(frozen=True)
class ShortKeys(PromptScorer):
    """Score = -|k|: short keys are kept (key norm, arXiv 2406.11430). Rotation preserves lengths.

    Rounding must not decide: repeated words have keys of equal length in the first layer, and so have all keys of a
    head whose model normalizes keys without weights. So lengths are rounded to .06 %, differences within a head that
    16-bit numbers may cause are ties, and the newer of equal ones counts as shorter.
    """

    def update(self, slots: Slots, layer_pass: AttentionPass, first: bool) -> dict[str, Tensor]:
        """`score` (B, H, S) float32, comparing lengths of the current slots."""
        length = torch.linalg.vector_norm(slots.keys.float(), dim=-1)
        longest = length.masked_fill(~slots.valid, -torch.inf).amax(-1, keepdim=True)
        shortest = length.masked_fill(~slots.valid, torch.inf).amin(-1, keepdim=True)
        differ = longest - shortest > longest * ONE_LENGTH
        steps = (length.where(differ, longest).log2() * STEPS).round()
        newness = slots.position / (slots.position.amax(-1, keepdim=True) + 1)  # below 1
        return {"score": -((steps - newness) / STEPS).exp2()}


@dataclass(frozen=True)
class FirstLayers(EqualHeads):
    """The first `skip` layers keep the whole prompt, the others get equal shares of the rest (key norm).

    As published, whole layers come in addition to the budget; here they count, and the sum is the model's budget. If
    they would leave the others less than half of the average, they are limited so that this half remains.
    """

    skip: int = 2

    def layer_budgets(self, average: int, tokens: int, num_layers: int) -> list[int]:
        """Slots of each layer, first to last; equal if everything fits, or if no layer is left."""
        others = num_layers - self.skip
        if average >= tokens or self.skip < 1 or others < 1:
            return [average] * num_layers
        total = average * num_layers
        half = -(-average // 2)
        first = min(tokens, (total - others * half) // self.skip)
        return [first] * self.skip + proportional([1.0] * others, total - first * self.skip, 1, tokens)


@register
class KeyNorm(Method):
    """Keeps the tokens with the shortest keys. Uses no queries.

    The authors found that short keys get much attention later, in most layers but not in the first: `skip` keeps the
    first layers whole, out of the same budget. In a head whose keys have equal lengths the newest tokens are kept.
    """

    name = "key-norm"
    family = "eviction"
    title = "Key norm"

    sinks: Sinks = 0
    recent: Recent = 1
    skip: int = Field(0, ge=0, description="first layers that keep the whole prompt, if the budget allows it")

    paper = "https://arxiv.org/abs/2406.11430"
    presets = {
        "paper": Preset(
            "the paper's rule, without compressing the first two layers",
            {
                "sinks": (0, "only keys decide; cache.py, l2_compress"),
                "recent": (1, "only keys decide; the newest token is always kept here"),
                "skip": (2, "README.md of the authors' repository, skip_layers=[0, 1]"),
            },
            beyond=(
                "In the original, uncompressed layers come in addition to the budget. It does not compress caches of "
                "fewer than about two thousand tokens (prune_after)."
            ),
        ),
        "code": Preset(
            "the authors' evaluations with their defaults",
            {
                "sinks": (0, "cache.py, l2_compress"),
                "recent": (1, "cache.py, l2_compress; the newest token is always kept here"),
                "skip": (1, "eval_lm.py and eval_passkey.py, --skip_layers 0"),
            },
            beyond=(
                "In the original, uncompressed layers come in addition to the budget. It reads text token by token "
                "and prunes from 10 tokens on (prune_after)."
            ),
        ),
    }
    reasons = {
        "sinks": "the paper's",
        "recent": "the paper's",
        "skip": "none, as in kvpress (knorm_press.py): here full layers take their slots from the others' budgets",
    }

    def pipeline(self) -> Pipeline:
        layers = FirstLayers(skip=self.skip) if self.skip else Uniform()
        return Pipeline(ShortKeys(), layers, LowestScore(self.sinks, self.recent))
