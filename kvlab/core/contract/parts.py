"""Protocols of a method's four parts, and the capabilities they declare."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, get_args

import torch
from torch import Tensor

from kvlab.core.contract.in_place import InPlace
from kvlab.core.contract.plan import Plan
from kvlab.core.contract.second_pass import Rehearsal
from kvlab.core.contract.view import Seen, Slots, View
from kvlab.core.errors import UserError

Update = Callable[[Slots, Seen], Mapping[str, Tensor]]
PageRule = Literal["any", "mean", "max"]  # order of whole pages (`kvlab.core.methods.wrappers.page_selector`)
PageHeads = Literal["union", "each", "model"]  # heads that a page holds
PAGE_RULES = get_args(PageRule)
PAGE_HEADS = get_args(PageHeads)


def last_row(tokens: int) -> int:
    """The prompt's last query only."""
    return 1


@dataclass(frozen=True)
class Capabilities:
    """Returned by the property `capabilities` of every scorer, allocator, selector and settler.

    By default a part needs and provides nothing; it sets what differs. A wrapper returns `replace(inner, ...)` of the
    wrapped part's capabilities. Fields that are functions are None if the part does not provide them.

    Attributes of any part:
        prompt_rows: number of last queries the part needs together, given the prompt length.
        across_heads: decoding decides about the heads of a batch row together, so they must share a table.
        recalls: number of newest queries kept for decisions while decoding.
        rehearsal: a second pass over the prompt before the prompt is compressed.
        references: number of queries of that second pass that each query head keeps for the decision.

    Attributes of a scorer:
        accumulate: new slot state after a chunk of the prompt that is not its last; the score then sums over all
            queries of the prompt.
        recall: new slot state at a decision while decoding, from the newest `recalls` queries.
        rehearsed: new slot state after a pass of the rehearsal.
        note: in-place update after a single query; None if `update` must run instead.
        rate: the score (B, H, S) if it can be computed from other slot state, so that slots need not store it.
        row_weights: weights (q,) float32 of a pass's q queries in the sum of attention that `update` asks for, given q
            and a device, so that a pass which several caches share computes their sums together.
        decay: factor of its running sum of attention at each query; None if the score is not such a sum.
        counted_state: name of the state that counts the queries that saw a slot, if it can be derived.

    Attributes of an allocator:
        across_layers: no layer may be compressed before all of them have seen the prompt.

    Attributes of a selector:
        protected: (B, H, S) bool, slots that are never evicted; None: nothing is protected, and settlers that pool or
            merge reject the selector.
        sinks: number of first tokens it keeps, if fixed; None without sinks.
        bounds: (recent (B, H), sinks (B, H, 1)) tokens protected under a budget (B, H), if it evicts the lowest scores
            outside them; None for any other rule.
        leaves_room: it may choose more victims than asked for, so that heads end below their budgets.

    Attributes of a settler:
        fills_budget: a decision leaves every head that exceeded its budget with exactly its budget.
        by_selector: exactly the selector's victims leave, however many it chooses, and no slot is made.
        merges: slots need votes and a log mass.
        mass_of_votes: log mass is this times log(votes); None if slots store their own log mass.
        counts_votes: a slot may represent several tokens; False if it only has a log mass.
        still: decisions while decoding do not change the slots that stay.
        seeks: keys are compared with each other, so storing their lengths pays off.
        changes_many: a decision changes many slots.
        reads_text: the decision about the prompt uses its token ids.
        head_bytes: bytes of state per KV head besides its slots, given keys and values (B, H, S, d) and the selector.
        in_place: the decode-step decision as an in-place kernel for this scorer and selector; None if there is none.
        with_tokenizer: returns the settler configured for a tokenizer.
    """

    prompt_rows: Callable[[int], int] = last_row
    across_heads: bool = False
    recalls: int = 0
    rehearsal: Rehearsal | None = None
    references: int = 0

    accumulate: Update | None = None
    recall: Update | None = None
    rehearsed: Update | None = None
    note: Callable[[Slots, Seen], None] | None = None
    rate: Callable[[Slots], Tensor] | None = None
    row_weights: Callable[[int, torch.device], Tensor] | None = None
    counted_state: str | None = None
    decay: float | None = None

    across_layers: bool = False

    protected: Callable[[View], Tensor] | None = None
    sinks: float | int | None = None
    bounds: Callable[[View, Tensor], tuple[Tensor, Tensor]] | None = None
    leaves_room: bool = False

    fills_budget: bool = False
    by_selector: bool = False
    merges: bool = False
    mass_of_votes: float | None = 0.0
    counts_votes: bool = True
    still: bool = False
    seeks: bool = False
    changes_many: bool = False
    reads_text: bool = False
    head_bytes: Callable[[Tensor, Tensor, Selector], int] | None = None
    in_place: Callable[[Scorer, Selector], InPlace | None] | None = None
    with_tokenizer: Callable[[Any], Settler] | None = None


NONE = Capabilities()


class Scorer(Protocol):
    """Keeps `Slots.score`, and any state of its own, up to date after each pass."""

    @property
    def capabilities(self) -> Capabilities:
        """What it needs from a pass and provides beyond `update`."""
        ...

    @property
    def every_step(self) -> bool:
        """Whether decoding needs the attention of each new query."""
        ...

    @property
    def needs_hidden_states(self) -> bool:
        """Whether `Seen.hidden_states` is needed."""
        ...

    @property
    def state(self) -> Mapping[str, float]:
        """Names of its own (B, H, S) slot state with initial values."""
        ...

    def update(self, slots: Slots, seen: Seen, first: bool) -> dict[str, Tensor]:
        """New (B, H, S) tensors by name: `score` and its own state. `first` is true for the first prefill."""
        ...


class Allocator(Protocol):
    """Splits the budget over layers and heads."""

    @property
    def capabilities(self) -> Capabilities:
        """What it needs to see."""
        ...

    def layer_budgets(self, average: int, tokens: int, num_layers: int) -> list[int]:
        """Slots per KV head for every layer, each at least 1, with sum `average * num_layers`.

        `tokens` is the prompt's length: no layer can use more.
        """
        ...

    def head_budgets(self, view: View) -> Tensor | None:
        """Slots (B, H) per head of this layer, from the first prefill; None for equal heads.

        Each at least 1; if the method has a budget they sum to the layer's. May synchronize with the device.
        """
        ...

    def statistic(self, slots: Slots, seen: Seen) -> Tensor | None:
        """Statistic of this layer at prefill for `View.statistics`, such as (B,) variances; None for none.

        `head_budgets` reads it, nothing later: a cache that is kept in a file does not hold it.
        """
        ...


@dataclass(frozen=True)
class Victims:
    """Slots chosen for eviction, lowest first: `index` (B, H, E), of which those `active` (B, H, E) count.

    `certain`: the host knows that all are active.
    """

    index: Tensor
    active: Tensor
    certain: bool = False

    @classmethod
    def lowest(cls, view: View, order: Tensor, excess: Tensor, most: int, never: float) -> Victims:
        """The `excess` (B, H) lowest of `order` (B, H, S), at most `most`, but none that is `never`, its maximum.

        Of equal ones the older token leaves first (`Slots.lowest`).
        """
        index = view.slots.lowest(order, min(most, order.shape[-1]))
        if view.certain:
            every = view.of_budget(("active", most), lambda: torch.ones_like(index, dtype=torch.bool))
            return cls(index, every, True)
        active = torch.arange(index.shape[-1], device=index.device) < excess[..., None]
        return cls(index, active & (order.gather(2, index) < never))

    def votes(self, votes: Tensor) -> Tensor | None:
        """Sum (B, H) of `votes` (B, H, S) over victims; None unless `certain`."""
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
    """Chooses the victims."""

    @property
    def capabilities(self) -> Capabilities:
        """What it protects (`protected`, `sinks`) and needs to see."""
        ...

    def victims(self, view: View, excess: Tensor, most: int, barred: Tensor | None = None) -> Victims:
        """The `excess` (B, H) slots to evict, at most `most`; slots in `barred` (B, H, S) are never chosen."""
        ...


class Settler(Protocol):
    """Decides what happens to the victims: evict, merge or pool."""

    @property
    def capabilities(self) -> Capabilities:
        """What it does to slots and needs to see."""
        ...

    @property
    def state(self) -> Mapping[str, float]:
        """Names of its own (B, H, S) slot state with initial values."""
        ...

    def settle(self, view: View, select: Selector) -> Plan:
        """The plan for this layer."""
        ...


@dataclass(frozen=True)
class PartCapabilities:
    """Capabilities of the four parts of a pipeline."""

    score: Capabilities = field(default=NONE)
    allocate: Capabilities = field(default=NONE)
    select: Capabilities = field(default=NONE)
    settle: Capabilities = field(default=NONE)

    @property
    def all(self) -> tuple[Capabilities, ...]:
        return self.score, self.allocate, self.select, self.settle


def capabilities_of(part: Any) -> Capabilities:
    """Capabilities of a part; for older plug-in parts without `capabilities`, read from attributes."""
    # checked on the type, so that an error inside the property is not hidden
    if not hasattr(type(part), "capabilities"):
        return _from_attributes(part)
    found = part.capabilities
    if not isinstance(found, Capabilities):
        raise TypeError(f"{type(part).__name__}.capabilities must return Capabilities, not {found!r}")
    return found


# Attribute names used before `Capabilities`, if they differ.
_OLD_NAMES = {"counted_state": "counts", "counts_votes": "counts"}
_OF_SCORERS = ("accumulate", "recall", "rehearsed", "note", "rate", "counted_state")
_NEW = (
    "row_weights",
    "in_place",
    "with_tokenizer",
    "bounds",
    "decay",
    "leaves_room",
    "by_selector",
)  # never attributes of parts


def _from_attributes(part: Any) -> Capabilities:
    """Read the attributes of a plug-in part without `capabilities`."""
    given = {name: getattr(part, _OLD_NAMES.get(name, name), None) for name in Capabilities.__dataclass_fields__}
    scores = hasattr(part, "update")
    if not getattr(part, "notes", True):
        given["note"] = None
    for name in (*_NEW, *(("counts_votes",) if scores else _OF_SCORERS)):
        given[name] = None
    known = {name: value for name, value in given.items() if value is not None}
    if given["merges"] and part.mass_of_votes is None:
        known["mass_of_votes"] = None
    return Capabilities(**known)


def protected_slots(select: Selector, view: View) -> Tensor:
    """Slots (B, H, S) that the selector never evicts; raises UserError if it does not define them."""
    protected = capabilities_of(select).protected
    if protected is None:
        name = type(select).__name__
        raise UserError(f"The selector {name} defines no protected slots, which pooling and merging need.")
    return protected(view)
