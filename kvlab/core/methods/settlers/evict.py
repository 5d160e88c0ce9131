"""Plain eviction."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from kvlab.core.contract.in_place import EVICT, InPlace
from kvlab.core.contract.parts import Capabilities, Scorer, Selector, capabilities_of, optional
from kvlab.core.contract.plan import Plan
from kvlab.core.contract.view import View


@dataclass(frozen=True)
class Evict:
    """Evict all victims."""

    state: Mapping[str, float] = field(default_factory=dict, hash=False)

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(fills_budget=True, by_selector=True, in_place=self.in_place)

    def in_place(self, score: Scorer, select: Selector) -> InPlace | None:
        """Needs a score that is a running sum of attention and a selector of the lowest scores."""
        decay = capabilities_of(score).decay
        bounds = optional(select, "bounds")
        if decay is None or bounds is None:
            return None
        return InPlace(EVICT, lambda view: bounds(view, view.budget), decay=decay)

    def settle(self, view: View, select: Selector) -> Plan:
        victims = select.victims(view, view.excess(), view.most_excess)
        return Plan(keep=victims.keep(view.slots.valid), lost=victims.votes(view.slots.votes))
