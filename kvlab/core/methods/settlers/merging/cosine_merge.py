"""D2O: merge victims into their nearest kept slot if the similarity exceeds a moving threshold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from kvlab.core.contract.in_place import NOT_YET, SIMILAR, InPlace
from kvlab.core.contract.parts import Capabilities, Scorer, Selector, Victims, capabilities_of
from kvlab.core.contract.plan import Edges, Plan
from kvlab.core.contract.view import View
from kvlab.core.methods.settlers.edges import gather, nearest_pair, nearest_slot, sum_to_target, votes_without
from kvlab.core.methods.settlers.log_mass import AS_PUBLISHED, Mass, Parts, Space, turns

THRESHOLD = "threshold"


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

    rule: Literal["paper", "code"] = "paper"
    smoothing: float = 0.5
    mass: Mass = AS_PUBLISHED
    space: Space = "rotated"
    state: Mapping[str, float] = field(default_factory=dict)

    @property
    def capabilities(self) -> Capabilities:
        """Rule `code` judges the heads of a row together."""
        return Capabilities(
            across_heads=self.rule == "code",
            fills_budget=True,
            by_selector=True,
            merges=True,
            mass_of_votes=self.mass.of_votes,
            seeks=True,
            head_bytes=self.head_bytes,
            in_place=self.in_place,
        )

    def head_bytes(self, keys: Tensor, values: Tensor, select: Selector) -> int:
        """Bytes of the moving threshold."""
        return 4

    def in_place(self, score: Scorer, select: Selector) -> InPlace | None:
        """Needs a running sum of attention, a selector of the lowest scores, and the paper's rule."""
        decay, bounds = capabilities_of(score).decay, capabilities_of(select).bounds
        plain = self.rule == "paper" and self.mass.rule == "none" and self.space == "rotated"
        if decay is None or bounds is None or not plain:
            return None

        def fields(view: View) -> Mapping[str, Any] | None:
            if THRESHOLD not in view.head_state:
                return None
            return {"threshold": view.head_state[THRESHOLD], "least": self.smoothing}

        return InPlace(SIMILAR, lambda view: bounds(view, view.budget), fields, decay=decay)

    def settle(self, view: View, select: Selector) -> Plan:
        """Merge similar victims, evict the others."""
        slots = view.slots
        victims = _by_position(view, select.victims(view, view.excess(), view.most_excess))
        keep = victims.keep(slots.valid)
        one = victims.certain and victims.index.shape[-1] == 1
        if one and self.rule == "paper" and self.mass.rule == "none" and THRESHOLD in view.head_state:
            return self._decode_step(view, keep, victims.index)
        similarity, target = nearest_slot(slots, victims.index, keep, view.never())
        judged = victims.active & torch.isfinite(similarity)
        similarity = torch.where(judged, similarity, 0.0)
        before = view.head_state.get(THRESHOLD, torch.full_like(slots.score[..., 0], NOT_YET))
        passed, threshold = self._judge(similarity, judged, before)
        active = judged & passed
        return Plan(
            keep=keep,
            edges=self._edges(view, victims.index, torch.where(active, target, victims.index), active, similarity),
            head_state={THRESHOLD: threshold.expand_as(before).contiguous()},
        )

    def _decode_step(self, view: View, keep: Tensor, source: Tensor) -> Plan:
        """One token per head, as in most decode steps; a token that does not merge is written to itself.

        The newest token is kept, so there is a nearest one, and the mean similarity is its own.
        """
        similarity, ends, keys = nearest_pair(view.slots, source, keep, view.never())
        old = view.head_state[THRESHOLD][..., None]
        active, threshold, share = _judge_token(similarity, old, self.smoothing)
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
            turn=turns(view, source, target, self.space),
            ends=ends,
            end_keys=keys,
            harmless=True,
            shares=True,
        )
        lost = votes_without(view, votes[..., :1], active)
        return Plan(keep=keep, edges=edges, head_state={THRESHOLD: threshold[..., 0]}, lost=lost)

    def _judge(self, similarity: Tensor, judged: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:
        """(merge mask (B, H, E), new threshold (B, H))."""
        over = (1, 2) if self.rule == "code" else (2,)
        count = judged.sum(over, keepdim=True)
        mean = similarity.sum(over, keepdim=True) / count.clamp_min(1)
        old = before[..., None]
        smoothed = torch.where(old == NOT_YET, mean, (1 - self.smoothing) * old + self.smoothing * mean)
        threshold = torch.where(count > 0, smoothed, old)
        if self.rule == "code":
            similarity = similarity.sum(1, keepdim=True) / judged.sum(1, keepdim=True).clamp_min(1)
        # The mean of one term may differ from it by rounding, which must not decide.
        return similarity >= threshold - 1e-6, threshold[..., 0]

    def _edges(self, view: View, source: Tensor, target: Tensor, active: Tensor, similarity: Tensor) -> Edges:
        slots, width = view.slots, view.slots.valid.shape[-1]
        raw = similarity if self.rule == "code" else similarity.exp()
        parts_of_target = sum_to_target(torch.ones_like(raw) if self.rule == "code" else raw, target, active, width)
        own_raw = 1.0 if self.rule == "code" else torch.e
        total = own_raw + parts_of_target
        votes = gather(slots.votes, target) + sum_to_target(gather(slots.votes, source), target, active, width)
        parts = Parts(source, target, active, raw / total, own_raw / total, turns(view, source, target, self.space))
        return parts.edges(votes, self.mass.after(view, parts, votes), gather(slots.score, target), similarity)


def _by_position(view: View, victims: Victims) -> Victims:
    if victims.index.shape[-1] == 1:
        return victims
    position = gather(view.slots.position, victims.index).long().masked_fill(~victims.active, 2**40)
    order = position.argsort(dim=-1, stable=True)
    return Victims(victims.index.gather(2, order), victims.active.gather(2, order))


def _judge_token(cosine: Tensor, old: Tensor, smoothing: float) -> tuple[Tensor, Tensor, Tensor]:
    """(merge mask, new threshold, weight) of one token per head by rule `paper`, each (B, H, 1)."""
    threshold = torch.where(old == NOT_YET, cosine, old.lerp(cosine, smoothing))
    share = (cosine - 1).sigmoid()  # exp(cosine) / (exp(cosine) + e)
    return cosine >= threshold - 1e-6, threshold, share
