"""Random slots: the control that every reading must beat."""

from typing import ClassVar

from torch import Tensor

from kvlab.core.contract import NEVER, Chosen, Held, Index, PartReading, ReadingCapabilities, register_reading
from kvlab.core.methods.readings.selection import best, step_draws


@register_reading
class RandomSlots(PartReading):
    """Uniformly drawn slots, new ones at each step, and the step's own token; weights are not corrected."""

    name = "random"
    title = "Random slots"
    capabilities: ClassVar[ReadingCapabilities] = ReadingCapabilities(indexes=False)

    def choose(self, query: Tensor, held: Held, index: Index) -> Chosen:
        drawn = step_draws(held, 1)
        return best(self, held, drawn.masked_fill(~held.valid()[:, :, None], NEVER))
