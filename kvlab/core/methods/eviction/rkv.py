"""R-KV: while generating, keep tokens with high attention and low redundancy."""

from dataclasses import dataclass

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import max_pool1d, normalize

from kvlab.core.contract import DecodeCompression, Decoding, LowestScore, Pipeline, Preset, Slots, register
from kvlab.core.methods.eviction.window_methods import Odd
from kvlab.core.methods.scorers.wrapper import WindowScorer

ROW_BLOCK = 256


@dataclass(frozen=True)
class Redundancy(WindowScorer):
    """Score = `balance` * I - (1 - `balance`) * R over slots older than the last `window` tokens.

    I: the group's highest logit of each of the last `window` queries, softmax over the older slots, mean over queries,
    maximum over `kernel` neighbours in the text. R: softmax over all slots of a key's mean cosine with the others,
    where each key ignores the last `excused` of those more similar than `threshold`.
    """

    window: int = 8
    kernel: int = 7
    balance: float = 0.1
    threshold: float = 0.5
    excused: int = 1

    def _scored(self, slots: Slots, logits: Tensor) -> dict[str, Tensor]:
        """Scores from `logits` (B, H, G, r, S), -inf at hidden slots."""
        order = slots.in_text()
        valid = slots.valid.gather(2, order)
        newest = slots.position.masked_fill(~slots.valid, -1).amax(-1, keepdim=True).int()
        older = valid & (slots.position.gather(2, order) <= newest - self.window)
        best = logits.amax(2)  # (B, H, r, S)
        best = best.gather(3, order[:, :, None].expand(-1, -1, best.shape[2], -1))
        share = torch.softmax(best.masked_fill(~older[:, :, None], -torch.inf), -1)
        real = ~share[..., :1].isnan()  # rows before the text see nothing
        importance = share.nan_to_num(0.0).sum(2) / real.sum(2).clamp_min(1)
        importance = max_pool1d(importance, self.kernel, 1, self.kernel // 2)
        # The redundancy (B, H, S), in blocks of keys.
        index = order[..., None].expand(*order.shape, slots.keys.shape[-1])
        units = normalize(slots.keys.gather(2, index).float(), dim=-1) * valid[..., None]
        total = torch.zeros_like(units[..., 0])
        for start in range(0, order.shape[-1], ROW_BLOCK):
            cosine = units[:, :, start : start + ROW_BLOCK] @ units.mT  # (B, H, r, S)
            cosine.diagonal(start, -2, -1).zero_()
            # in each row, the last `excused` keys more similar than `threshold` do not count
            alike = cosine > self.threshold
            similar_from_here = alike.flip(-1).cumsum(-1).flip(-1)
            total += (cosine * ~(alike & (similar_from_here <= self.excused))).sum(2)
        mean = total / valid.sum(-1, keepdim=True)
        redundancy = torch.softmax(mean.masked_fill(~valid, -torch.inf), -1)
        score = self.balance * importance - (1 - self.balance) * redundancy
        return {"score": torch.zeros_like(score).scatter(2, order, score)}


@register
class RKV(DecodeCompression):
    """Decides whenever `buffer` tokens were generated, by attention of the last queries minus redundancy of keys.

    The prompt is compressed by the same score. `balance=1` ignores redundancy, which is the authors' baseline of SnapKV
    while decoding.
    """

    name = "rkv"
    family = "eviction"
    title = "R-KV"

    window: int = Field(8, ge=1, description="last queries that vote; these tokens always stay")
    kernel: Odd = Field(7, ge=1, le=1025, description="width of the maximum over neighbours, odd")
    balance: float = Field(0.1, ge=0, le=1, description="weight of attention; the rest is the weight of redundancy")
    threshold: float = Field(0.5, ge=-1, le=1, description="cosine above which a key is redundant with another")
    excused: int = Field(1, ge=0, description="number of last similar keys that a key does not count as redundant")
    decode: Decoding = "budget"

    paper = "https://arxiv.org/abs/2505.24133"
    presets = {
        "paper": Preset(
            "the values of its experiments",
            {
                "window": (8, "R-KV, README, default hyper-parameters"),
                "balance": (0.1, "R-KV, README, default hyper-parameters"),
                "decode": ("budget", "decoding-time compression"),
                "buffer": (128, "R-KV, README, default hyper-parameters"),
            },
            beyond=(
                "The paper does not give the number of recent similar tokens that are excused. A softmax over mean "
                "cosines is nearly flat, about 1/S, so `balance` weighs two numbers of that size."
            ),
        ),
        "code": Preset(
            "the authors' class with its runner's settings",
            {
                "window": (8, "rkv/compression/r1_kv.py, window_size"),
                "kernel": (7, "rkv/compression/r1_kv.py, kernel_size"),
                "balance": (0.07, "rkv/compression/r1_kv.py, mix_lambda"),
                "threshold": (0.5, "rkv/utils.py, cal_similarity"),
                "excused": (1, "rkv/utils.py, cal_similarity, retain_direction last"),
                "decode": ("budget", "rkv/modeling.py"),
                "buffer": (128, "run_math.py, divide_length"),
            },
            beyond=(
                "In the code a key without a similar one excuses the first slot, and later ones are ordered by score, "
                "here by position. A softmax over mean cosines is nearly flat, about 1/S, so `balance` weighs two "
                "numbers of that size."
            ),
        ),
    }
    reasons = {
        "kernel": "the code's",
        "balance": "the paper's; its code has .07",
        "threshold": "the code's",
        "excused": "the code's: the last similar one",
    }

    def pipeline(self) -> Pipeline:
        score = Redundancy(
            window=self.window,
            kernel=self.kernel,
            balance=self.balance,
            threshold=self.threshold,
            excused=self.excused,
        )
        return self.with_decoding(Pipeline(score, select=LowestScore(recent=self.window), decode=False))
