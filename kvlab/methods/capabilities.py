"""What a part of a method needs from a pass and can do beyond its required functions, as one typed object."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch import Tensor

from kvlab.errors import UserError
from kvlab.methods.rehearsal import Rehearsal
from kvlab.methods.view import Seen, Slots, View

if TYPE_CHECKING:
    from kvlab.methods.pipeline import Selector

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
        counted_state: the name of the state that counts the queries a slot was seen by, where it can be worked out.

    Attributes of an allocator:
        across_layers: no layer may decide about the prompt before all of them have seen it.

    Attributes of a selector:
        protected: (B, H, S) bool, slots that never go; None: nothing is protected, and settlers that pool or merge
            refuse the selector.
        sinks: how many first tokens it keeps, where they are a number; None where it knows no sinks.

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

    across_layers: bool = False

    protected: Callable[[View], Tensor] | None = None
    sinks: float | int | None = None

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


NONE = Capabilities()


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
    try:
        found = part.capabilities
    except AttributeError:
        return _from_attributes(part)
    if not isinstance(found, Capabilities):
        raise TypeError(f"{type(part).__name__}.capabilities is no Capabilities: {found!r}")
    return found


# Attributes by which a part said what it can do before `Capabilities`, where the name has changed.
_OLD_NAMES = {"counted_state": "counts", "counts_votes": "counts", "reads_logits": "averages"}
_OF_SCORERS = ("accumulate", "recall", "rehearsed", "note", "rate", "counted_state")


def _from_attributes(part: Any) -> Capabilities:
    """Read the attributes of a plug-in's part that has no `capabilities`."""
    given = {name: getattr(part, _OLD_NAMES.get(name, name), None) for name in Capabilities.__dataclass_fields__}
    given["reads_logits"] = given["reads_logits"] or getattr(part, "observes", None)
    scores = hasattr(part, "update")
    if not getattr(part, "notes", True):
        given["note"] = None
    for name in _OF_SCORERS if not scores else ("counts_votes",):
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
