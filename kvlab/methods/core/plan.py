"""A decision as data: which slots stay, and what becomes of the others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor


@dataclass(frozen=True)
class Edges:
    """Merges of one layer: E source slots, each with the slot it goes into. Every tensor is (B, H, E).

    A target's new key is `key_scale * (self_key_weight * k_target + sum of key_weight * k_source) + key_shift`, its new
    value `self_value_weight * v_target + sum of value_weight * v_source`; sources with one target are summed. What
    belongs to the target (self weights, scale, and all `*_after`) is repeated on each of its edges; log mass and score
    stay as they are where theirs is None.
    """

    source: Tensor  # int64
    target: Tensor  # int64
    active: Tensor  # bool: the edge exists; elsewhere E is only room
    key_weight: Tensor | None  # None: keys stay as they are
    value_weight: Tensor
    self_key_weight: Tensor | None  # of both None where they are what `shares` leave
    self_value_weight: Tensor | None
    votes_after: Tensor
    log_mass_after: Tensor | None
    score_after: Tensor | None
    similarity: Tensor | None  # None where it played no part; whoever wants to know takes the cosine of the two keys
    key_scale: Tensor | None = None
    key_shift: Tensor | None = None  # (B, H, E, d)
    turn: Tensor | None = None  # positions by which each source key is turned before it is averaged; None: as it is
    extra_after: dict[str, Tensor] | None = None
    kind: Literal["merge", "pool"] = "merge"
    ends: Tensor | None = None  # source and target side by side, (B, H, 2 E), where they have been put so already
    end_keys: Tensor | None = None  # their keys, (B, H, 2 E, d) float32, where they have been looked up already
    harmless: bool = False  # what an edge that is not active would write goes into a slot that leaves: E is 1
    shares: bool = False  # the weights of key and value, and what they leave to the target: each adds up to 1


@dataclass(frozen=True)
class ValueShift:
    """Amounts added to the values of some slots once the edges have acted; a slot named twice gets both amounts."""

    slot: Tensor  # (B, H, E) int64
    amount: Tensor  # (B, H, E, d); zero where E is only room


@dataclass(frozen=True)
class NewKeys:
    """Keys that replace those of some slots; no slot is named twice."""

    slot: Tensor  # (B, H, E) int64
    keys: Tensor  # (B, H, E, d)


@dataclass(frozen=True)
class Plan:
    """What to do with one layer: slots not in `keep` leave, along an edge if they have one, else by eviction."""

    keep: Tensor  # (B, H, S) bool
    edges: Edges | None = None
    guard_activations: Tensor | None = None  # (B, H): how often a numerical guard replaced the method's own rule
    extra: dict[str, Tensor] | None = None  # (B, H, S) new values of the method's own slot state
    value_shift: ValueShift | None = None
    new_keys: NewKeys | None = None
    log_mass: Tensor | None = None  # (B, H, S) new log mass of slots that stay without an edge into them
    head_state: dict[str, Tensor] | None = None  # (B, H, ...) what the method notes of each head, for `View.head_state`
    lost: Tensor | None = None  # (B, H) votes that leave without going into another slot, where the settler knows

    def turns_keys(self) -> bool:
        """Whether some key is rotated to another position, which takes the frequencies it was rotated by."""
        return self.new_keys is not None or (self.edges is not None and self.edges.turn is not None)
