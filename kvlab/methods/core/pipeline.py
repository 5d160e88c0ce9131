"""A method as four choices: score the slots, allocate the budget, select what stays, settle the rest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from pydantic import JsonValue
from torch import Tensor

from kvlab.methods.core.contract import Allocator, PartCapabilities, Scorer, Selector, Settler, capabilities_of
from kvlab.methods.core.in_place import InPlace
from kvlab.methods.core.plan import Plan
from kvlab.methods.core.second_pass import STUDIES, Rehearsal
from kvlab.methods.core.slot_columns import Byte, Columns, key_lengths, lengths_pay, whole_numbers
from kvlab.methods.core.view import HEAD_MASS, KEY_LENGTH, Seen, Slots, View


@dataclass(frozen=True)
class Pipeline:
    """The four choices, and when they act."""

    score: Scorer
    allocate: Allocator
    select: Selector
    settle: Settler
    decode: bool = True
    deferred: bool = False  # the prompt is compressed when its last layer has seen it: all layers decide together
    saves_prefill: bool = False  # of the prompt, a layer works on what the layer before kept; all heads keep the same
    block: int = 0  # tokens of a prompt that a layer takes in before it decides; 0: all of them
    buffer: int = 0  # generated tokens that gather on top of the budget before a decision; 0: none do

    def plan(self, view: View) -> Plan:
        """The decision for one layer."""
        return self.settle.settle(view, self.select)

    @cached_property
    def can(self) -> PartCapabilities:
        """What the four parts need and can do."""
        parts = (self.score, self.allocate, self.select, self.settle)
        return PartCapabilities(*(capabilities_of(part) for part in parts))

    @cached_property
    def in_place(self) -> InPlace | None:
        """How a kernel carries out the decision of a decode step; None where none does."""
        own = self.can.settle.in_place
        return None if own is None else own(self.score, self.select)

    @property
    def fills_budget(self) -> bool:
        """Whether a decision leaves every head that was over its budget with exactly its budget."""
        return self.can.settle.fills_budget

    @property
    def heads_apart(self) -> bool:
        """Whether decoding decides for every head by itself.

        If not, the heads of a batch row must stay in one table, as long as the longest of them.
        """
        return not any(part.across_heads for part in (self.can.score, self.can.select, self.can.settle))

    def prompt_rows(self, tokens: int) -> int:
        """How many of the last queries of a prompt of `tokens` the decision looks at together.

        Parts that add up what all queries gave are asked after each chunk, by `accumulate`.
        """
        parts = (self.can.score, self.can.allocate, self.can.settle)
        return min(tokens, max(part.prompt_rows(tokens) for part in parts))

    def scorer_rows(self, tokens: int) -> int:
        """How many of the last queries of a prompt of `tokens` the scorer looks at."""
        return self.can.score.prompt_rows(tokens)

    def judge_anew(self, slots: Slots, seen: Seen) -> Mapping[str, Tensor]:
        """New slot state for a decision while decoding, where the scorer `judges_anew`."""
        recall = self.can.score.recall
        return {} if recall is None else recall(slots, seen)

    @property
    def judges_anew(self) -> bool:
        """Whether slots are scored anew at each decision while decoding, by the scorer's `recall`."""
        return self.decode and self.buffer > 0 and self.can.score.recall is not None

    @property
    def recalled(self) -> int:
        """How many of the newest queries are kept for decisions while decoding."""
        return max(self.can.score.recalls, self.can.settle.recalls) if self.decode and self.buffer else 0

    def accumulate(self, slots: Slots, seen: Seen) -> Mapping[str, Tensor]:
        """New slot state after a chunk of the prompt that is not its last."""
        accumulate = self.can.score.accumulate
        return {} if accumulate is None else accumulate(slots, seen)

    @property
    def rehearsal(self) -> Rehearsal | None:
        """What is read again before the prompt is decided about: what the scorer asks for, else the settler."""
        return self.can.score.rehearsal or self.can.settle.rehearsal

    @property
    def waits(self) -> bool:
        """Whether no layer may decide about the prompt before all of them have seen it, or a rehearsal of it."""
        return self.deferred or self.can.allocate.across_layers or self.rehearsal is not None

    @property
    def references(self) -> int:
        """How many of the rehearsal's queries a query head keeps for the decision."""
        return max(self.can.select.references, self.can.settle.references)

    def read_again(self) -> dict[str, JsonValue] | None:
        """What a plan needs to know of the rehearsal (`kvlab.planning.footprint.Again`); None without one."""
        plan = self.rehearsal
        if plan is None:
            return None
        written, in_turn = len(STUDIES) * plan.study, plan.on_policy and self.references > 0
        return {"piece": plan.piece, "on_policy": in_turn, "written": written, "references": self.references}

    @property
    def reads_text(self) -> bool:
        """Whether the decision about the prompt wants to know its token ids."""
        return self.can.settle.reads_text

    def rehearsed(self, slots: Slots, seen: Seen) -> Mapping[str, Tensor]:
        """New state of the prompt's slots after a pass of the rehearsal."""
        rehearsed = self.can.score.rehearsed
        return {} if rehearsed is None else rehearsed(slots, seen)

    @property
    def notes(self) -> bool:
        """Whether the score of a decode step can be kept up in place, by `note`."""
        return self.can.score.note is not None

    def note(self, slots: Slots, seen: Seen) -> None:
        """`Scorer.update` after a single query, in place; scores that a decision works out are left to it."""
        assert self.can.score.note is not None
        self.can.score.note(slots, seen)

    @property
    def columns(self) -> Columns:
        """What a slot has to hold: votes and log mass where the settler merges, scores unless they follow (`rate`)."""
        score, settle = self.can.score, self.can.settle
        mass = settle.mass_of_votes if settle.merges else 0.0
        votes = settle.merges and settle.counts_votes
        return Columns(votes, mass, score.rate, score.counted_state, settle.still)

    @property
    def state(self) -> dict[str, float]:
        """Slot state of the scorer and the settler that slots hold, with the value a new slot starts at."""
        state, follows = {**self.score.state, **self.settle.state}, self.can.score.counted_state
        return state if follows is None else {name: start for name, start in state.items() if name != follows}

    def fresh(self, keys: Tensor, values: Tensor, position: Tensor, group: int, tokens: int) -> Slots:
        """Slots of new tokens: states (B, H, q, d) at `position` (B, q); `group` query heads share a slot.

        The text has at most `tokens` tokens. Own state is of the kind that it starts at (`_KINDS`).
        """
        whole, shape = whole_numbers(tokens), keys.shape[:3]
        extra = {}
        for name, fill in self.state.items():
            size = (*shape, group) if name == HEAD_MASS else shape
            extra[name] = torch.full(size, fill, dtype=_KINDS.get(type(fill), whole), device=keys.device)
        if self.can.settle.seeks and lengths_pay(keys, values):
            extra[KEY_LENGTH] = key_lengths(keys)
        place = position[:, None].expand(shape).to(whole).contiguous()
        return self.columns.fresh(keys, values, place, extra)

    def head_bytes(self) -> dict[str, int]:
        """Bytes of a KV head beside its slots: `head_bytes`, `head_value_bytes` for each number of a value, and as many
        keys as `head_keys` says.
        """
        one, two = (torch.zeros(1, 1, 1, width) for width in (1, 2))
        least = self.settled_bytes(one, one)
        a_value, a_key = self.settled_bytes(one, two) - least, self.settled_bytes(two, one) - least
        fixed = self.columns.head_bytes + least - a_value - a_key
        return {"head_bytes": fixed, "head_value_bytes": a_value, "head_keys": a_key // one.itemsize}

    def settled_bytes(self, keys: Tensor, values: Tensor) -> int:
        """Bytes of the settler's state beside the slots of one KV head, given states (B, H, S, d)."""
        own = self.can.settle.head_bytes
        return 0 if own is None else own(keys, values, self.select)

    def slot_bytes(self) -> dict[str, int]:
        """Bytes of a slot beside key and value: `slot_bytes` in a short text, `whole_numbers` that take two bytes more
        in a long one, and `query_head_bytes` for each query head.
        """
        one = torch.zeros(1, 1, 1, 1)
        made = {group: self.fresh(one, one, torch.zeros(1, 1), group, 1).own() for group in (1, 2)}
        taken = {group: sum(column.nbytes for column in own.values()) for group, own in made.items()}
        whole = sum(column.dtype == whole_numbers(1) for column in made[1].values())
        per_head = taken[2] - taken[1]
        return {"slot_bytes": taken[1] - per_head, "query_head_bytes": per_head, "whole_numbers": whole}

    def scored_rows(self) -> dict[str, int | bool]:
        """`rows`: last queries of a prompt looked at together, at a prompt of 65,536 tokens; `all_rows`: each is."""
        return {"rows": self.prompt_rows(2**16), "all_rows": self.can.score.accumulate is not None}


# What own state is held in, by what it starts at; a whole number is as wide as the text is long.
_KINDS = {float: torch.float32, bool: torch.bool, Byte: torch.uint8}
