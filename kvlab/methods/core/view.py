"""What a method may look at: the slots of one layer, and what this pass attended to."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn

from kvlab.methods.core.rotary import Rotary
from kvlab.stores import NATIVE, STORES, Store

# Slot state that the cache itself knows, where a settler names it: as (B, H, S, G), what each query head of the group
# adds to the slot's log mass.
HEAD_MASS = "head_mass"
# The length of a slot's key, (B, H, S) float32: there where that pays (`kvlab.methods.core.slot_columns`), and kept
# current.
KEY_LENGTH = "key_length"
NEVER = float("-inf")


def one_number(value: float, like: Tensor) -> Tensor:
    """(B, H, S) of one number that all slots of `like` (B, H, S, ...) share; it takes the bytes of one."""
    return torch.as_strided(torch.tensor(value, device=like.device), like.shape[:3], (0, 0, 0))


def is_constant(column: Tensor) -> bool:
    """Whether a column of slots is one number that all of them share, and so must not be written to."""
    return not any(column.stride())


@dataclass
class Slots:
    """The slot table of one layer: B batch rows, H KV heads, S slots, d head_dim.

    A slot stands for one token, or, once merged, for several; `position` names it (its pivot token). A column that no
    slot has for itself is one number (`is_constant`).
    """

    keys: Tensor  # (B, H, S, d) rotated at the stored position
    values: Tensor  # (B, H, S, d)
    position: (
        Tensor  # (B, H, S) int16 or int32 (`kvlab.methods.core.slot_columns.whole_numbers`); below 0 in a free slot
    )
    votes: Tensor  # (B, H, S) of that type: original tokens this slot stands for
    log_mass: Tensor  # (B, H, S) float32: additive attention logit
    score: Tensor  # (B, H, S) float32: the scorer's running importance
    valid: Tensor  # (B, H, S) bool
    extra: dict[str, Tensor] = field(default_factory=dict)  # (B, H, S[, n]) state that one method alone needs

    def log_mass_of_heads(self) -> Tensor:
        """(B, H, 1, S), or (B, H, G, S) where the query heads of a group have log masses of their own."""
        own = self.extra.get(HEAD_MASS)
        return self.log_mass[:, :, None] if own is None else self.log_mass[:, :, None] + own.transpose(2, 3)

    @property
    def has_mass(self) -> bool:
        """Whether slots have log masses of their own."""
        return HEAD_MASS in self.extra or not is_constant(self.log_mass)

    def bias(self, never: Tensor | float = NEVER) -> Tensor:
        """What attention adds to logits, (B, H, 1 or G, S): log mass, and `never`, -inf, where a slot is not valid."""
        return torch.where(self.valid[:, :, None], self.log_mass_of_heads(), never)

    def live(self) -> Tensor:
        """Valid slots of each head, (B, H) int64."""
        return self.valid.sum(-1)

    def in_text(self) -> Tensor:
        """(B, H, S): indices of the slots in the order of their positions, those not valid last."""
        return self.position.masked_fill(~self.valid, torch.iinfo(self.position.dtype).max).argsort(-1)

    def most_votes(self) -> Tensor:
        """The votes of each head's heaviest valid slot, (B, H)."""
        return (self.votes * self.valid).amax(-1)

    def metadata(self) -> dict[str, Tensor]:
        """Every (B, H, S) tensor by name, the method's own included."""
        own = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("keys", "values", "extra")}
        return own | self.extra

    def own(self) -> dict[str, Tensor]:
        """The metadata that slots have for themselves."""
        return {name: column for name, column in self.metadata().items() if not is_constant(column)}

    def with_columns(self, **columns: Any) -> Slots:
        """The same slots with some columns changed; keys and values are not looked at."""
        changed = object.__new__(type(self))  # a third of the time of `dataclasses.replace`, at every step
        vars(changed).update(vars(self) | columns)
        return changed

    def map(self, change: Callable[[Tensor], Tensor]) -> Slots:
        """The same table with `change` applied to every tensor; what was one number for all slots stays one."""
        own = {f.name: _changed(getattr(self, f.name), change) for f in fields(self) if f.name != "extra"}
        return replace(self, **own, extra={name: change(tensor) for name, tensor in self.extra.items()})


def _changed(column: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
    changed = change(column)
    if not is_constant(column) or is_constant(changed):
        return changed
    return torch.as_strided(column, changed.shape, (0,) * changed.dim())


class Seen(Protocol):
    """The attention of this pass: q new queries (Hq = H * G heads) against S slots, the last q of which are new."""

    @property
    def query(self) -> Tensor:
        """(B, Hq, q, d)."""
        ...

    @property
    def num_new(self) -> int:
        """q."""
        ...

    @property
    def scaling(self) -> float:
        """What dot products are multiplied by."""
        ...

    @property
    def softcap(self) -> float | None:
        """Logits are softcap * tanh(logits / softcap); None for a model that does not cap them."""
        ...

    @property
    def sinks(self) -> Tensor | None:
        """(B, H, G) logits of learned sinks, which take attention and have no slot; None for a model without."""
        ...

    @property
    def module(self) -> nn.Module | None:
        """The attention module, for scorers that project queries of their own; None outside a model."""
        ...

    @property
    def hidden_states(self) -> Tensor | None:
        """(B, q, hidden) what the module was given; None unless the scorer asked for it (`needs_hidden_states`)."""
        ...

    @property
    def rotary(self) -> Rotary | None:
        """The model's rotary embedding; None for a model without one."""
        ...

    @property
    def generator(self) -> torch.Generator | None:
        """The layer's seeded source of random numbers; None outside a cache."""
        ...

    def project_queries(self, hidden_states: Tensor, position: Tensor | None = None) -> Tensor:
        """(B, Hq, n, d): this layer's queries for `hidden_states` (B, n, hidden), bias and norm applied, unrotated.

        Where `position` (B,) is given, with the factor that some models put on queries so far on (Llama 4).
        """
        ...

    def output_weight(self) -> Tensor:
        """(B or 1, Hq, d, hidden): the output projection of each query head; raises UserError outside a model."""
        ...

    def logits_of(self, query: Tensor) -> Tensor:
        """Logits of any queries (B, Hq, n, d), log mass not added, -inf at invalid slots; (B, H, G, n, S) float32."""
        ...

    def of_keys(self, key: Tensor) -> Seen:
        """The same pass over other keys (B, H, S, d) in the slots' places."""
        ...

    def recalled_logits(self, position: Tensor, rows: int) -> Tensor:
        """(B, H, G, r, S) float32: logits of the `rows` newest queries (`Pipeline.recalled`), log mass not added.

        Minus infinity where a query came before the slot at `position` (B, H, S), and in rows before the text.
        """
        ...

    def recalled_mass(self, position: Tensor, rows: int) -> Tensor:
        """(B, H, G, r, S): the attention those queries give now; rows before the text are 0."""
        ...

    def recalled_queries(self, rows: int) -> tuple[Tensor, Tensor]:
        """Those queries (B, Hq, r, d), rotated, and where they were asked (B, r): negative before the text."""
        ...

    def column_mass(self, rows: int | None = None, row_weight: Tensor | None = None) -> Tensor:
        """Attention from the last `rows` queries: weighted sum over rows, mean over the group; (B, H, S).

        `row_weight` is (rows,), or (B, rows) where batch rows weigh their queries differently.
        """
        ...

    def column_max(self, rows: int | None = None, slots: int | None = None) -> Tensor:
        """The most attention a slot gets from any one of the last `rows` queries of its group; (B, H, S).

        With `slots`, only the first ones are worked out.
        """
        ...

    def column_rms(self, rows: int | None = None, slots: int | None = None) -> Tensor:
        """Root mean square, over the last `rows` real queries and the group, of what a slot gets; (B, H, S)."""
        ...

    def last_logits(self, rows: int = 1) -> Tensor:
        """Logits of the last `rows` queries, log mass not added, -inf where a row cannot look; (B, H, G, rows, S)."""
        ...

    def place_bias(self, index: Tensor, rows: int = 1) -> Tensor | None:
        """(B, H, G * rows, E): what ALiBi adds to the last queries' logits at slots `index` (B, H, E), else None."""
        ...

    def last_mass(self) -> Tensor:
        """Attention of the last query, mean over the group; (B, H, S) float32."""
        ...

    @property
    def moves_logits(self) -> bool:
        """Whether a slot's place changes its logits by itself, as with ALiBi."""
        ...

    def of_slots(self) -> Seen:
        """The same pass as if the slots were all there is: without a state beside them that queries attend to too."""
        ...

    def rows_seen(self, rows: int | None = None) -> Tensor:
        """How many of the last `rows` real queries could look at each slot; broadcastable to (B, H, S), float32."""
        ...


@dataclass(frozen=True)
class References:
    """Some of a rehearsal's queries, evenly spread: (B, Hq, n, d), rotated where they were asked; `real` (B, n)."""

    query: Tensor
    real: Tensor

    def and_more(self, more: References) -> References:
        """Those of one more pass behind these."""
        return References(torch.cat([self.query, more.query], 2), torch.cat([self.real, more.real], 1))


@dataclass(frozen=True)
class View:
    """One layer at the moment a decision is due."""

    slots: Slots
    seen: Seen
    budget: Tensor  # (B, H) int64: slots each head may keep
    tokens_seen: Tensor  # (B,) int64: real tokens so far, padding not counted
    phase: Literal["prefill", "decode"]
    most_excess: int  # host-side bound on how many slots any head is over budget
    largest_budget: int  # host-side bound on any head's budget
    started: bool  # every head has been over budget before
    layer_idx: int  # among the compressed layers
    num_layers: int  # compressed layers
    generator: torch.Generator | None = None
    statistics: dict[int, Tensor] = field(default_factory=dict)  # what the allocator noted of each layer at prefill
    head_state: dict[str, Tensor] = field(default_factory=dict)  # (B, H, ...) what plans noted of each head so far
    references: References | None = None  # queries of a rehearsal, where the method keeps any
    certain: bool = False  # the host knows that every head is over its budget by exactly `most_excess`
    in_lots: bool = False  # many tokens wait for each decision (`Pipeline.buffer`), and many may be scored alike
    smallest_budget: int = 0  # host-side bound, like `largest_budget`
    token_ids: Tensor | None = None  # (B, S) of the prompt's slots, for a settler that `reads_text`
    remembered: dict[Hashable, tuple[Tensor, Any]] = field(default_factory=dict, repr=False)  # see `of_budget`
    store: Store = field(default_factory=lambda: STORES[NATIVE])  # how what stays will be held

    def of_budget(self, name: Hashable, make: Callable[[], Any]) -> Any:
        """What follows from `budget` alone: made once, and kept by `name` as long as the budget is the same tensor."""
        known = self.remembered.get(name)
        if known is None or known[0] is not self.budget:
            known = self.remembered[name] = self.budget, make()
        return known[1]

    def never(self) -> Tensor:
        """Minus infinity on the device, of no dimension."""
        return self.of_budget("never", lambda: self.slots.score.new_full((), NEVER))

    def excess(self) -> Tensor:
        """How many slots each head must lose, (B, H) int64, never negative."""
        if self.certain:
            most = self.most_excess
            return self.of_budget(("excess", most), lambda: torch.full_like(self.budget, most))
        return (self.slots.live() - self.budget).clamp_min(0)
