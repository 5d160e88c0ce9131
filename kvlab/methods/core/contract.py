"""The contract of a method's parts: what each must do, and the capabilities it declares beyond that."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from kvlab.common.errors import UserError
from kvlab.methods.core.in_place import InPlace
from kvlab.methods.core.plan import Plan
from kvlab.methods.core.second_pass import Rehearsal
from kvlab.methods.core.view import Seen, Slots, View

Update = Callable[[Slots, Seen], Mapping[str, Tensor]]


def last_row(tokens: int) -> int:
    """Only the prompt's last query is looked at."""
    return 1


@dataclass(frozen=True)
class Capabilities:
    """Returned by the property `capabilities` of every scorer, allocator, selector and settler.

    Every field has a default that asks for nothing; a part names what differs. A wrapper returns
    `replace(inner, ...)` of the capabilities of the part inside. Fields that are functions are None where the part
    does not have them.

    Attributes of any part:
        prompt_rows: how many of the last queries of a prompt of that many tokens the part looks at together.
        across_heads: while decoding the heads of a batch row are decided together, so they must stay in one table.
        recalls: how many of the newest queries are kept for decisions while decoding.
        rehearsal: the second pass over the prompt that the part asks for, before the prompt is decided about.
        references: how many queries of that second pass each query head keeps for the decision.
        reads_logits: the logits of each looked-at query are in memory together (counted by the planner).
        key_copies: copies of the keys in float32 that the prompt's decision takes (counted by the planner).

    Attributes of a scorer:
        accumulate: new slot state after a chunk of the prompt that is not its last; the score then adds up over all
            queries of the prompt.
        recall: new slot state at a decision while decoding, by the newest `recalls` queries.
        rehearsed: new slot state after a pass of the rehearsal.
        note: the update after a single query, in place; None where `update` must run instead.
        rate: the score (B, H, S) where it follows from the rest of a slot's state, so that slots do not hold it.
        decay: what its running sum of the newest query's attention is multiplied by at each query; None where the
            score is no such sum.
        counted_state: the name of the state that counts the queries a slot was seen by, where it can be worked out.

    Attributes of an allocator:
        across_layers: no layer may decide about the prompt before all of them have seen it.

    Attributes of a selector:
        protected: (B, H, S) bool, slots that never go; None: nothing is protected, and settlers that pool or merge
            refuse the selector.
        sinks: how many first tokens it keeps, where they are a number; None where it knows no sinks.
        bounds: (recent (B, H), sinks (B, H, 1)) tokens of a view under a budget (B, H), where what goes are the lowest
            scores outside them; None for any other rule.

    Attributes of a settler:
        fills_budget: a decision leaves every head that was over its budget with exactly its budget.
        merges: slots need votes and a log mass.
        mass_of_votes: log mass is so many times log(votes); None where slots hold a log mass of their own.
        counts_votes: a slot may stand for several tokens; False where it only has a log mass.
        still: decisions while decoding change no state of the slots that stay.
        seeks: keys are compared with each other, so that their lengths are worth keeping.
        changes_many: a decision changes the states of many slots.
        thinned: slots that every head has lost for certain, where generated tokens stay on top of the budget; the
            arguments are those of `ThinInLots.thinned`.
        reads_text: the decision about the prompt wants its token ids.
        head_bytes: bytes of state beside the slots of one KV head, given keys and values (B, H, S, d) and the
            selector.
        numbers_a_slot: float32 numbers a slot that settling a prompt takes (counted by the planner).
        in_place: the decision of a decode step as a kernel carries it out beside this scorer and selector; None where
            none does.
        with_tokenizer: the settler, told what it needs to know of the model's tokenizer.
    """

    prompt_rows: Callable[[int], int] = last_row
    across_heads: bool = False
    recalls: int = 0
    rehearsal: Rehearsal | None = None
    references: int = 0
    reads_logits: bool = False
    key_copies: float = 0.0

    accumulate: Update | None = None
    recall: Update | None = None
    rehearsed: Update | None = None
    note: Callable[[Slots, Seen], None] | None = None
    rate: Callable[[Slots], Tensor] | None = None
    counted_state: str | None = None
    decay: float | None = None

    across_layers: bool = False

    protected: Callable[[View], Tensor] | None = None
    sinks: float | int | None = None
    bounds: Callable[[View, Tensor], tuple[Tensor, Tensor]] | None = None

    fills_budget: bool = False
    merges: bool = False
    mass_of_votes: float | None = 0.0
    counts_votes: bool = True
    still: bool = False
    seeks: bool = False
    changes_many: bool = False
    thinned: Callable[[int, int, int, int, int], int] | None = None
    reads_text: bool = False
    head_bytes: Callable[[Tensor, Tensor, Selector], int] | None = None
    numbers_a_slot: float = 0.0
    in_place: Callable[[Scorer, Selector], InPlace | None] | None = None
    with_tokenizer: Callable[[Any], Settler] | None = None


NONE = Capabilities()


class Scorer(Protocol):
    """Keeps `Slots.score` (and any state of its own) up to date after each pass."""

    @property
    def capabilities(self) -> Capabilities:
        """What it needs from a pass, and can do beyond `update`."""
        ...

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

    @property
    def capabilities(self) -> Capabilities:
        """What it needs to see."""
        ...

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

    @property
    def capabilities(self) -> Capabilities:
        """What it protects (`protected`, `sinks`), and what it needs to see."""
        ...

    def victims(self, view: View, excess: Tensor, most: int, barred: Tensor | None = None) -> Victims:
        """The `excess` (B, H) slots to lose, at most `most`; slots in `barred` (B, H, S) are never chosen."""
        ...


class Settler(Protocol):
    """Decides what becomes of what must go."""

    @property
    def capabilities(self) -> Capabilities:
        """What it makes of slots, and what it needs to see."""
        ...

    @property
    def state(self) -> Mapping[str, float]:
        """Names of its own (B, H, S) slot state, with the value a new slot starts at."""
        ...

    def settle(self, view: View, select: Selector) -> Plan:
        """The plan for this layer."""
        ...


@dataclass(frozen=True)
class PartCapabilities:
    """The capabilities of the four parts of a pipeline."""

    score: Capabilities = field(default=NONE)
    allocate: Capabilities = field(default=NONE)
    select: Capabilities = field(default=NONE)
    settle: Capabilities = field(default=NONE)

    @property
    def all(self) -> tuple[Capabilities, ...]:
        """All four, in the order in which they act."""
        return self.score, self.allocate, self.select, self.settle


def capabilities_of(part: Any) -> Capabilities:
    """The part's capabilities; those of a plug-in's part from before this type, from its attributes."""
    if not hasattr(type(part), "capabilities"):  # looked up on the type: an error inside the property is not hidden
        return _from_attributes(part)
    found = part.capabilities
    if not isinstance(found, Capabilities):
        raise TypeError(f"{type(part).__name__}.capabilities is no Capabilities: {found!r}")
    return found


# Attributes by which a part said what it can do before `Capabilities`, where the name has changed.
_OLD_NAMES = {"counted_state": "counts", "counts_votes": "counts", "reads_logits": "averages"}
_OF_SCORERS = ("accumulate", "recall", "rehearsed", "note", "rate", "counted_state")
_NEW = ("in_place", "with_tokenizer", "bounds", "decay")  # never attributes of parts


def _from_attributes(part: Any) -> Capabilities:
    """Read the attributes of a plug-in's part that has no `capabilities`."""
    given = {name: getattr(part, _OLD_NAMES.get(name, name), None) for name in Capabilities.__dataclass_fields__}
    given["reads_logits"] = given["reads_logits"] or getattr(part, "observes", None)
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
    """(B, H, S) bool: slots that the selector never lets go; raises UserError where it does not name them."""
    protected = capabilities_of(select).protected
    if protected is None:
        name = type(select).__name__
        raise UserError(f"The selector {name} names no protected slots, which pooling and merging need.")
    return protected(view)
