"""Selector wrapper that pins chosen tokens: what if they had been kept?"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kvlab.core.contract.parts import Capabilities, Selector, Victims, Wrapper, capabilities_of, optional
from kvlab.core.contract.pipeline import Pipeline
from kvlab.core.contract.view import View


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
