"""A method as four choices: score the slots, allocate the budget, select what stays, settle the rest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from kvlab.methods.plan import Plan
from kvlab.methods.view import HEAD_MASS, KEY_LENGTH, Seen, Slots, View


class Scorer(Protocol):
    """Keeps `Slots.score` (and any state of its own) up to date after each pass."""

    @property
    def every_step(self) -> bool:
        """Whether decoding needs the attention of each new query."""
        ...

    @property
    def needs_hidden_states(self) -> bool:
        """Whether `Seen.hidden_states` must be there."""
        ...

    @property
    def state(self) -> Mapping[str, float]:
        """Names of its own (B, H, S) slot state, with the value a new slot starts at."""
        ...

    def update(self, slots: Slots, seen: Seen, first: bool) -> dict[str, Tensor]:
        """New (B, H, S) tensors by name: `score` and the scorer's own state. `first` is true for the first prefill."""
        ...


class Allocator(Protocol):
    """Splits the budget over layers and heads."""

    def layer_budgets(self, average: int, tokens: int, num_layers: int) -> list[int]:
        """Slots per KV head for every layer, each at least 1; they sum to `average * num_layers`.

        `tokens` is the prompt's length: no layer can use more.
        """
        ...

    def head_budgets(self, view: View) -> Tensor | None:
        """(B, H) slots for each head of this layer from what the first prefill showed, or None for equal heads.

        Each at least 1; where the method has a budget they sum to the layer's. Reading on the host is allowed here.
        """
        ...

    def statistic(self, slots: Slots, seen: Seen) -> Tensor | None:
        """What to note of this layer at prefill for `View.statistics`, such as (B,) variances; None for nothing."""
        ...


@dataclass(frozen=True)
class Victims:
    """Slots that must go, lowest first; each tensor is (B, H, E), and `active` says how many of the E are meant.

    `certain`: the host knows that all of them are.
    """

    index: Tensor
    active: Tensor
    certain: bool = False

    @classmethod
    def lowest(cls, view: View, order: Tensor, most: int) -> Victims:
        """The `most` lowest of `order` (B, H, S), all of which must go."""
        index = order.argmin(-1, keepdim=True) if most == 1 else order.topk(most, dim=-1, largest=False).indices
        every = view.of_budget(("active", most), lambda: torch.ones_like(index, dtype=torch.bool))
        return cls(index, every, True)

    def votes(self, votes: Tensor) -> Tensor | None:
        """(B, H) what all of them have of `votes` (B, H, S); None unless they are `certain`."""
        if not self.certain:
            return None
        found = votes.gather(2, self.index)
        return found[..., 0] if found.shape[-1] == 1 else found.sum(-1)

    def keep(self, valid: Tensor) -> Tensor:
        """`valid` (B, H, S) without the victims."""
        if self.certain:
            return valid.scatter(2, self.index, False)
        return valid & ~torch.zeros_like(valid).scatter(2, self.index, self.active)


class Selector(Protocol):
    """Chooses what must go."""

    def victims(self, view: View, excess: Tensor, most: int, barred: Tensor | None = None) -> Victims:
        """The `excess` (B, H) slots to lose, at most `most`; slots in `barred` (B, H, S) are never chosen."""
        ...


class Settler(Protocol):
    """Decides what becomes of what must go."""

    @property
    def state(self) -> Mapping[str, float]:
        """Names of its own (B, H, S) slot state, with the value a new slot starts at."""
        ...

    def settle(self, view: View, select: Selector) -> Plan:
        """The plan for this layer."""
        ...


@dataclass(frozen=True)
class Pipeline:
    """The four choices, and when they act."""

    score: Scorer
    allocate: Allocator
    select: Selector
    settle: Settler
    decode: bool = True
    deferred: bool = False  # the prompt is compressed at the pass after it, when every layer's statistic is known
    saves_prefill: bool = False  # of the prompt, a layer works on what the layer before kept; all heads keep the same

    def plan(self, view: View) -> Plan:
        """The decision for one layer."""
        return self.settle.settle(view, self.select)

    @property
    def fills_budget(self) -> bool:
        """Whether a decision leaves every head that was over its budget with exactly its budget; settlers say so."""
        return getattr(self.settle, "fills_budget", False)

    @property
    def heads_apart(self) -> bool:
        """Whether decoding decides for every head by itself; a part that does not says so by `across_heads`.

        If not, the heads of a batch row must stay in one table, as long as the longest of them.
        """
        return not any(getattr(part, "across_heads", False) for part in (self.score, self.select, self.settle))

    def prompt_rows(self, tokens: int) -> int:
        """How many of the last queries of a prompt of `tokens` the decision looks at together.

        Parts that look at more than the last one say so by `prompt_rows`; those that add up what all queries gave are
        asked after each chunk, by `accumulate`.
        """
        parts = (part for part in (self.score, self.allocate, self.settle) if hasattr(part, "prompt_rows"))
        return min(tokens, max((part.prompt_rows(tokens) for part in parts), default=1))

    def accumulate(self, slots: Slots, seen: Seen) -> dict[str, Tensor]:
        """New slot state after a chunk of the prompt that is not its last."""
        return self.score.accumulate(slots, seen) if hasattr(self.score, "accumulate") else {}

    @property
    def notes(self) -> bool:
        """Whether the score of a decode step can be kept up in place, by `note`; a scorer may say no by `notes`."""
        return hasattr(self.score, "note") and getattr(self.score, "notes", True)

    def note(self, slots: Slots, seen: Seen, wanted: bool) -> None:
        """`Scorer.update` after a single query, in place. Unless `wanted`, scores may be left for a later step.

        A scorer whose scores follow from its state works them out only when they are `wanted`, by `rate`.
        """
        self.score.note(slots, seen)  # type: ignore[attr-defined]
        if wanted and hasattr(self.score, "rate"):
            self.score.rate(slots)

    @property
    def state(self) -> dict[str, float]:
        """Slot state of the scorer and the settler, with the value a new slot starts at."""
        return {**self.score.state, **self.settle.state}

    def one_extra(self, keys: Tensor) -> dict[str, Tensor | float]:
        """The same state for one new slot a head with `keys` (B, H, 1, d), as numbers where it starts alike."""
        lengths = {KEY_LENGTH: torch.linalg.vector_norm(keys, dim=-1)} if KEY_LENGTH in self.settle.state else {}
        return {**self.state, **lengths}

    def state_bytes(self) -> dict[str, int]:
        """Bytes of that state: `slot_bytes` in each slot, and `query_head_bytes` for each of its query heads."""
        one = torch.zeros(1, 1, 1, 1)
        taken = [sum(tensor.nbytes for tensor in self.new_extra(one, group).values()) for group in (1, 2)]
        return {"slot_bytes": 2 * taken[0] - taken[1], "query_head_bytes": taken[1] - taken[0]}

    def scored_rows(self) -> dict[str, int | bool]:
        """`rows`: last queries of a prompt looked at together, at a prompt of 65,536 tokens; `all_rows`: each is."""
        return {"rows": self.prompt_rows(2**16), "all_rows": hasattr(self.score, "accumulate")}

    def new_extra(self, keys: Tensor, group: int) -> dict[str, Tensor]:
        """Slot state (B, H, q) of the scorer and the settler for new slots with `keys` (B, H, q, d).

        float32, or 16 bits for a state that starts at a whole number: it is a count. `group` query heads share a slot.
        """
        state = self.state
        kinds = {name: torch.int16 if isinstance(fill, int) else torch.float32 for name, fill in state.items()}
        shapes = {name: (*keys.shape[:3], group) if name == HEAD_MASS else keys.shape[:3] for name in state}
        return {
            name: torch.linalg.vector_norm(keys, dim=-1)
            if name == KEY_LENGTH
            else torch.full(shapes[name], fill, dtype=kinds[name], device=keys.device)
            for name, fill in state.items()
        }
