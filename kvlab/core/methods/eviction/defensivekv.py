"""DefensiveKV: scores by the worst case of an observation window, heads or the whole model competing for the budget."""

from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from kvlab.core.contract import AttentionPass, LowestScore, Pipeline, Preset, Slots, View, register
from kvlab.core.contract.parts import Capabilities, Victims, Wrapper
from kvlab.core.methods.allocators.adaptive import HeadAdaptive
from kvlab.core.methods.allocators.model_wide import COUNTS, ModelWide
from kvlab.core.methods.eviction.window_methods import PROMPT_ONLY, RKV_BUFFER, Odd, WindowEvicting
from kvlab.core.methods.scorers.window import Aggregate, Edges


@dataclass(frozen=True)
class Covering:
    """Slots whose mean attention together covers most of the context's: they stand before all others.

    Of each head those that together have less than `share` of the attention to slots before the window, a first stage
    like CriticalKV's. As in the authors' code, the share is less by the attention to the `window` slots before the
    window, mean over the layer, where its own was probably meant; and of T tokens and equal budgets of b they are at
    most (T - window) b / T - window slots, where b - window would fit.
    """

    window: int
    share: float

    def mean_attention(self, slots: Slots, layer_pass: AttentionPass) -> Tensor:
        """Attention (B, H, S) of the window's queries to slots before it, mean over them and the group."""
        mass = layer_pass.column_mass(self.window) / layer_pass.rows_seen(self.window).clamp_min(1)
        newest = slots.position.masked_fill(~slots.valid, -1).amax(-1, keepdim=True).int()
        return mass * (slots.valid & (slots.position <= newest - self.window))

    def raised(self, score: Tensor, attention: Tensor, view: View) -> Tensor:
        """`score` (B, H, S) with the covering slots as high as the layer's highest; `attention` is the mean."""
        newest = view.tokens_seen[:, None, None] - 1 - self.window
        near = (view.slots.position <= newest) & (view.slots.position > newest - self.window)
        share = self.share - (attention * near).sum(-1).mean(-1)[:, None, None]
        order = (attention / attention.sum(-1, keepdim=True).clamp_min(1e-20)).sort(
            dim=-1, descending=True, stable=True
        )
        counts = view.statistics.get(COUNTS, view.budget[:, None])  # (B, L, H), once the model's heads are allocated
        equal = counts.sum((1, 2)) // (counts.shape[1] * counts.shape[2])
        most = (view.tokens_seen - self.window) * equal // view.tokens_seen - self.window
        place = torch.arange(score.shape[-1], device=score.device)
        first = (order.values.cumsum(-1) < share) & (place < most[:, None, None])
        covering = torch.zeros_like(first).scatter(-1, order.indices, first)
        # By less than .1 %, so that of those that another layer's slots displace, it is not the later heads' that go.
        return torch.where(covering, score.amax((1, 2), keepdim=True) * (1 + attention / 1024), score)


@dataclass(frozen=True)
class CoveringAllocator:
    """Base class of allocators that know what covers the context."""

    covering: Covering = field(kw_only=True)

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(prompt_rows=lambda tokens: self.covering.window)


@dataclass(frozen=True)
class CoveringHeads(CoveringAllocator, HeadAdaptive):  # type: ignore[override]  # capabilities are a constant elsewhere
    """Heads of a layer compete by scores of which the covering slots' are highest."""

    def head_budgets(self, view: View) -> Tensor | None:
        return super().head_budgets(_raised(view, self.covering))


@dataclass(frozen=True)
class CoveringModel(CoveringAllocator, ModelWide):  # type: ignore[override]  # likewise
    """Heads of all layers compete by scores of which the covering slots' are each layer's highest."""

    def statistic(self, slots: Slots, layer_pass: AttentionPass) -> Tensor | None:
        """Scores and mean attention (B, 2, H, S)."""
        return torch.stack([slots.score, self.covering.mean_attention(slots, layer_pass)], 1)

    def _counts(self, view: View) -> Tensor:
        both = {layer: noted.to(view.budget.device) for layer, noted in view.statistics.items()}
        raised = {layer: self.covering.raised(noted[:, 0], noted[:, 1], view) for layer, noted in both.items()}
        return super()._counts(replace(view, statistics=raised))


@dataclass(frozen=True)
class CoveringFirst(Wrapper):
    """Apply `inner` to scores of which the covering slots' are highest; while decoding, to the plain ones."""

    inner: LowestScore
    covering: Covering

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(protected=self.inner.protected, prompt_rows=lambda tokens: self.covering.window)

    def victims(self, view: View, excess: Tensor, most: int, barred: Tensor | None = None) -> Victims:
        """The inner selector's, by these scores."""
        view = _raised(view, self.covering) if view.phase == "prefill" else view
        return self.inner.victims(view, excess, most, barred)


def _raised(view: View, covering: Covering) -> View:
    slots = view.slots
    score = covering.raised(slots.score, covering.mean_attention(slots, view.layer_pass), view)
    return replace(view, slots=slots.with_columns(score=score))


CODE = "FFY0/DefensiveKV 9251b95, efficient_defensivekv_press.py"
BEYOND = (
    "A head's group votes together, as in the code. The code computes attention in the model's precision and takes one "
    "prompt at a time."
)


@register
class DefensiveKV(WindowEvicting):
    """Plans for the worst: a slot's score is the most that any query of the window and any head of its group gave it.

    Attention is smoothed over neighbours at constant sum, scores are not below their head's mean and are weighted by
    the size of the projected value, and the heads of a layer compete for its budget. Before that comes a first stage
    by *mean* attention (`covering`), which the authors' code has from CriticalKV. Acts once, after the prompt; while
    decoding with `decode=budget` the worst case alone decides.
    """

    name = "defensivekv"
    family = "eviction"
    title = "DefensiveKV"
    added = ()
    across_layers: ClassVar[bool] = False

    kernel: Odd = Field(5, ge=1, le=1025, description="width of the pooling over neighbours, odd")
    pooling: Literal["max", "average"] = Field("average", description="pooling over neighbours")
    edges: Edges = Field(
        "zeros", description="average pooling at the ends of the text: real tokens only, or zeros beyond them too"
    )
    aggregate: Aggregate = Field(
        "worst", description="over queries and the group's heads: mean, maximum, or DefensiveKV's worst case"
    )
    covering: float = Field(
        0.9, ge=0, le=1, description="share of the mean attention whose slots go first; 0: the worst case alone"
    )

    paper = "https://arxiv.org/abs/2510.13334"
    presets = {
        "paper": Preset(
            "the authors' class with its defaults, whose README reports RULER at 20 %",
            {
                "window": (32, f"{CODE}, window_size"),
                "kernel": (5, f"{CODE}, kernel_size"),
                "pooling": ("average", f"{CODE}, score"),
                "edges": ("zeros", f"{CODE}: avg_pool1d includes its padding; the sum is restored"),
                "aggregate": ("worst", "README, Mechanism of Defensive Aggregation"),
                "covering": (0.9, f"{CODE}, vwl1norm: threshold"),
            },
            beyond=BEYOND,
        ),
        "aggregation": Preset(
            "the defensive aggregation without the first stage by mean attention",
            {"covering": (0.0, "not in the code: what the README's two lines do by themselves")},
        ),
    }
    reasons = {
        "covering": "the code's; 0 leaves the decision to the worst case",
        "decay": "the code's: all queries of the window count alike",
        "decode": PROMPT_ONLY,
        "buffer": RKV_BUFFER,
    }

    def pipeline(self) -> Pipeline:
        covering = Covering(self.window, self.covering)
        select = CoveringFirst(LowestScore(recent=self.window), covering)
        allocate = (
            CoveringModel(select=select, covering=covering)
            if self.across_layers
            else CoveringHeads(window=self.window, floor=0.0, covering=covering)
        )
        return replace(super().pipeline(), allocate=allocate, select=select)


@register
class LayerDefensiveKV(DefensiveKV):
    """DefensiveKV with one cut over all layers: their heads compete for the model's budget.

    All layers hold the whole prompt until the last has read it. The window's tokens always stay; in the code they have
    their layer's highest score and compete with the other layers' slots.
    """

    name = "layer-defensivekv"
    title = "Layer-DefensiveKV"
    across_layers: ClassVar[bool] = True
