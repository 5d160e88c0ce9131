"""Protocols of a method's four parts, and the capabilities they declare."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol, get_args

import torch
from torch import Tensor

from kvlab.core.contract.in_place import InPlace
from kvlab.core.contract.plan import Plan
from kvlab.core.contract.second_pass import SecondPassRequest
from kvlab.core.contract.view import AttentionPass, Slots, View
from kvlab.core.errors import UserError

Update = Callable[[Slots, AttentionPass], Mapping[str, Tensor]]
PageRule = Literal["any", "mean", "max"]  # order of whole pages (`kvlab.core.methods.wrappers.page_selector`)
PageHeads = Literal["union", "each", "model"]  # heads that a page holds
PAGE_RULES = get_args(PageRule)
PAGE_HEADS = get_args(PageHeads)


@dataclass(frozen=True)
class Capabilities:
    """Returned by the property `capabilities` of every scorer, allocator, selector and settler: what several parts need
    or provide. What only one or two do is an attribute of those parts (`OPTIONAL`).

    By default a part needs and provides nothing; it sets what differs. A wrapper returns `replace(inner, ...)` of the
    wrapped part's capabilities. Fields that are functions are None if the part does not provide them.

    Attributes of any part:
        prompt_rows: number of last queries the part needs together, given the prompt length.
        across_heads: decoding decides about the heads of a batch row together, so they must share a table.
        recalls: number of newest queries kept for decisions while decoding.
        second_pass: a second pass over the prompt before the prompt is compressed.

    Attributes of a scorer:
        recall: new slot state at a decision while decoding, from the newest `recalls` queries.
        note: in-place update after a single query; None if `update` must run instead.
        rate: the score (B, H, S) if it can be computed from other slot state, so that slots need not store it.
        decay: factor of its running sum of attention at each query; None if the score is not such a sum.

    Attributes of a selector:
        protected: (B, H, S) bool, slots that are never evicted; None: nothing is protected, and settlers that pool or
            merge reject the selector.

    Attributes of a settler:
        fills_budget: a decision leaves every head that exceeded its budget with exactly its budget.
        by_selector: exactly the selector's victims leave, however many it chooses, and no slot is made.
        merges: slots need votes and a log mass.
        mass_of_votes: log mass is this times log(votes); None if slots store their own log mass.
        in_place: the decode-step decision as an in-place kernel for this scorer and selector; None if there is none.
    """

    prompt_rows: Callable[[int], int] = lambda tokens: 1  # the last query only
    across_heads: bool = False
    recalls: int = 0
    second_pass: SecondPassRequest | None = None

    recall: Update | None = None
    note: Callable[[Slots, AttentionPass], None] | None = None
    rate: Callable[[Slots], Tensor] | None = None
    decay: float | None = None

    protected: Callable[[View], Tensor] | None = None

    fills_budget: bool = False
    by_selector: bool = False
    merges: bool = False
    mass_of_votes: float | None = 0.0
    in_place: Callable[[Scorer, Selector], InPlace | None] | None = None


# Attributes and methods that a part may have beside its capabilities, with what holds for a part without them.
OPTIONAL: Mapping[str, Any] = {
    # Of a scorer.
    # New slot state, as `update`, after a chunk of the prompt that is not its last: scores then sum over all queries.
    "accumulate": None,
    # The same after a pass of the second pass.
    "score_second_pass": None,
    # Weights (q,) float32 of a pass's q queries in the sum of attention that `update` asks for, given q and a device:
    # attention computes the sums of all caches that share a pass on its way.
    "row_weights": None,
    # "largest" or "squares" if it asks for the largest attention or the sum of squares of all queries of a pass of the
    # second pass, which attention computes on its way.
    "second_pass_statistic": None,
    # Name of the state that counts the queries that saw a slot, if it can be derived.
    "counted_state": None,
    # Later passes cost it nothing, or it takes none of their attention.
    "costs_no_step": False,
    # Of an allocator.
    # No layer may be compressed before all of them have seen the prompt.
    "across_layers": False,
    # Heads of all layers share the budget.
    "shares_budget": False,
    # Of an allocator and a settler, for compositions: (scorer, this part) that fit together, given the scorer, the
    # selector and the scorer of this part's own method; raises UserError if they do not.
    "fitted_to": None,
    # Of a selector.
    # Number of first tokens it keeps, if fixed.
    "sinks": None,
    # (recent (B, H), sinks (B, H, 1)) tokens protected under a budget (B, H), if it evicts the lowest scores outside.
    "bounds": None,
    # It may choose more victims than asked for.
    "leaves_room": False,
    # Of a selector and a settler: queries of the second pass that each query head keeps for the decision.
    "references": 0,
    # Of a settler.
    # A slot may represent several tokens; False: it only has a log mass.
    "counts_votes": True,
    # It needs a selector that protects slots.
    "needs_protection": False,
    # Decisions while decoding do not change the slots that stay.
    "still": False,
    # Keys are compared with each other, so storing their lengths pays off.
    "seeks": False,
    # A decision changes many slots.
    "changes_many": False,
    # The decision about the prompt uses its token ids.
    "reads_text": False,
    # Bytes of state per KV head besides its slots, given keys and values (B, H, S, d) and the selector.
    "head_bytes": None,
    # The settler for a tokenizer.
    "with_tokenizer": None,
    # Queries also attend to its state besides the slots, so that it is a `StateBesideSlots` too.
    "keeps_state": False,
}


def optional(part: Any, name: str) -> Any:
    """An attribute of a part, or what holds for parts without it."""
    declared = getattr(capabilities_of(part), "attributes", {})
    if name in declared:
        return declared[name]
    former = next((old for old, new in OLD_NAMES.items() if new == name), name)
    return getattr(part, name, getattr(part, former, OPTIONAL[name]))


class Wrapper:
    """Base class of what wraps a part, `inner`: it has that one's optional attributes where it defines no other.

    A wrapper of a selector evicts other slots than the lowest scores outside the inner one's bounds, so it has none.
    """

    wraps: ClassVar[str] = "inner"  # name of the attribute that holds it
    bounds: ClassVar[None] = None

    @property
    def capabilities(self) -> Capabilities:
        """Those of the inner part."""
        return capabilities_of(getattr(self, self.wraps))

    def __getattr__(self, name: str) -> Any:
        if name in OPTIONAL:
            return optional(getattr(self, self.wraps), name)
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")


class PluginCapabilities(Capabilities):
    """`Capabilities` as `kvlab.extend` exports it: it also takes what parts of version 0.1 declared there."""

    attributes: Mapping[str, Any]

    def __init__(self, **declared: Any) -> None:
        declared = {OLD_NAMES.get(name, name): value for name, value in declared.items()}
        object.__setattr__(self, "attributes", {name: declared.pop(name) for name in OPTIONAL if name in declared})
        super().__init__(**declared)


# Names of version 0.1 -> today's.
OLD_NAMES = {"rehearsal": "second_pass", "rehearsed": "score_second_pass"}


class StateBesideSlots(Protocol):
    """What a settler keeps of evicted tokens, which queries attend to like one more slot."""

    begun: ClassVar[str]  # name of the head state that is there once something has been evicted

    def column(self, layer: int, head_state: Mapping[str, Tensor], query: Tensor) -> tuple[Tensor, Tensor]:
        """(logits (B, H, G, q), values (B, H, G, q, d)) float32 of that slot for queries (B, Hq, q, d)."""
        ...


NONE = Capabilities()


class Part(Protocol):
    """One of a method's four parts."""

    @property
    def capabilities(self) -> Capabilities:
        """What it needs to see, provides and does to slots, beyond its own methods."""
        ...


class StatefulPart(Part, Protocol):
    """A part that keeps slot state of its own."""

    @property
    def state(self) -> Mapping[str, float]:
        """Names of its own (B, H, S) slot state with initial values."""
        ...


class Scorer(StatefulPart, Protocol):
    """Keeps `Slots.score`, and any state of its own, up to date after each pass."""

    @property
    def every_step(self) -> bool:
        """Whether decoding needs the attention of each new query."""
        ...

    @property
    def needs_hidden_states(self) -> bool:
        """Whether `AttentionPass.hidden_states` is needed."""
        ...

    def update(self, slots: Slots, layer_pass: AttentionPass, first: bool) -> dict[str, Tensor]:
        """New (B, H, S) tensors by name: `score` and its own state. `first` is true for the first prefill."""
        ...


class Allocator(Part, Protocol):
    """Splits the budget over layers and heads."""

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

    def statistic(self, slots: Slots, layer_pass: AttentionPass) -> Tensor | None:
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


class Selector(Part, Protocol):
    """Chooses the victims."""

    def victims(self, view: View, excess: Tensor, most: int, barred: Tensor | None = None) -> Victims:
        """The `excess` (B, H) slots to evict, at most `most`; slots in `barred` (B, H, S) are never chosen."""
        ...


class Settler(StatefulPart, Protocol):
    """Decides what happens to the victims: evict, merge or pool."""

    def settle(self, view: View, select: Selector) -> Plan:
        """The plan for this layer."""
        ...


@dataclass(frozen=True)
class PartCapabilities:
    """`Capabilities` by part of a pipeline; a part that declares none has the defaults."""

    score: Capabilities = field(default=NONE)
    allocate: Capabilities = field(default=NONE)
    select: Capabilities = field(default=NONE)
    settle: Capabilities = field(default=NONE)


def capabilities_of(part: Any) -> Capabilities:
    """Capabilities of a part; for older plug-in parts without `capabilities`, read from attributes."""
    # checked on the type, so that an error inside the property is not hidden
    if not hasattr(type(part), "capabilities"):
        # Read the attributes of a plug-in's part without `capabilities`, as they were named then.
        declared: dict[str, Any] = {}
        for name in ("prompt_rows", "across_heads", "recalls", "rehearsal", "protected", "fills_budget", "merges"):
            if getattr(part, name, None) is not None:
                declared[name] = getattr(part, name)
        if declared.get("merges"):
            declared["mass_of_votes"] = part.mass_of_votes
        if hasattr(part, "update"):
            for name in ("recall", "rate", "note"):
                if getattr(part, name, None) is not None:
                    declared[name] = getattr(part, name)
            if not getattr(part, "notes", True):
                declared.pop("note", None)
            declared["counted_state"] = getattr(part, "counts", None)
        else:
            # only a scorer's
            declared |= {"accumulate": None, "rehearsed": None, "counts_votes": getattr(part, "counts", True)}
        return PluginCapabilities(**declared)
    found = part.capabilities
    if not isinstance(found, Capabilities):
        raise TypeError(f"{type(part).__name__}.capabilities must return Capabilities, not {found!r}")
    return found


def protected_slots(select: Selector, view: View) -> Tensor:
    """Slots (B, H, S) that the selector never evicts; raises UserError if it does not define them."""
    protected = capabilities_of(select).protected
    if protected is None:
        name = type(select).__name__
        raise UserError(f"The selector {name} defines no protected slots, which pooling and merging need.")
    return protected(view)
