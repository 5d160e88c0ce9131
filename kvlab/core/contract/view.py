"""What a method sees: the slots of one layer, and the attention of this pass."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn

from kvlab.core.contract.rotary import Rotary
from kvlab.core.stores import NATIVE, STORES, Store

# Slot state known to the cache: (B, H, S, G), added to the slot's log mass per query head of the group.
HEAD_MASS = "head_mass"
# Key length (B, H, S) float32, stored if that pays off (`kvlab.core.contract.slot_columns`) and kept current.
KEY_LENGTH = "key_length"
NEVER = float("-inf")
COLUMNS = ("position", "votes", "log_mass", "score", "valid")  # of every slot table; `fields` is slow at every step


def one_number(value: float, like: Tensor) -> Tensor:
    """A constant column (B, H, S) for the slots of `like` (B, H, S, ...); takes the memory of one number."""
    return torch.as_strided(torch.tensor(value, device=like.device), like.shape[:3], (0, 0, 0))


def is_constant(column: Tensor) -> bool:
    """Whether a column is constant over all slots, and therefore read-only."""
    return not any(column.stride())


@dataclass
class Slots:
    """The slot table of one layer: B batch rows, H KV heads, S slots, d head_dim.

    A slot represents one token or, after merging, several; `position` is that of its pivot token. Columns may be
    constant (`is_constant`).
    """

    keys: Tensor  # (B, H, S, d) rotated at the stored position
    values: Tensor  # (B, H, S, d)
    # (B, H, S) int16 or int32 (`kvlab.core.contract.slot_columns.integer_dtype`); negative in a free slot
    position: Tensor
    votes: Tensor  # (B, H, S) of the same dtype: tokens this slot represents
    log_mass: Tensor  # (B, H, S) float32: additive attention logit
    score: Tensor  # (B, H, S) float32: the scorer's running importance
    valid: Tensor  # (B, H, S) bool
    extra: dict[str, Tensor] = field(default_factory=dict)  # (B, H, S[, n]) state of one method

    def log_mass_of_heads(self) -> Tensor:
        """Log mass (B, H, 1, S), or (B, H, G, S) if query heads of a group have their own."""
        head_mass = self.extra.get(HEAD_MASS)
        return self.log_mass[:, :, None] if head_mass is None else self.log_mass[:, :, None] + head_mass.transpose(2, 3)

    def bias(self, never: Tensor | float = NEVER) -> Tensor:
        """Additive attention bias (B, H, 1 or G, S): log mass, and `never`, -inf, in invalid slots."""
        return torch.where(self.valid[:, :, None], self.log_mass_of_heads(), never)

    def live(self) -> Tensor:
        """Number of valid slots per head, (B, H) int64."""
        return self.valid.sum(-1)

    def in_text(self) -> Tensor:
        """Slot indices (B, H, S) ordered by position, invalid ones last."""
        late = torch.iinfo(self.position.dtype).max
        return self.position.masked_fill(~self.valid, late).argsort(dim=-1, stable=True)

    def lowest(self, order: Tensor, count: int) -> Tensor:
        """Slot indices (B, H, count) of the lowest of `order` (B, H, S), compared as float32, lowest first.

        Of equal ones the older token comes first: this is how every method breaks ties, whatever the processor and
        wherever the cache put the slots.
        """
        if count == 1:
            late = torch.iinfo(self.position.dtype).max
            return torch.where(order == order.amin(-1, keepdim=True), self.position, late).argmin(-1, keepdim=True)
        # One integer for both, since `topk` leaves the order of equal numbers open: the bits of a float32, as an
        # integer that rises with it, before those of the position. A sort by two columns takes ten times as long.
        bits = (order.float() + 0.0).view(torch.int32)  # -0.0 becomes 0.0
        rising = bits ^ ((bits >> 31) & torch.iinfo(torch.int32).max)
        return ((rising.long() << 32) + self.position).topk(count, dim=-1, largest=False).indices

    def most_votes(self) -> Tensor:
        """Votes (B, H) of each head's heaviest valid slot."""
        return (self.votes * self.valid).amax(-1)

    def metadata(self) -> dict[str, Tensor]:
        """All (B, H, S) tensors by name, including the method's own."""
        return {name: getattr(self, name) for name in COLUMNS} | self.extra

    def varying_columns(self) -> dict[str, Tensor]:
        """The metadata that is not constant."""
        return {name: column for name, column in self.metadata().items() if not is_constant(column)}

    def with_columns(self, **columns: Any) -> Slots:
        """A copy with some columns changed; keys and values are not read."""
        changed = object.__new__(type(self))  # takes a third of the time of `dataclasses.replace`, at every step
        vars(changed).update(vars(self) | columns)
        return changed

    def map(self, change: Callable[[Tensor], Tensor]) -> Slots:
        """Apply `change` to every tensor; constant columns stay constant."""
        changed = {name: change(tensor) for name, tensor in self.extra.items()}
        columns = {name: change(getattr(self, name)) for name in ("keys", "values")}
        for name in COLUMNS:
            column = getattr(self, name)
            new = change(column)
            if is_constant(column) and not is_constant(new):
                new = torch.as_strided(column, new.shape, (0,) * new.dim())
            columns[name] = new
        return type(self)(**columns, extra=changed)


class AttentionPass(Protocol):
    """Attention of this pass: q new queries (Hq = H * G heads) over S slots, the last q of which are new."""

    query: Tensor  # (B, Hq, q, d)
    scaling: float  # factor of dot products
    softcap: float | None  # logits are softcap * tanh(logits / softcap); None without soft-capping
    # Logits (B, H, G) of learned sinks, which take attention and have no slot; None without them.
    sinks: Tensor | None
    module: nn.Module | None  # the attention module, for scorers that project their own queries; None outside a model
    hidden_states: Tensor | None  # input (B, q, hidden) of the module; None unless the scorer `needs_hidden_states`
    rotary: Rotary | None  # the model's rotary embedding; None without one
    generator: torch.Generator | None  # the layer's seeded random generator; None outside a cache

    @property
    def num_new(self) -> int:
        """Number of queries q."""
        ...

    def project_queries(self, hidden_states: Tensor, position: Tensor | None = None) -> Tensor:
        """This layer's queries (B, Hq, n, d) for `hidden_states` (B, n, hidden), with bias and norm, not rotated.

        With `position` (B,), includes the position-dependent factor of some models (Llama 4).
        """
        ...

    def output_weight(self) -> Tensor:
        """Output projection (B or 1, Hq, d, hidden) per query head; raises UserError outside a model."""
        ...

    @property
    def layer_heads(self) -> int:
        """Number of KV heads of the layer, those in other tables included."""
        ...

    def of_heads(self, numbers: Tensor) -> Tensor:
        """Rows (B or 1, H, ...) of `numbers` (KV heads of the layer, ...) for the heads of this pass."""
        ...

    def logits_of(self, query: Tensor) -> Tensor:
        """Logits (B, H, G, n, S) float32 of any queries (B, Hq, n, d), without log mass, -inf at invalid slots."""
        ...

    def of_keys(self, key: Tensor) -> AttentionPass:
        """The same pass with other keys (B, H, S, d) in the slots."""
        ...

    def recalled_logits(self, position: Tensor, rows: int) -> Tensor:
        """Logits (B, H, G, r, S) float32 of the `rows` newest queries (`Pipeline.recalled`), without log mass.

        -inf for queries before the slot's `position` (B, H, S) and for rows before the text.
        """
        ...

    def recalled_mass(self, position: Tensor, rows: int) -> Tensor:
        """Attention (B, H, G, r, S) of those queries now; 0 for rows before the text."""
        ...

    def recalled_queries(self, rows: int) -> tuple[Tensor, Tensor]:
        """Those queries (B, Hq, r, d), rotated, and their positions (B, r): negative before the text."""
        ...

    def column_mass(self, rows: int | None = None, row_weight: Tensor | None = None) -> Tensor:
        """Attention (B, H, S) from the last `rows` queries: weighted sum over rows, mean over the group.

        `row_weight` is (rows,), or (B, rows) if batch rows use different weights.
        """
        ...

    def column_max(self, rows: int | None = None, slots: int | None = None, row_weight: Tensor | None = None) -> Tensor:
        """Largest attention (B, H, S) a slot gets from any of the group's last `rows` queries, times its `row_weight`.

        With `slots`, only for the first ones.
        """
        ...

    def column_rms(self, rows: int | None = None, slots: int | None = None) -> Tensor:
        """Root mean square (B, H, S) of the attention from the last `rows` real queries of the group."""
        ...

    def last_logits(self, rows: int = 1) -> Tensor:
        """Logits (B, H, G, rows, S) of the last `rows` queries, without log mass.

        -inf at hidden slots and in rows of padding.
        """
        ...

    def place_bias(self, index: Tensor, rows: int = 1) -> Tensor | None:
        """ALiBi bias (B, H, G * rows, E) of the last queries at slots `index` (B, H, E); None without ALiBi."""
        ...

    def last_mass(self) -> Tensor:
        """Attention (B, H, S) float32 of the last query, mean over the group."""
        ...

    @property
    def moves_logits(self) -> bool:
        """Whether a slot's position changes its logits, as with ALiBi."""
        ...

    def of_slots(self) -> AttentionPass:
        """The same pass without a low-rank state that queries also attend to."""
        ...

    def rows_seen(self, rows: int | None = None) -> Tensor:
        """Number of the last `rows` real queries that could see each slot; broadcastable to (B, H, S), float32."""
        ...


@dataclass(frozen=True)
class References:
    """Evenly spaced queries of a second pass (B, Hq, n, d), rotated; `real` (B, n) marks those that count."""

    query: Tensor
    real: Tensor


@dataclass(frozen=True)
class View:
    """One layer when a decision is due."""

    slots: Slots
    layer_pass: AttentionPass
    budget: Tensor  # (B, H) int64: slots each head may keep
    tokens_seen: Tensor  # (B,) int64: real tokens so far, without padding
    phase: Literal["prefill", "decode"]
    most_excess: int  # host-side bound on how far any head exceeds its budget
    largest_budget: int  # host-side bound on any head's budget
    started: bool  # every head has exceeded its budget before
    layer_idx: int  # index among the compressed layers
    num_layers: int  # compressed layers
    generator: torch.Generator | None = None
    statistics: dict[int, Tensor] = field(default_factory=dict)  # allocator statistics by layer, from the prefill
    head_state: dict[str, Tensor] = field(default_factory=dict)  # (B, H, ...) per-head state from earlier plans
    references: References | None = None  # queries of a second pass, if the method keeps any
    certain: bool = False  # the host knows that every head exceeds its budget by exactly `most_excess`
    in_lots: bool = False  # several tokens wait for each decision (`Pipeline.buffer`), possibly with equal scores
    smallest_budget: int = 0  # host-side bound, like `largest_budget`
    token_ids: Tensor | None = None  # (B, S) of the prompt's slots, for a settler that `reads_text`
    remembered: dict[Hashable, tuple[Tensor, Any]] = field(default_factory=dict, repr=False)  # see `of_budget`
    store: Store = field(default_factory=lambda: STORES[NATIVE])  # storage format of kept slots

    @property
    def seen(self) -> AttentionPass:
        """`layer_pass`, as plug-ins have called it before."""
        return self.layer_pass

    def of_budget(self, name: Hashable, make: Callable[[], Any]) -> Any:
        """Cache a value that depends on `budget` only, by `name`, as long as the budget is the same tensor."""
        known = self.remembered.get(name)
        if known is None or known[0] is not self.budget:
            known = self.remembered[name] = self.budget, make()
        return known[1]

    def never(self) -> Tensor:
        """Minus infinity on the device (scalar)."""
        return self.of_budget("never", lambda: self.slots.score.new_full((), NEVER))

    def excess(self) -> Tensor:
        """Number of slots each head must evict, (B, H) int64, never negative."""
        if self.certain:
            most = self.most_excess
            return self.of_budget(("excess", most), lambda: torch.full_like(self.budget, most))
        return (self.slots.live() - self.budget).clamp_min(0)
