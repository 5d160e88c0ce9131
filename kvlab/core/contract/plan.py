"""A decision as data: which slots stay, and what happens to the others."""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor


@dataclass(frozen=True)
class Edges:
    """Merges of one layer: E source slots, each with its target slot. Every tensor is (B, H, E).

    A target's new key is `key_scale * (self_key_weight * k_target + sum of key_weight * k_source) + key_shift`, its new
    value `self_value_weight * v_target + sum of value_weight * v_source`; sources with one target are summed. Values of
    the target (self weights, scale, and all `*_after`) are repeated on each of its edges; log mass and score stay
    unchanged if None.
    """

    source: Tensor  # int64
    target: Tensor  # int64
    active: Tensor  # bool: whether the edge exists; others are padding
    key_weight: Tensor | None  # None: keys stay unchanged
    value_weight: Tensor
    self_key_weight: Tensor | None  # both None if they are 1 - weight (`shares`)
    self_value_weight: Tensor | None
    votes_after: Tensor
    log_mass_after: Tensor | None
    score_after: Tensor | None
    similarity: Tensor | None  # None if unused; consumers then compute the cosine of the two keys
    key_scale: Tensor | None = None
    key_shift: Tensor | None = None  # (B, H, E, d)
    turn: Tensor | None = None  # positions by which each source key is re-rotated before averaging; None: not
    extra_after: dict[str, Tensor] | None = None
    kind: Literal["merge", "pool"] = "merge"
    ends: Tensor | None = None  # source and target, (B, H, 2 E), if already concatenated
    end_keys: Tensor | None = None  # their keys, (B, H, 2 E, d) float32, if already gathered
    harmless: bool = False  # inactive edges write to an evicted slot: E is 1
    shares: bool = False  # weights of source and target sum to 1


@dataclass(frozen=True)
class ValueShift:
    """Amounts added to values after the edges have acted; a slot listed twice gets both."""

    slot: Tensor  # (B, H, E) int64
    amount: Tensor  # (B, H, E, d); zero for padding


@dataclass(frozen=True)
class NewKeys:
    """Keys that replace those of some slots; no slot is listed twice."""

    slot: Tensor  # (B, H, E) int64
    keys: Tensor  # (B, H, E, d)


@dataclass(frozen=True)
class Plan:
    """What to do with one layer: slots not in `keep` are merged along their edge, or else evicted."""

    keep: Tensor  # (B, H, S) bool
    edges: Edges | None = None
    guard_activations: Tensor | None = None  # (B, H): how often a numerical guard replaced the method's rule
    extra: dict[str, Tensor] | None = None  # (B, H, S) new values of the method's own slot state
    value_shift: ValueShift | None = None
    new_keys: NewKeys | None = None
    log_mass: Tensor | None = None  # (B, H, S) new log mass of kept slots that are not merge targets
    head_state: dict[str, Tensor] | None = None  # (B, H, ...) new per-head state, see `View.head_state`
    lost: Tensor | None = None  # (B, H) votes evicted without being merged, if the settler knows
