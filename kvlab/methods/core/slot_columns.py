"""Which metadata a slot carries: a column nobody changes is one number, and whole numbers are short in short texts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from kvlab.methods.core.view import Slots, is_constant, one_number

# Bytes of a key and value from which a settler that seeks the nearest key is given every key's length, on a CPU, where
# four bytes are less than a hundredth and measuring all keys at each step takes as long as comparing them.
LENGTHS_FROM = 512
TINY = 1e-12
SHORT_TEXT = torch.iinfo(torch.int16).max  # tokens up to which positions and counts of tokens take 16 bits
FREE = -1  # position of a slot that is not valid
# A log mass that is settled once, beside codes: of at most 3 it is off by .001, a fraction of what rounded keys are.
LIGHT_MASS = torch.float16
# Head state, (B, H, 2) int64: tokens before the first query that scores are made of, and up to the last one.
ASKED = "asked"


class Byte(int):
    """What own state starts at that never exceeds 255."""


def key_lengths(keys: Tensor) -> Tensor:
    """(B, H, S) float32 lengths of keys (B, H, S, d), never 0."""
    wide = None if keys.dtype == torch.float32 else torch.float32  # asked for, it takes a third longer even so
    return torch.linalg.vector_norm(keys, dim=-1, dtype=wide).clamp_min_(TINY)


def lengths_pay(keys: Tensor, values: Tensor) -> bool:
    """Whether slots of such states hold the lengths of their keys."""
    held = keys.shape[-1] * keys.element_size() + values.shape[-1] * values.element_size()
    return keys.device.type == "cpu" and held >= LENGTHS_FROM


def whole_numbers(tokens: int) -> torch.dtype:
    """The type of positions and of counts of tokens in a text of at most `tokens` tokens."""
    return torch.int16 if tokens <= SHORT_TEXT else torch.int32


def is_valid(position: Tensor) -> Tensor:
    """(B, H, S) bool: which slots of a table are valid, by where they stand (B, H, S)."""
    return position >= 0


def looked(position: Tensor, first: Tensor, last: Tensor) -> Tensor:
    """(B, H, S): how many queries have looked at slots at `position` (B, H, S), `first` and `last` as in `ASKED`.

    A slot was there for all queries from its own on, so that it needs no count; below 1 where none has looked.
    """
    return last - torch.maximum(position, first)


@dataclass(frozen=True)
class Columns:
    """What a method reads of a slot beside its key, value and position, and where it comes from.

    A slot is valid if it stands anywhere. Eviction changes no votes, so all slots share one number. A merging method
    has `votes`; its log mass is `mass_of_votes` * log(votes), or a column of its own where that is None. Scores that
    follow from the other columns are worked out by `rate` when a decision wants them, and so is the count of queries
    that is called `counts`. A log mass that does not change while decoding (`settled`) takes 16 bits in a packed table.
    """

    votes: bool = True
    mass_of_votes: float | None = None
    rate: Callable[[Slots], Tensor] | None = None
    counts: str | None = None
    settled: bool = False

    @property
    def lighter(self) -> int:
        """Bytes that a slot's metadata takes less in a packed table."""
        return torch.float32.itemsize - LIGHT_MASS.itemsize if self.settled and self.mass_of_votes is None else 0

    def packed(self, slots: Slots) -> Slots:
        """Slots as their metadata lies in a packed table."""
        return slots.with_columns(log_mass=slots.log_mass.to(LIGHT_MASS)) if self.lighter else slots

    @property
    def head_bytes(self) -> int:
        """Bytes a head takes for what a count follows from."""
        return 0 if self.counts is None else 2 * torch.int64.itemsize

    def fresh(self, keys: Tensor, values: Tensor, position: Tensor, extra: dict[str, Tensor]) -> Slots:
        """Slots of tokens of their own: states (B, H, q, d) at `position` (B, H, q)."""
        shape, device = keys.shape[:3], keys.device
        follows = self.mass_of_votes is not None
        return Slots(
            keys=keys,
            values=values,
            position=position,
            votes=torch.ones(shape, dtype=position.dtype, device=device) if self.votes else one_number(1, keys),
            log_mass=one_number(0.0, keys) if follows else torch.zeros(shape, device=device),
            score=one_number(0.0, keys) if self.rate is not None else torch.zeros(shape, device=device),
            valid=one_number(True, keys),
            extra=extra,
        )

    def weighed(self, slots: Slots, dense: bool = False) -> Slots:
        """The slots of a table with their validity, (B, H, S) bool, and their log mass, float32.

        Of a `dense` one all are valid, which nobody has to look for.
        """
        valid = slots.valid if dense else is_valid(slots.position)
        if not self.mass_of_votes or is_constant(slots.votes):
            return slots.with_columns(valid=valid, log_mass=slots.log_mass.float())
        return slots.with_columns(valid=valid, log_mass=slots.votes.log().mul_(self.mass_of_votes))

    def rated(self, slots: Slots, asked: Tensor | None = None) -> Slots:
        """Slots that have their log mass with their score; `asked` is there once they were scored where they count."""
        if self.counts is not None:
            none = torch.zeros_like(slots.position) if asked is None else looked(slots.position, *asked.split(1, -1))
            slots = slots.with_columns(extra=slots.extra | {self.counts: none})
        return slots if self.rate is None else slots.with_columns(score=self.rate(slots))


def log_total(logits: Tensor, sinks: Tensor | None) -> Tensor:
    """(B, H, G, r, 1): log-sum-exp of logits (B, H, G, r, S), log mass added, and of the sinks (B, H, G) if any."""
    total = torch.logsumexp(logits, -1, keepdim=True)
    return total if sinks is None else torch.logaddexp(total, sinks.float()[..., None, None])
