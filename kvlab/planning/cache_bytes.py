"""Bytes of one run's cache at the moments of a shared pass, in tensors of its own or shared with the full cache."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from kvlab.planning.footprint import FULL, Footprint
from kvlab.planning.workload import FLOAT, Workload
from kvlab.requests.budget import Amount


@dataclass(frozen=True)
class PlannedCache:
    """A run's cache: its name in legends, its method's footprint and its budget."""

    work: Workload
    label: str
    holds: Footprint
    budget: Amount

    @property
    def is_full(self) -> bool:
        """Whether it is a full cache."""
        return not self.holds.compresses

    @cached_property
    def drops(self) -> bool:
        """Whether anything of the prompt is dropped or packed."""
        return self.holds.packed is not None or self.work.drops(self.holds, self.budget)

    @property
    def waits(self) -> bool:
        """Whether no layer is compressed before the last one has read the prompt."""
        return self.drops and (self.holds.deferred or self.holds.again is not None)

    @property
    def settles(self) -> bool:
        """Whether each layer is compressed as soon as it has read the prompt."""
        return self.drops and not self.waits

    def columns(self, tokens: int) -> int:
        """Metadata of so many slots in one layer, without keys and values."""
        return self.work.slot_bytes(self.holds) * tokens - states_bytes(self.work, tokens)

    @cached_property
    def first(self) -> int:
        """A layer's table after the prompt, in tensors of its own."""
        if not self.drops:
            return self.work.slot_bytes(self.holds) * self.work.tokens
        return self.work.kept_bytes(self.holds, self.work.first_slots(self.holds, self.budget))

    @cached_property
    def last(self) -> int:
        """A layer's table after the last decode step."""
        return self.work.kept_bytes(self.holds, self.work.last_slots(self.holds, self.budget))

    @property
    def grows(self) -> bool:
        """Whether its tables are copied into longer ones while decoding."""
        return self.work.last_slots(self.holds, self.budget) > self.work.first_slots(self.holds, self.budget)

    @property
    def beside(self) -> int:
        """Bytes that all layers keep for the next decision besides slots."""
        return self.work.recalled_bytes(self.holds)

    @property
    def settled(self) -> int:
        """The cache after the prompt, in tensors of its own."""
        return self.work.model.full_layers * self.first + self.beside

    @property
    def ended(self) -> int:
        """The cache after the last decode step."""
        return self.work.model.full_layers * self.last + self.beside

    @property
    def results(self) -> int:
        """Scores of a layer that other caches of the pass may use: logits of its last queries, and a sum per slot."""
        if self.is_full:
            return 0
        work = self.work
        logits = work.model.heads * min(self.holds.scored_rows, work.queries) if self.holds.averages else 0
        return (logits + work.model.key_value_heads) * work.tokens * FLOAT


def full_cache(work: Workload) -> PlannedCache:
    """The full cache that leads a pass."""
    return PlannedCache(work, "full cache", FULL, 1.0)


def states_bytes(work: Workload, tokens: int) -> int:
    """Keys and values of one layer."""
    return 2 * work.model.key_value_heads * work.model.head_dim * work.number * tokens
