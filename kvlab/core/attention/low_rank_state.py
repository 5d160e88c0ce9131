"""Attention over slots plus a state of evicted tokens, which acts as one more, query-dependent slot."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor

from kvlab.core.attention.slot_attention import ROW_BLOCK
from kvlab.core.contract.parts import StateBesideSlots
from kvlab.core.stores.quantized_states import States, mix_states


@dataclass(frozen=True)
class LowRankState:
    """What the heads of one layer keep of evicted tokens, and how queries read it.

    `noted` is the live per-head state, not a copy: it follows every plan.
    """

    state: StateBesideSlots
    layer: int
    noted: Mapping[str, Tensor]

    def share(self, query: Tensor, logits: Tensor, bias: Tensor | None) -> "StateShare":
        """Split the attention of queries (B, Hq, q, d), with logits (B, H, G, q, S), between slots and state."""
        state_logits, value = self.state.column(self.layer, self.noted, query)
        both = torch.cat([logits, state_logits[..., None]], -1)
        if bias is None:
            mass = torch.softmax(both, -1)
        else:  # padding rows may see nothing
            both[..., :-1] += bias[:, :, :, None]
            mass = torch.softmax(both, -1).nan_to_num_(nan=0.0)
        return StateShare(mass[..., :-1], mass[..., -1], value)


@dataclass(frozen=True)
class StateShare:
    """Attention split of some queries: `slots` (B, H, G, q, S) and `state` (B, H, G, q) sum to 1."""

    slots: Tensor
    state: Tensor
    value: Tensor  # (B, H, G, q, d)

    def output(self, values: States) -> Tensor:
        """Output (B, Hq, q, d) float32 of slots with `values` (B, H, S, d) and the state."""
        of_slots = mix_states(self.slots.flatten(2, 3), values).view_as(self.value)
        return of_slots.addcmul_(self.state[..., None], self.value).flatten(1, 2)


@dataclass(frozen=True)
class MassBesideState:
    """Statistics of the slots' part of attention, as `kvlab.core.attention.tiles.Tiles` gives them without a state.

    `share(first, last)` evaluates rows of the `rows` queries, one block at a time.
    """

    share: Callable[[int, int], StateShare]
    rows: int

    def weighted_sums(
        self,
        first: int,
        weights: Sequence[Tensor | None],
        normalizers: object,
        squared: bool = False,
        slots: object = None,
    ) -> list[Tensor]:
        """For each of `weights` ([B or 1], q - first) attention (B, H, S) from row `first` on, mean over the group."""
        sums = []
        for weight in weights:
            masses = self._masses(first, weight)
            sums.append(reduce(torch.add, ((mass.square() if squared else mass).mean(2).sum(2) for mass in masses)))
        return sums

    def column_max(self, first: int, real: Tensor | None, normalizers: object, slots: object = None) -> Tensor:
        """Largest attention (B, H, S) from one of the `real` queries ([B or 1], q - first)."""
        return reduce(torch.maximum, (mass.amax((2, 3)) for mass in self._masses(first, real)))

    def _masses(self, start: int, weight: Tensor | None) -> Iterator[Tensor]:
        """Attention (B, H, G, r, S) times `weight` for each block of rows from `start` on."""
        for first in range(start, self.rows, ROW_BLOCK):
            last = min(first + ROW_BLOCK, self.rows)
            mass = self.share(first, last).slots
            yield mass if weight is None else mass * weight[:, None, None, first - start : last - start, None]
