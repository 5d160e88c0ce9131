"""Merge chosen tokens by hand: by the method's own merging rule, or into the slot with the most similar key."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kvlab.core.contract.parts import Capabilities, Selector, Victims, Wrapper, capabilities_of
from kvlab.core.contract.pipeline import Pipeline
from kvlab.core.contract.plan import Edges
from kvlab.core.contract.slot_columns import Columns
from kvlab.core.contract.view import View
from kvlab.core.errors import UserError
from kvlab.core.methods.settlers.edges import first_of, gather, nearest_slot, sum_to_target


@dataclass(frozen=True)
class ChosenVictims(Wrapper):
    """The slots `chosen` (B, H, S), then as many of the inner selector's victims as are still in excess."""

    inner: Selector
    chosen: Tensor

    @property
    def capabilities(self) -> Capabilities:
        return capabilities_of(self.inner)

    def victims(self, view: View, excess: Tensor, most: int, barred: Tensor | None = None) -> Victims:
        """All chosen slots, also where they are more than `excess` (B, H), and the inner selector's."""
        chosen = self.chosen & view.slots.valid
        count = chosen.sum(-1)
        index, active = first_of(chosen, int(count.max()))
        others = chosen if barred is None else chosen | barred
        rest = self.inner.victims(view, (excess - count).clamp_min(0), most, others)
        return Victims(torch.cat([index, rest.index], -1), torch.cat([active, rest.active], -1))


def check_merging(pipeline: Pipeline) -> None:
    """Raise UserError if the method merges by a rule that is not one about single tokens."""
    settle = pipeline.can.settle
    if settle.merges and not settle.by_selector:
        raise UserError("This method merges tokens in groups, so none can be merged by hand: keep or drop it.")


def columns_with_votes(columns: Columns) -> Columns:
    """The columns of a method that does not merge, with votes; a slot's log mass is log(votes)."""
    return replace(columns, votes=True, mass_of_votes=1.0)


def into_most_similar(view: View, chosen: Tensor, keep: Tensor) -> Edges | None:
    """Merges of the slots `chosen` (B, H, S) into the slot of `keep` (B, H, S) with the most similar key (cosine).

    Keys and values become means weighted by votes, and votes add up: KeepKV's target, without its threshold, and the
    weights of equal logits. The target's score stays. None if nothing is chosen.
    """
    slots = view.slots
    width = view.slots.valid.shape[-1]
    most = int(chosen.sum(-1).max())
    if most == 0:
        return None
    source, active = first_of(chosen, most)
    cosine, target = nearest_slot(slots, source, keep, view.never())
    active = active & torch.isfinite(cosine)
    target = torch.where(active, target, source)
    votes_of_source, votes_of_target = (gather(slots.votes, ends).float() for ends in (source, target))
    votes = votes_of_target + sum_to_target(votes_of_source, target, active, width)
    share = votes_of_source / votes
    own = votes_of_target / votes
    return Edges(
        source=source,
        target=target,
        active=active,
        key_weight=share,
        value_weight=share,
        self_key_weight=own,
        self_value_weight=own,
        votes_after=votes,
        log_mass_after=None,
        score_after=None,
        similarity=cosine,
    )
