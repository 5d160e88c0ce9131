"""Choices shared by all merging methods: where keys are averaged, and the log mass of merged slots."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from kvlab.core.contract import NEVER_SEEN, Edges, View, gather, log_total
from kvlab.core.methods.settlers.edges import max_to_target, sum_to_target

MassRule = Literal["none", "alpha", "votes", "exact", "bounded"]
Space = Literal["rotated", "unrotated"]

SPACE_HELP = "average keys as stored (rotated, as published) or rotated to the pivot's position first (unrotated)"
MASS_HELP = (
    "log mass of a merged slot: none, alpha * log(votes), log(votes), exact at the observed query, or exact but bounded"
)


@dataclass(frozen=True)
class Parts:
    """Keys of a merge: sources, targets and weights. Every tensor is (B, H, E)."""

    source: Tensor
    target: Tensor
    active: Tensor
    key_weight: Tensor
    self_key_weight: Tensor
    turn: Tensor | None = None

    def edges(
        self, votes_after: Tensor, log_mass_after: Tensor, score_after: Tensor, similarity: Tensor | None = None
    ) -> Edges:
        """The merge as edges, with values weighted as keys."""
        weight = self.key_weight
        target_weight = self.self_key_weight
        return Edges(
            source=self.source,
            target=self.target,
            active=self.active,
            turn=self.turn,
            similarity=similarity,
            key_weight=weight,
            value_weight=weight,
            self_key_weight=target_weight,
            self_value_weight=target_weight,
            votes_after=votes_after,
            log_mass_after=log_mass_after,
            score_after=score_after,
        )


@dataclass(frozen=True)
class Mass:
    """Mass rule of a merging method.

    `none` keeps the target's log mass (a merged slot counts as one token), `alpha` is alpha * log(votes) (ZSMerge),
    `votes` is log(votes) (identical tokens merge losslessly), `exact` is the log of the parts' summed mass minus the
    merged key's own log mass at the last query: it preserves the mean mass of a group of query heads, and the mass
    itself for ungrouped heads, in whatever space keys are averaged. `bounded` is the smaller of `exact` and `votes`: if
    key weights do not follow the attention, `exact` can need a log mass far above log(votes) when one part had nearly
    all of it, and later queries then overrate the slot. Text KL on mini at 20 % (6 prompts) was 1.06 for zsmerge with
    `exact`, 0.23 with `bounded` and with alpha * log(votes).
    """

    rule: MassRule = "none"
    alpha: float = 0.6

    def after(self, view: View, parts: Parts, votes: Tensor) -> Tensor:
        """Log mass (B, H, E) of each edge's target after the merge; `votes` (B, H, E) are its new votes."""
        if self.rule == "none":
            return gather(view.slots.log_mass, parts.target)
        if self.rule not in ("exact", "bounded"):
            return (self.alpha if self.rule == "alpha" else 1.0) * votes.log()
        # log(summed mass of the target and its sources) - log(mass of the merged key without log mass), (B, H, E)
        slots = view.slots
        whole = view.layer_pass.last_logits()[:, :, :, 0] + slots.log_mass_of_heads()  # (B, H, G, S)
        group = whole.shape[2]
        normalizer = log_total(whole[:, :, :, None], view.layer_pass.sinks)[:, :, :, 0]
        part = (whole - normalizer).clamp_min(NEVER_SEEN).flatten(1, 2)  # (B, H * G, S)
        source, target, active = (
            tensor.repeat_interleave(group, 1) for tensor in (parts.source, parts.target, parts.active)
        )
        of_source, of_target = (gather(part, ends) for ends in (source, target))
        before = log_sum_over_target(of_source, of_target, target, active, slots.valid.shape[-1])
        after = merged_logits(view, parts) - normalizer
        exact = torch.logsumexp(before.unflatten(1, (-1, group)), 2) - torch.logsumexp(after, 2)
        return exact if self.rule == "exact" else exact.minimum(votes.log())

    @property
    def of_votes(self) -> float | None:
        """Factor of log(votes) in a slot's log mass; None if slots store their own."""
        return {"none": 0.0, "alpha": self.alpha, "votes": 1.0}.get(self.rule)


AS_PUBLISHED = Mass()  # most papers ignore mass


def turns(view: View, source: Tensor, target: Tensor, space: Space) -> Tensor | None:
    """Positions (B, H, E) by which source keys are rotated to their target's; None if they stay as stored."""
    if space == "rotated":
        return None
    return (gather(view.slots.position, target) - gather(view.slots.position, source)).float()


def rotate_sources(view: View, source: Tensor, turn: Tensor | None) -> Tensor:
    """Source keys (B, H, E, d) float32 as they enter the average; unchanged without rotary embedding."""
    keys = gather(view.slots.keys, source).float()
    rotary = view.layer_pass.rotary
    return keys if turn is None or rotary is None else rotary.turn(keys, turn)


def drift(view: View, source: Tensor, target: Tensor, turn: Tensor | None) -> Tensor | float:
    """Change (B, H, E) of a source key's logit at the last query when moved to its target, mean over the group.

    Rotation changes it and, with ALiBi, the new position.
    """
    there = view.layer_pass.place_bias(target)
    here = view.layer_pass.place_bias(source)
    moved = 0.0 if there is None or here is None else (there - here).mean(2)
    if turn is None or view.layer_pass.rotary is None:
        return moved
    change = rotate_sources(view, source, turn) - gather(view.slots.keys, source).float()
    return (
        moved
        + (
            view.layer_pass.query[:, :, -1].float().unflatten(1, (view.slots.keys.shape[1], -1)).mean(2)[:, :, None]
            * change
        ).sum(-1)
        * view.layer_pass.scaling
    )


def merged_logits(view: View, parts: Parts, rows: int = 1) -> Tensor:
    """Logits (B, H, G * rows, E) of the last `rows` queries at each edge's merged key, without log mass."""
    slots = view.slots
    weighted = parts.key_weight[..., None] * rotate_sources(view, parts.source, parts.turn)
    key = parts.self_key_weight[..., None] * gather(slots.keys, parts.target).float()
    key = key + sum_to_target(weighted, parts.target, parts.active, slots.valid.shape[-1])
    query = (
        view.layer_pass.query[:, :, -rows:].float().unflatten(1, (key.shape[1], -1)).flatten(2, 3)
    )  # (B, H, G * r, d)
    logits = query @ key.transpose(-1, -2) * view.layer_pass.scaling
    softcap = view.layer_pass.softcap
    places = view.layer_pass.place_bias(parts.target, rows)
    logits = logits if softcap is None else softcap * torch.tanh(logits / softcap)
    return logits if places is None else logits + places


def log_sum_over_target(source: Tensor, of_target: Tensor, target: Tensor, active: Tensor, width: int) -> Tensor:
    """Log-sum-exp (B, H, E) of each target's log `of_target` and its active `source` logs."""
    if target.shape[-1] == 1:
        return torch.logaddexp(of_target, max_to_target(source, target, active, width))
    top = torch.maximum(of_target, max_to_target(source, target, active, width))
    return top + ((of_target - top).exp() + sum_to_target((source - top).exp(), target, active, width)).log()
