"""Random slots: the control that every kind of sparse attention must beat."""

from typing import ClassVar

from torch import Tensor

from kvlab.core.contract import NEVER, Chosen, Held, Index, SparseCapabilities, SparseShare, register_sparse_attention
from kvlab.core.methods.sparse_attention.selection import best, step_draws


@register_sparse_attention
class RandomSlots(SparseShare):
    """Uniformly drawn slots, new ones at each step, and the step's own token; weights are not corrected."""

    name = "random"
    title = "Random slots"
    capabilities: ClassVar[SparseCapabilities] = SparseCapabilities(indexes=False)

    def choose(self, query: Tensor, held: Held, index: Index) -> Chosen:
        drawn = step_draws(held, 1)
        return best(self, held, drawn.masked_fill(~held.valid()[:, :, None], NEVER))
