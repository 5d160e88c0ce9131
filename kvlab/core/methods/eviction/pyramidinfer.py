"""PyramidInfer: keep what recent queries attend to, fewer tokens in deeper layers."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor

from kvlab.core.contract import AttentionPass, Capabilities, LowestScore, Method, Pipeline, Preset, Slots, register
from kvlab.core.contract.method import Sinks
from kvlab.core.errors import UserError
from kvlab.core.methods.allocators.cosine import CosineDecay, Schedule

ROWS = "recent_rows"


@dataclass(frozen=True)
class RecentRows:
    """Score_j = mean over the last R = 1 + int(recent * T) queries of weight_r A[r, j]; weights rise linearly from 1.

    T is the length of the text. The last query's weight is `distance_weight`. `heads="shared"` averages over all heads,
    so that every head keeps the same tokens (the paper); `each` averages over the query heads of a KV head. The
    published code keeps an R x S attention map to slide this mean while decoding; here (`decode`) it is a running mean
    with one number per slot: a new query has weight 1/n, with n the queries that could see the slot, at most R.
    """

    recent: float = 0.2
    distance_weight: float = 1.2
    heads: Literal["shared", "each"] = "shared"
    decode: bool = True
    needs_hidden_states: bool = False

    @property
    def every_step(self) -> bool:
        """Only if decoding ranks too."""
        return self.decode

    @property
    def capabilities(self) -> Capabilities:
        """Heads that keep the same tokens are scored together."""
        return Capabilities(
            prompt_rows=lambda tokens: 1 + int(tokens * self.recent),
            across_heads=self.decode and self.heads == "shared",
        )

    @property
    def state(self) -> Mapping[str, float]:
        """Slot state: queries in the running mean."""
        return {ROWS: 0} if self.decode else {}

    def update(self, slots: Slots, layer_pass: AttentionPass, first: bool) -> dict[str, Tensor]:
        """`score` (B, H, S) float32, and the number of queries in each slot's mean."""
        if not first and not self.decode:
            return {}
        if first:
            text = slots.position[:, 0].masked_fill(~slots.valid[:, 0], -1).amax(-1) + 1
            rows = (1 + (text.double() * self.recent).long()).minimum(slots.valid[:, 0].sum(-1))  # (B,)
            # Weighted mean (B, H, S) over each prompt's own last rows.
            most = int(rows.max())
            real = slots.valid[:, 0].long()
            age = (real.flip(-1).cumsum(-1).flip(-1) - real)[:, -most:]  # (B, most): real queries after each
            last = (rows - 1)[:, None]
            weight = 1 + (self.distance_weight - 1) * (last - age) / last.clamp_min(1)
            weight = weight.masked_fill((age > last) | ~slots.valid[:, 0, -most:], 0.0)
            mass = layer_pass.column_mass(most, weight) / rows[:, None, None]
        else:
            mass = layer_pass.column_mass()
        if self.heads == "shared":
            mass = mass.mean(1, keepdim=True).expand_as(mass)
        if first:
            return {"score": mass} | ({ROWS: rows[:, None, None].float().expand_as(mass)} if self.decode else {})
        total = slots.position.masked_fill(~slots.valid, -1).amax((1, 2)) + 1  # (B,): real tokens so far
        rows = 1 + (total * self.recent).long()
        new = layer_pass.rows_seen()
        count = torch.minimum(slots.extra[ROWS] + new, rows[:, None, None])
        keep = (1 - new / count.clamp_min(1)).clamp_min(0)
        score = keep * slots.score + mass / count.clamp_min(1)
        return {"score": score, ROWS: count}


LAYERS = "models/modeling_llama_pyramidinfer.py"


def published(config: str, ratio: float, interval: int) -> dict[str, tuple[Any, str]]:
    """The authors' settings for one size of model, whose file is `config`."""
    return {
        "ratio": (ratio, f"{config}, prefill_decay_ratio"),
        "schedule": ("compound", f"{LAYERS}: a layer receives the hidden states of what the one before passes on"),
        "lengths": ("decay", f"{LAYERS}: only ratios decide"),
        "recent": (0.2, f"{config}, recent_ratio"),
        "region": ("prompt", f"{LAYERS}: the last 1 + int(.2 T) tokens are never compressed"),
        "minimum": (64, f"{config}, min_context_length"),
        "interval": (interval, f"{config}, layerwise_downsample_interval"),
        "distance_weight": (1.2, f"{config}, distance_weight"),
        "sinks": (4, f"{config}, streamingllm_sink_len"),
        "heads": ("shared", f"{LAYERS}: the mean over heads"),
    }


IN_THE_PROMPT = (
    "In the original a layer receives the hidden states of only those tokens that the layer before keeps, which saves "
    "operations; here every layer sees the whole prompt, and keeps equally many tokens by its own attention."
)
WHILE_DECODING = (
    "The authors' code thins generated tokens: when 16 of them have left the recent fifth of the text, it keeps the "
    "best 90 % of them, times a cosine over the layers that ends at 10 %; here all of them are kept."
)
KEPT = {"decode": ("keep", f"{LAYERS}, generation stage: the cache grows with the text")}
# Settings of version 0.1 that have no effect without `prefill_saving` and `decode=lots`, which are gone.
GONE = ("prefill_saving", "lot", "lot_keep", "lot_ratio")


@register
class PyramidInfer(Method):
    """Keeps what recent queries attend to, the same tokens in every head, fewer of them in deeper layers.

    Budgets fall along half a cosine. `lengths="budget"` (default) scales them to the exact budget; `decay` takes no
    budget: the whole prompt enters the first layer and the ratios decide, as in the authors' code. `region="prompt"`
    (theirs) keeps a recent fifth of the prompt in every layer, so that the decay applies to the rest: 20 % of the cache
    is then a local window.

    `decode="budget"`, the default, ranks prompt and generated tokens together and never exceeds the budget; `keep`
    keeps all generated tokens. Every layer sees the whole prompt and then compresses; in the original, deeper layers do
    not receive the hidden states of tokens that a layer evicted, so that they compute less and cannot keep what they
    never see. That was measured on mini (8 prompts of 896 tokens, budgets 50, 20 and 10 %) while kvlab had it:
    operations of the prefill .59, .34 and .25 of those without, KL of a continuation read in one pass .048, .071 and
    .191 against .054, .075 and .113.

    Scores are not pooled over neighbours, so single digits of a number are kept and the others evicted: on mini at 20 %
    it finds none of 8 needles, like H2O and like SnapKV without pooling; SnapKV finds 4.
    """

    name = "pyramidinfer"
    family = "eviction"
    title = "PyramidInfer"

    ratio: float = Field(0.9, gt=0, le=1, description="where the cosine decay ends (0.9 for 7 B models, 0.8 for 13 B)")
    schedule: Schedule = Field(
        "compound", description="apply the decay to what the layers before pass on (published), or to the prompt"
    )
    lengths: Literal["budget", "decay"] = Field(
        "budget", description="scale lengths to the budget, or let the decays decide (published)"
    )
    recent: float = Field(
        0.2, gt=0, lt=1, description="share of the prompt's queries that vote, and of the recent region kept"
    )
    region: Literal["budget", "prompt"] = Field(
        "budget", description="the recent region is a share of the budget, or of the prompt and never cut (published)"
    )
    minimum: int = Field(0, ge=0, description="slots below which no layer's context is cut (64 published)")
    interval: int = Field(1, ge=1, description="with `compound` only every so many layers cut (2 for 13 B, 3 for 70 B)")
    distance_weight: float = Field(1.2, gt=0, description="weight of the newest query; the oldest that votes has 1")
    sinks: Sinks = 4
    heads: Literal["shared", "each"] = Field("shared", description="same tokens in every head (paper), or each its own")
    decode: Literal["budget", "keep"] = Field("budget", description="generated tokens compete, or are all kept")

    paper = "https://arxiv.org/abs/2405.12532"
    presets = {
        "paper": Preset(
            "the paper's method at the settings recommended for 7 B models",
            published("configs/llama2_7b.json", 0.9, 1),
            beyond=IN_THE_PROMPT,
        ),
        "code": Preset(
            "the authors' code as configured for 7 B and 8 B models",
            published("configs/llama2_7b.json", 0.9, 1) | KEPT,
            beyond=f"{IN_THE_PROMPT} {WHILE_DECODING}",
        ),
        "code-13b": Preset(
            "the authors' code as configured for 13 B models",
            published("configs/llama2_13b.json", 0.8, 2) | KEPT,
            beyond=f"{IN_THE_PROMPT} {WHILE_DECODING}",
        ),
        "code-70b": Preset(
            "the authors' code as configured for 70 B models",
            published("configs/llama2_70b.json", 0.9, 3) | KEPT,
            beyond=f"{IN_THE_PROMPT} {WHILE_DECODING}",
        ),
    }
    reasons = {
        "ratio": "for 7 B models; 13 B models have 0.8",
        "lengths": "methods are compared at one budget; decays only would keep 88 % and more of 896 tokens on mini",
        "region": (
            "a share of the prompt leaves no context at 20 %: KL .095 against .075 on mini (8 prompts of 896 tokens), "
            ".158 against .113 at 10 %, and .049 against .054 at 50 %"
        ),
        "minimum": "64 slots exceed many budgets here",
        "interval": "for 7 B models; larger ones cut every second or third layer",
        "decode": "the cache stays within the budget, as with all other methods",
    }

    @model_validator(mode="before")
    @classmethod
    def _leave_out_what_is_gone(cls, values: Any) -> Any:
        """Read settings of version 0.1; raises UserError where they asked for what is no longer there."""
        if not isinstance(values, dict):
            return values
        if values.get("prefill_saving") is True:
            raise UserError("pyramidinfer no longer narrows the prompt from layer to layer: leave out prefill_saving.")
        if values.get("decode") == "lots":
            raise UserError("pyramidinfer no longer thins generated tokens in lots: use decode 'budget' or 'keep'.")
        return {name: value for name, value in values.items() if name not in GONE}

    @property
    def needs_budget(self) -> bool:  # type: ignore[override]  # a constant of the class elsewhere
        """Unless lengths follow from the decays."""
        return self.lengths == "budget"

    def notes(self, budget_slots: int, prompt_tokens: int) -> list[str]:
        """Warn if the recent region takes the whole budget."""
        if self.region == "budget" or not self.needs_budget or budget_slots >= prompt_tokens:
            return []
        region = 1 + int(prompt_tokens * self.recent)
        if budget_slots > region:
            return []
        return [
            f"The budget of {budget_slots:,} slots per head does not exceed the recent region of {region:,} tokens: "
            f"PyramidInfer keeps the last {budget_slots:,} tokens only, like a local window."
        ]

    def pipeline(self) -> Pipeline:
        later = self.decode != "keep"
        of_prompt = self.region == "prompt"
        region = self.recent if of_prompt else 0.0
        free = self.lengths == "decay"
        return Pipeline(
            RecentRows(recent=self.recent, distance_weight=self.distance_weight, heads=self.heads, decode=later),
            CosineDecay(self.ratio, self.schedule, region, self.minimum, self.interval, free),
            LowestScore(self.sinks, self.recent, "text" if of_prompt else "budget"),
            decode=later,
        )
