"""D2O: layer budgets by attention variance, and cosine merging with a moving threshold."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor

from kvlab.core.budget import UNLIMITED
from kvlab.core.contract import AttentionPass, Edges, LowestScore, Pipeline, Plan, Preset, Slots, Uniform, View, gather
from kvlab.core.contract.in_place import NOT_YET, SIMILAR, InPlace
from kvlab.core.contract.method import Method, Sinks, register
from kvlab.core.contract.numerics import proportional
from kvlab.core.contract.parts import Allocator, Capabilities, Scorer, Selector, Victims, capabilities_of, optional
from kvlab.core.methods.scorers.accumulated_attention import AccumulatedAttention
from kvlab.core.methods.settlers import log_mass
from kvlab.core.methods.settlers.edges import nearest_pair, nearest_slot, sum_to_target, votes_without

THRESHOLD = "threshold"


@dataclass(frozen=True)
class Variance(Uniform):
    """Layer shares softmax(-f), with f the scaled variance over tokens of the attention each received (D2O).

    Layers with flat attention get more. `over` chooses how variances are scaled to [0, 1]: `layers` (default) by the
    smallest and largest layer mean, so that f compares layers; `heads`, the authors' code, by the smallest and largest
    head of the layer itself, before the mean over heads, which does not compare layers. The code averages over the
    batch; here each row decides for itself. Shares become integer budgets with the exact total, between 1 and the
    tokens seen. `spared` layers (the code's 0, 1 and last) keep everything, in addition to the budget. Needs every
    layer's statistic, so the pipeline must be deferred. `from_score`: the scorer already accumulates attention over all
    queries.
    """

    over: Literal["layers", "heads"] = "layers"
    spared: bool = False
    from_score: bool = True

    @property
    def capabilities(self) -> Capabilities:  # type: ignore[override]  # a constant of the class elsewhere
        """All queries of the prompt, unless the score has accumulated them."""
        return Capabilities(prompt_rows=lambda tokens: 1 if self.from_score else tokens)

    def fitted_to(self, score: Scorer, select: Selector, method_score: Scorer) -> tuple[Scorer, Allocator]:
        """Take attention sums from the score where it is one."""
        return score, replace(self, from_score=capabilities_of(score).decay == 1)

    def statistic(self, slots: Slots, layer_pass: AttentionPass) -> Tensor | None:
        """Variance (B, H) over real tokens of the attention each received from the prompt."""
        received = slots.score if self.from_score else layer_pass.column_mass()
        count = slots.valid.sum(-1).clamp_min(1)
        mean = received.masked_fill(~slots.valid, 0.0).sum(-1) / count
        return (received - mean[..., None]).square().masked_fill(~slots.valid, 0.0).sum(-1) / count

    def head_budgets(self, view: View) -> Tensor | None:
        """This layer's slots (B, H), the same for all heads."""
        layers = sorted(view.statistics)
        noted = [view.statistics[layer].to(view.budget.device) for layer in layers]  # may be on several devices
        variance = torch.stack(noted, 1).double()  # (B, L, H)
        flatness = _scaled(variance).mean(-1) if self.over == "heads" else _scaled(variance.mean(-1))
        shares = torch.softmax(-flatness, -1).tolist()
        mine = layers.index(view.layer_idx)
        averages = view.budget[:, 0].tolist()
        layer_pass = view.tokens_seen.tolist()
        if self.spared and view.layer_idx in (layers[0], *layers[1:2], layers[-1]):
            return torch.full_like(view.budget, UNLIMITED)
        rows = [
            proportional(share, average * len(layers), 1, max(tokens, average))[mine]
            for share, average, tokens in zip(shares, averages, layer_pass, strict=True)
        ]
        return torch.tensor(rows, device=view.budget.device)[:, None].expand_as(view.budget).contiguous()


def _scaled(values: Tensor) -> Tensor:
    """Scale each row of the last dimension to [0, 1]; zeros if it is constant."""
    low = values.amin(-1, keepdim=True)
    high = values.amax(-1, keepdim=True)
    return (values - low) / torch.where(high > low, high - low, 1.0)


@dataclass(frozen=True)
class CosineMerge:
    """Nearest-key merging with an averaged similarity threshold (D2O).

    The threshold tau starts at the mean cosine of victims to their nearest kept keys; later it is (1 - smoothing) tau +
    smoothing * that mean. Victims at least as similar merge, others are evicted.

    - `paper`: each head has its own threshold and judges each token by itself. Weights are exp(cosine) of each source
      and e for the target, normalized.
    - `code`, as the authors': one threshold for all heads, and the j-th victim of every head is judged by the mean
      similarity of all heads' j-th victims (in order of position), although these are different tokens. The merged key
      is (k + sum of cosine_j * k_j) / (1 + n), which shrinks it.

    The threshold is per-head state, one number.
    """

    seeks: ClassVar[bool] = True

    rule: Literal["paper", "code"] = "paper"
    smoothing: float = 0.5
    mass: log_mass.Mass = log_mass.AS_PUBLISHED
    space: log_mass.Space = "rotated"
    state: Mapping[str, float] = field(default_factory=dict, hash=False)

    @property
    def capabilities(self) -> Capabilities:
        """Rule `code` judges the heads of a row together."""
        return Capabilities(
            across_heads=self.rule == "code",
            fills_budget=True,
            by_selector=True,
            merges=True,
            mass_of_votes=self.mass.of_votes,
            in_place=self.in_place,
        )

    def head_bytes(self, keys: Tensor, values: Tensor, select: Selector) -> int:
        """Bytes of the moving threshold."""
        return 4

    def in_place(self, score: Scorer, select: Selector) -> InPlace | None:
        """Needs a running sum of attention, a selector of the lowest scores, and the paper's rule."""
        decay = capabilities_of(score).decay
        bounds = optional(select, "bounds")
        plain = self.rule == "paper" and self.mass.rule == "none" and self.space == "rotated"
        if decay is None or bounds is None or not plain:
            return None

        return InPlace(
            SIMILAR,
            lambda view: bounds(view, view.budget),
            lambda view: (
                {"threshold": view.head_state[THRESHOLD], "least": self.smoothing}
                if THRESHOLD in view.head_state
                else None
            ),
            decay=decay,
        )

    def settle(self, view: View, select: Selector) -> Plan:
        """Merge similar victims, evict the others."""
        slots = view.slots
        victims = select.victims(view, view.excess(), view.most_excess)
        if victims.index.shape[-1] > 1:  # in order of the text
            position = gather(slots.position, victims.index).long().masked_fill(~victims.active, 2**40)
            order = position.argsort(dim=-1, stable=True)
            victims = Victims(victims.index.gather(2, order), victims.active.gather(2, order))
        keep = victims.keep(slots.valid)
        one = victims.certain and victims.index.shape[-1] == 1
        if one and self.rule == "paper" and self.mass.rule == "none" and THRESHOLD in view.head_state:
            return self._decode_step(view, keep, victims.index)
        similarity, target = nearest_slot(slots, victims.index, keep, view.never())
        judged = victims.active & torch.isfinite(similarity)
        similarity = torch.where(judged, similarity, 0.0)
        before = view.head_state.get(THRESHOLD, torch.full_like(slots.score[..., 0], NOT_YET))
        over = (1, 2) if self.rule == "code" else (2,)
        count = judged.sum(over, keepdim=True)
        mean = similarity.sum(over, keepdim=True) / count.clamp_min(1)
        old = before[..., None]
        smoothed = torch.where(old == NOT_YET, mean, (1 - self.smoothing) * old + self.smoothing * mean)
        threshold = torch.where(count > 0, smoothed, old)
        compared = similarity
        if self.rule == "code":
            compared = similarity.sum(1, keepdim=True) / judged.sum(1, keepdim=True).clamp_min(1)
        # The mean of one term may differ from it by rounding, which must not decide.
        active = judged & (compared >= threshold - 1e-6)
        source = victims.index
        target = torch.where(active, target, source)
        width = slots.valid.shape[-1]
        raw = similarity if self.rule == "code" else similarity.exp()
        target_raw = 1.0 if self.rule == "code" else torch.e
        summed = torch.ones_like(raw) if self.rule == "code" else raw
        total = target_raw + sum_to_target(summed, target, active, width)
        votes = gather(slots.votes, target) + sum_to_target(gather(slots.votes, source), target, active, width)
        turn = log_mass.turns(view, source, target, self.space)
        parts = log_mass.Parts(source, target, active, raw / total, target_raw / total, turn)
        score = gather(slots.score, target)
        return Plan(
            keep=keep,
            edges=parts.edges(votes, self.mass.after(view, parts, votes), score, similarity),
            head_state={THRESHOLD: threshold[..., 0].expand_as(before).contiguous()},
        )

    def _decode_step(self, view: View, keep: Tensor, source: Tensor) -> Plan:
        """One token per head, as in most decode steps; a token that does not merge is written to itself.

        The newest token is kept, so there is a nearest one, and the mean similarity is its own.
        """
        similarity, ends, keys = nearest_pair(view.slots, source, keep, view.never())
        old = view.head_state[THRESHOLD][..., None]
        threshold = torch.where(old == NOT_YET, similarity, old.lerp(similarity, self.smoothing))
        active = similarity >= threshold - 1e-6
        share = (similarity - 1).sigmoid()  # exp(cosine) / (exp(cosine) + e)
        target = ends[..., 1:]
        votes = gather(view.slots.votes, ends)
        edges = Edges(
            source=source,
            target=torch.where(active, target, source),
            active=active,
            key_weight=share,
            value_weight=share,
            self_key_weight=None,
            self_value_weight=None,
            votes_after=votes[..., :1] + votes[..., 1:],
            log_mass_after=None,
            score_after=None,
            similarity=similarity,
            turn=log_mass.turns(view, source, target, self.space),
            ends=ends,
            end_keys=keys,
            harmless=True,
            shares=True,
        )
        lost = votes_without(view, votes[..., :1], active)
        return Plan(keep=keep, edges=edges, head_state={THRESHOLD: threshold[..., 0]}, lost=lost)


@register
class D2O(Method):
    """Gives layers with flat attention more slots, and merges victims into similar kept slots.

    Variant `paper` (default) follows the formulas, with a threshold per head. `code` follows the authors' code:
    similarities are averaged over heads although each head evicts different tokens, the mean shrinks keys, and
    variances are scaled within a layer before they are compared between layers. In the code, layers 0, 1 and the last
    are never compressed and not counted: `spare_layers` does that too, and then exceeds the budget. As in the code the
    prompt is compressed at the first pass after it, when every layer's variance is known, so the cache of the whole
    prompt exists until then.
    """

    name = "d2o"
    family = "merging"
    title = "D2O"

    variant: Literal["paper", "code"] = Field("paper", description="threshold, weights and layer shares")
    sinks: Sinks = 4
    recent: float = Field(
        0.5, gt=0, lt=1, description="share of the budget for recent tokens; heavy hitters get the rest"
    )
    smoothing: float = Field(0.5, gt=0, le=1, description="weight of the newest mean similarity in the threshold")
    spare_layers: bool = Field(False, description="variant code: layers 0, 1 and last keep all, beyond the budget")
    mass: log_mass.MassRule = Field("none", description=log_mass.MASS_HELP)
    alpha: float = Field(0.6, ge=0, le=1, description="mass `alpha`: its factor")
    space: log_mass.Space = Field("rotated", description=log_mass.SPACE_HELP)

    paper = "https://arxiv.org/abs/2406.13035"
    presets = {
        "paper": Preset(
            "the paper's formulas, at the proportions of its scripts",
            {
                "variant": ("paper", "the formulas of layer sizes, threshold and weights"),
                "recent": (0.5, "README.md: hh_ratio = recent_ratio = .1"),
                "mass": ("none", "the formulas have no such term"),
                "space": ("rotated", "keys are merged as they are cached"),
            },
            beyond="In the original each query head has its own scores and slots.",
        ),
        "code": Preset(
            "the authors' code as their README runs it",
            {
                "variant": ("code", "modeling_llama3_7b_13b_d2o.py, D2O_LayerKVCache"),
                "sinks": (4, "D2O_LayerKVCache: the first 4 scores are infinite"),
                "recent": (0.5, "README.md: hh_ratio = recent_ratio = .1, half of 20 % each"),
                "smoothing": (0.5, "D2O_LayerKVCache, belta"),
                "spare_layers": (True, "LlamaAttention3_D2O.forward: layers 0, 1 and the last keep all"),
                "mass": ("none", "D2O_LayerKVCache"),
                "space": ("rotated", "D2O_LayerKVCache"),
            },
            beyond="It repeats keys per query head, and averages budgets over a batch.",
        ),
    }
    reasons = {
        "variant": "the code's threshold mixes different tokens of different heads, and its mean shrinks keys",
        "sinks": "the code's; the paper has none",
        "smoothing": "the code's; at 0.5 the threshold is the mean of the old one and the newest similarity",
        "spare_layers": "keeping three full layers exceeds the budget; in models of three layers these are all",
        "alpha": "used by mass `alpha` only, which is not D2O's; the value is ZSMerge's",
    }

    @model_validator(mode="after")
    def _check_shares(self) -> "D2O":
        if self.spare_layers and self.variant != "code":
            raise ValueError("only variant 'code' spares layers")
        return self

    def pipeline(self) -> Pipeline:
        return Pipeline(
            AccumulatedAttention(),
            Variance(over="heads" if self.variant == "code" else "layers", spared=self.spare_layers),
            LowestScore(sinks=self.sinks, recent=self.recent),
            CosineMerge(
                rule=self.variant, smoothing=self.smoothing, mass=log_mass.Mass(self.mass, self.alpha), space=self.space
            ),
            deferred=True,
        )
