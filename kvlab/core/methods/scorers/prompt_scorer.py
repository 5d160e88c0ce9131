"""Base class of scorers that need neither later queries nor hidden states, and keep no state of their own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class PromptScorer:
    """Base class of scorers with the usual defaults of a `Scorer`; a subclass adds `capabilities` and `update`.

    The fields are keyword-only, so that a subclass's own come first; one that has another default here stays so.
    """

    every_step: bool = False
    needs_hidden_states: bool = False
    state: Mapping[str, float] = field(default_factory=dict)
