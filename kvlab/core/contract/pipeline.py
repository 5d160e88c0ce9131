"""A method as four parts: score the slots, allocate the budget, select victims, settle them; and the default parts."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, ClassVar, Literal, cast

import torch
from pydantic import JsonValue
from torch import Tensor

from kvlab.core.budget import UNLIMITED
from kvlab.core.contract.in_place import EVICT, InPlace
from kvlab.core.contract.parts import (
    NONE,
    Allocator,
    Capabilities,
    PartCapabilities,
    Scorer,
    Selector,
    Settler,
    StateBesideSlots,
    Victims,
    capabilities_of,
    optional,
)
from kvlab.core.contract.plan import Plan
from kvlab.core.contract.second_pass import SecondPassRequest
from kvlab.core.contract.slot_columns import LENGTHS_FROM, Byte, Columns, integer_dtype, key_lengths
from kvlab.core.contract.view import HEAD_MASS, KEY_LENGTH, AttentionPass, Slots, View
from kvlab.core.stores import Store, store_bytes

ROUNDING = 1e-9  # tolerance, so that integer products are not rounded up
# Recent tokens, which text that goes on needs, must not displace what a question may ask for: few of the first slots.
FIRST_SLOTS = 96
ONE_IN_FIRST = 16
ONE_IN_OTHERS = 4
Limit = float | Literal["growing"]


class EqualHeads:
    """The head part of an allocator with equal heads."""

    capabilities: ClassVar[Capabilities] = NONE

    def head_budgets(self, view: View) -> Tensor | None:
        return None

    def statistic(self, slots: Slots, layer_pass: AttentionPass) -> Tensor | None:
        return None


@dataclass(frozen=True)
class Uniform(EqualHeads):
    """Equal budgets."""

    def layer_budgets(self, average: int, tokens: int, num_layers: int) -> list[int]:
        return [average] * num_layers


class Protecting:
    """Base class of selectors that protect some slots and need nothing else."""

    protected: Callable[[View], Tensor]  # slots (B, H, S)

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(protected=self.protected)


@dataclass(frozen=True)
class LowestScore(Protecting):
    """Protect `sinks` first and `recent` last tokens; fractions are shares of the head's budget.

    A share of sinks is rounded up, one of recent tokens down. `of` "text" makes `recent` a share of the text seen so
    far: 1 + int(recent * tokens). `most` limits recent tokens to that share of the head's budget; `growing` is a
    sixteenth of its first 96 slots and a quarter of the others.

    If the budget cannot hold both, recent tokens take precedence over sinks: the newest token is always kept.
    """

    sinks: float | int = 0
    recent: float | int = 1
    of: Literal["budget", "text"] = "budget"
    most: Limit | None = None

    @property
    def bounds(self) -> Callable[[View, Tensor], tuple[Tensor, Tensor]] | None:
        """`bounds_of`, if a budget alone says what is protected."""
        return self.bounds_of if self.of == "budget" else None

    def victims(self, view: View, excess: Tensor, most: int, barred: Tensor | None = None) -> Victims:
        """The `excess` (B, H) lowest unprotected slots; of equal scores the older token leaves first."""
        order = fit(view, view.slots.score.nan_to_num(nan=0.0), self.protected(view), barred, torch.inf)
        return Victims.lowest(view, order, excess, most, torch.inf)

    def protected(self, view: View) -> Tensor:
        recent, sinks = self._bounds(view) if self.of == "text" else self.bounds_of(view, view.budget)
        position = view.slots.position
        late = position >= (view.tokens_seen[:, None] - recent)[..., None]
        return late if self.sinks == 0 else late.logical_or_(position < sinks)

    def bounds_of(self, view: View, budget: Tensor) -> tuple[Tensor, Tensor]:
        """(recent tokens (B, H), sinks (B, H, 1)) protected under `budget` (B, H), cached."""
        view = view if view.budget is budget else replace(view, budget=budget)
        return view.of_budget(self, lambda: self._bounds(view))

    def _bounds(self, view: View) -> tuple[Tensor, Tensor]:
        """(recent tokens (B, H), sinks (B, H, 1)) protected."""
        budget = view.budget
        if not isinstance(self.recent, float):
            recent = torch.full_like(budget, self.recent)
        elif self.of == "text":
            recent = (1 + (view.tokens_seen.double() * self.recent).long())[:, None].expand_as(budget)
        else:
            recent = (budget * self.recent).long()
        if isinstance(self.most, str):
            first = budget.clamp_max(FIRST_SLOTS)
            recent = recent.minimum(first // ONE_IN_FIRST + (budget - first) // ONE_IN_OTHERS)
        elif self.most is not None:
            recent = recent.minimum((budget * self.most).long())
        recent = recent.clamp_min(1).minimum(budget)
        if isinstance(self.sinks, float):
            sinks = (budget.double() * self.sinks - ROUNDING).ceil().long()
        else:
            sinks = torch.full_like(budget, self.sinks)
        return recent, (budget - recent).minimum(sinks)[..., None]


def fit(view: View, order: Tensor, protected: Tensor, barred: Tensor | None, last: float) -> Tensor:
    """`order` (B, H, S) with `last` for slots that cannot be victims; modifies `protected`."""
    safe = protected if barred is None else protected.logical_or_(barred)
    never = view.of_budget(("never", last), lambda: order.new_full((), last))
    return torch.where(view.slots.valid > safe, order, never)  # valid and not safe


@dataclass(frozen=True)
class Oldest(Protecting):
    """Keep the first `sinks` tokens and a sliding window, whatever their scores (StreamingLLM, CaM).

    A fraction of sinks is a share of the head's budget, rounded up.
    """

    sinks: float | int = 4

    def victims(self, view: View, excess: Tensor, most: int, barred: Tensor | None = None) -> Victims:
        """The `excess` (B, H) oldest unprotected slots."""
        slots = view.slots
        latest = torch.iinfo(slots.position.dtype).max
        order = fit(view, slots.position, self.protected(view), barred, latest)
        return Victims.lowest(view, order, excess, most, latest)

    def window(self, view: View) -> int:
        """Number of slots that every head keeps after its sinks, at least."""
        sinks = self.sinks if isinstance(self.sinks, int) else math.ceil(view.largest_budget * self.sinks)
        return view.smallest_budget - sinks

    def protected(self, view: View) -> Tensor:
        """Protected slots (B, H, S): sinks, and the newest token."""
        return LowestScore(sinks=self.sinks).protected(view)


@dataclass(frozen=True)
class Evict:
    """Evict all victims."""

    state: Mapping[str, float] = field(default_factory=dict, hash=False)

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(fills_budget=True, by_selector=True, in_place=self.in_place)

    def in_place(self, score: Scorer, select: Selector) -> InPlace | None:
        """Needs a score that is a running sum of attention and a selector of the lowest scores."""
        decay = capabilities_of(score).decay
        bounds = optional(select, "bounds")
        if decay is None or bounds is None:
            return None
        return InPlace(EVICT, lambda view: bounds(view, view.budget), decay=decay)

    def settle(self, view: View, select: Selector) -> Plan:
        victims = select.victims(view, view.excess(), view.most_excess)
        return Plan(keep=victims.keep(view.slots.valid), lost=victims.votes(view.slots.votes))


@dataclass(frozen=True)
class Pipeline:
    """The four parts, and when they act."""

    score: Scorer
    allocate: Allocator = Uniform()
    select: Selector = LowestScore()
    settle: Settler = Evict()
    decode: bool = True
    deferred: bool = False  # compress the prompt after its last layer has seen it: layers decide together
    block: int = 0  # prompt tokens a layer processes before each decision; 0: all
    buffer: int = 0  # generated tokens that gather in addition to the budget before a decision

    def __getstate__(self) -> dict[str, Any]:
        """The fields alone, for copies and pickles: kernels are found again."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def plan(self, view: View) -> Plan:
        """The decision for one layer."""
        return self.settle.settle(view, self.select)

    @cached_property
    def can(self) -> PartCapabilities:
        """Capabilities of the four parts."""
        parts = (self.score, self.allocate, self.select, self.settle)
        return PartCapabilities(*(capabilities_of(part) for part in parts))

    @cached_property
    def in_place(self) -> InPlace | None:
        """The decode-step decision as an in-place kernel; None if there is none."""
        make_kernel = self.can.settle.in_place
        return None if make_kernel is None else make_kernel(self.score, self.select)

    @cached_property
    def fills_budget(self) -> bool:
        """Whether a decision leaves every head that exceeded its budget with exactly its budget."""
        return self.can.settle.fills_budget and not optional(self.select, "leaves_room")

    def prompt_rows(self, tokens: int) -> int:
        """Number of last queries of a prompt of `tokens` that the decision needs together.

        Parts that sum over all queries are updated after each chunk by `accumulate`.
        """
        can = self.can
        parts = (can.score, can.allocate, can.select, can.settle)
        return min(tokens, max(part.prompt_rows(tokens) for part in parts))

    @property
    def recalled(self) -> int:
        """Number of newest queries kept for decisions while decoding."""
        return max(self.can.score.recalls, self.can.settle.recalls) if self.decode and self.buffer else 0

    @cached_property
    def second_pass(self) -> SecondPassRequest | None:
        """The second pass before the prompt is compressed: the scorer's, else the settler's."""
        return self.can.score.second_pass or self.can.settle.second_pass

    @property
    def waits(self) -> bool:
        """Whether layers must wait until all of them have seen the prompt, or for a second pass."""
        return self.deferred or optional(self.allocate, "across_layers") or self.second_pass is not None

    @property
    def references(self) -> int:
        """Number of second pass queries a query head keeps for the decision."""
        return max(optional(self.select, "references"), optional(self.settle, "references"))

    @cached_property
    def reads_text(self) -> bool:
        """Whether the decision about the prompt uses its token ids."""
        return bool(optional(self.settle, "reads_text"))

    @cached_property
    def state_beside_slots(self) -> StateBesideSlots | None:
        """What queries attend to besides the slots; None for most methods."""
        return cast(StateBesideSlots, self.settle) if optional(self.settle, "keeps_state") else None

    def score_second_pass(self, slots: Slots, layer_pass: AttentionPass) -> Mapping[str, Tensor]:
        """New state of the prompt's slots after a pass of the second pass."""
        score_second_pass = optional(self.score, "score_second_pass")
        return {} if score_second_pass is None else score_second_pass(slots, layer_pass)

    @cached_property
    def columns(self) -> Columns:
        """Columns a slot stores: votes and log mass if the settler merges, scores unless derived (`rate`)."""
        score = self.can.score
        settle = self.can.settle
        mass = settle.mass_of_votes if settle.merges else 0.0
        votes = settle.merges and optional(self.settle, "counts_votes")
        return Columns(votes, mass, score.rate, optional(self.score, "counted_state"), optional(self.settle, "still"))

    @cached_property
    def state(self) -> dict[str, float]:
        """Slot state of scorer and settler that slots store, with initial values."""
        state = {**self.score.state, **self.settle.state}
        follows = optional(self.score, "counted_state")
        return state if follows is None else {name: start for name, start in state.items() if name != follows}

    def fresh(self, keys: Tensor, values: Tensor, position: Tensor, group: int, tokens: int) -> Slots:
        """Slots of new tokens with states (B, H, q, d) at `position` (B, q); `group`: query heads per KV head.

        The text has at most `tokens` tokens. The dtype of own state follows from its initial value (`_KINDS`).
        """
        whole = integer_dtype(tokens)
        shape = keys.shape[:3]
        extra = {}
        for name, fill in self.state.items():
            size = (*shape, group) if name == HEAD_MASS else shape
            extra[name] = torch.full(size, fill, dtype=_KINDS.get(type(fill), whole), device=keys.device)
        held = keys.shape[-1] * keys.element_size() + values.shape[-1] * values.element_size()
        if optional(self.settle, "seeks") and keys.device.type == "cpu" and held >= LENGTHS_FROM:
            extra[KEY_LENGTH] = key_lengths(keys)
        place = position[:, None].expand(shape).to(whole).contiguous()
        return self.columns.fresh(keys, values, place, extra)

    def head_bytes(self) -> dict[str, int]:
        """Bytes per KV head besides its slots: `head_bytes`, `head_value_bytes` per element of a value, and `head_keys`
        keys.
        """
        one, two = (torch.zeros(1, 1, 1, width) for width in (1, 2))
        least = self.settler_bytes(one, one)
        a_value = self.settler_bytes(one, two) - least
        a_key = self.settler_bytes(two, one) - least
        fixed = self.columns.head_bytes + least - a_value - a_key
        return {"head_bytes": fixed, "head_value_bytes": a_value, "head_keys": a_key // one.itemsize}

    def settler_bytes(self, keys: Tensor, values: Tensor) -> int:
        """Bytes of the settler's state per KV head besides slots, given states (B, H, S, d)."""
        head_bytes = optional(self.settle, "head_bytes")
        return 0 if head_bytes is None else head_bytes(keys, values, self.select)

    def slot_bytes(self) -> dict[str, int]:
        """Bytes per slot besides key and value: `slot_bytes` in a short text, two more for each of `whole_numbers`
        columns in a long one, and `query_head_bytes` per query head.
        """
        one = torch.zeros(1, 1, 1, 1)
        made = {group: self.fresh(one, one, torch.zeros(1, 1), group, 1).varying_columns() for group in (1, 2)}
        taken = {group: sum(column.nbytes for column in columns.values()) for group, columns in made.items()}
        whole = sum(column.dtype == integer_dtype(1) for column in made[1].values())
        per_head = taken[2] - taken[1]
        return {"slot_bytes": taken[1] - per_head, "query_head_bytes": per_head, "whole_numbers": whole}


# dtype of own state by the type of its initial value; integers are as wide as positions.
_KINDS = {float: torch.float32, bool: torch.bool, Byte: torch.uint8}


def native_slots(store: Store, pipeline: Pipeline, compress_every: int = 1) -> tuple[int, int]:
    """(most native slots per head, lots that may be partly filled).

    While decoding: slots gathered before packing, slots changed by two decisions, and slots changed by the last one.
    Settlers declare by `still` that decisions change no state.
    """
    if not pipeline.decode:
        return store.sinks + store.residual, 1
    if optional(pipeline.settle, "changes_many"):
        return UNLIMITED, 3
    changed = 0 if optional(pipeline.settle, "still") else compress_every - 1 + max(pipeline.buffer, 1)
    if store.gathered >= UNLIMITED:  # generated tokens are never packed
        return UNLIMITED, 3
    return store.sinks + max(store.residual, store.gathered, 2 * changed) + store.lot + 1 + changed, 3


def packed_sizes(store: Store, pipeline: Pipeline) -> dict[str, JsonValue] | None:
    """Sizes of a quantized store for a memory plan (`kvlab.planning.choices.PackedSlots`); None for native."""
    if not store.packs:
        return None
    native, lots = native_slots(store, pipeline)
    (per_slot, shared), (twice, _) = (store_bytes(store, width, width) for width in (64, 128))
    number = (twice - per_slot) / 64
    return {
        "native": native,
        "lot": store.lot,
        "lots": lots,
        "slot_bytes": per_slot - 64 * number,
        "number_bytes": number,
        "lot_bytes": shared / 64,
        "head_bytes": store.head_bytes(64, 64) / 64,
        "lighter": pipeline.columns.lighter,
    }
