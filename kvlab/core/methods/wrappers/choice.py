"""The pipeline of a requested method with the tokens that the request keeps, restores or drops."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kvlab.core.choice import MethodChoice
from kvlab.core.contract import Pipeline, SparseAttention, View
from kvlab.core.contract.parts import Capabilities, Selector, Victims, Wrapper, capabilities_of, optional
from kvlab.core.errors import UserError
from kvlab.core.methods.wrappers.read_back import with_slots_read
from kvlab.core.methods.wrappers.restore import giving_back


@dataclass(frozen=True)
class Keeping(Wrapper):
    """Apply `inner`, but never evict the tokens at `positions`.

    Pinned tokens count in the budget, so a head has as many slots as without them; if it has too few, the first of them
    are kept, and one slot is always left for the newest token.
    """

    inner: Selector
    positions: tuple[int, ...]

    @property
    def capabilities(self) -> Capabilities:
        inner = capabilities_of(self.inner)
        return replace(inner, protected=None if inner.protected is None else self.protected)

    @property
    def sinks(self) -> float | int | None:
        """Pinned tokens come before the window, like sinks."""
        inner = optional(self.inner, "sinks")
        return None if inner is None else inner + len(self.positions)

    def victims(self, view: View, excess: Tensor, most: int, barred: Tensor | None = None) -> Victims:
        """The inner selector's victims among all other slots."""
        kept = self.forced(view)
        return self.inner.victims(_rest(view, kept), excess, most, kept if barred is None else barred | kept)

    def protected(self, view: View) -> Tensor:
        """Protected slots (B, H, S): pinned tokens, and what the inner selector protects with the remaining budget."""
        kept = self.forced(view)
        inner = capabilities_of(self.inner).protected
        return kept if inner is None else inner(_rest(view, kept)) | kept

    def forced(self, view: View) -> Tensor:
        """Slots (B, H, S) of the pinned tokens."""
        chosen = torch.tensor(self.positions, dtype=torch.int32, device=view.slots.position.device)
        wanted = torch.isin(view.slots.position, chosen) & view.slots.valid
        return wanted & (wanted.cumsum(-1) < view.budget[..., None])


def keeping(pipeline: Pipeline, positions: tuple[int, ...]) -> Pipeline:
    """The pipeline with the tokens at `positions` pinned."""
    return replace(pipeline, select=Keeping(pipeline.select, positions)) if positions else pipeline


def _rest(view: View, kept: Tensor) -> View:
    return replace(view, budget=(view.budget - kept.sum(-1)).clamp_min(1))


def with_changes(pipeline: Pipeline, choice: MethodChoice, layers: Sequence[int], room: int) -> Pipeline:
    """The pipeline with the pinned and restored tokens of `choice`; for one cache only.

    `layers`: compressed layers of the model; `room`: tokens that may be generated.
    """
    pipeline = keeping(pipeline, choice.force_keep)
    return pipeline if choice.returned is None else giving_back(pipeline, choice.returned, layers, room)


def sparse_attention_with_changes(
    sparse_attention: SparseAttention | None, choice: MethodChoice
) -> SparseAttention | None:
    """The sparse attention with the slots that `choice` returns to it.

    Raises UserError if it returns slots to the sparse attention of a method that reads everything.
    """
    if choice.returned is not None and choice.returned.kind == "read" and sparse_attention is None:
        raise UserError(f"{choice.method} reads every slot already: choose sparse attention, as in read=quest.")
    return sparse_attention if choice.returned is None else with_slots_read(sparse_attention, choice.returned)


def check_tokens(choice: MethodChoice, tokens: int) -> None:
    """Raise UserError if `choice` changes a token that a text of so many tokens does not have."""
    restored = choice.returned.tokens if choice.returned else ()
    last = max((*choice.force_keep, *restored), default=0)
    if last >= tokens:
        raise UserError(f"Token {last} cannot be kept: the prompt has {tokens:,} tokens, counted from 0.")
