"""What must go is dropped."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from kvlab.methods.pipeline import Selector
from kvlab.methods.plan import Plan
from kvlab.methods.view import View


@dataclass(frozen=True)
class Evict:
    """Plain eviction."""

    state: Mapping[str, float] = field(default_factory=dict)
    fills_budget: ClassVar[bool] = True

    def settle(self, view: View, select: Selector) -> Plan:
        """Everything over budget leaves."""
        victims = select.victims(view, view.excess(), view.most_excess)
        return Plan(keep=victims.keep(view.slots.valid), lost=victims.votes(view.slots.votes))
