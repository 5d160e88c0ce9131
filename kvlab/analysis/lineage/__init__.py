"""Track which slot holds each token at any step, by folding events into a forest of positions."""

from kvlab.analysis.lineage.fold import NEVER, Lineage, fold
from kvlab.analysis.lineage.states import STATES, State, states_at

__all__ = ["NEVER", "STATES", "Lineage", "State", "fold", "states_at"]
