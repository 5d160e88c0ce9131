"""What must go is dropped."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kvlab.methods.capabilities import Capabilities
from kvlab.methods.pipeline import Selector
from kvlab.methods.plan import Plan
from kvlab.methods.view import View


@dataclass(frozen=True)
class Evict:
    """Plain eviction."""

    state: Mapping[str, float] = field(default_factory=dict)

    @property
    def capabilities(self) -> Capabilities:
        """Leaves every head with its budget."""
        return Capabilities(
            fills_budget=True,
        )

    def settle(self, view: View, select: Selector) -> Plan:
        """Everything over budget leaves."""
        victims = select.victims(view, view.excess(), view.most_excess)
        return Plan(keep=victims.keep(view.slots.valid), lost=victims.votes(view.slots.votes))
