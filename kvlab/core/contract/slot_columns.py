"""Metadata columns of slots: constant columns are stored once, and integers are narrow in short texts."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from kvlab.core.contract.view import Slots, is_constant, one_number

# Bytes of a key and value from which key lengths are stored for settlers that search the nearest key, on a CPU: four
# bytes are then less than a hundredth, and computing all lengths at each step takes as long as comparing the keys.
LENGTHS_FROM = 512
TINY = 1e-12
SHORT_TEXT = torch.iinfo(torch.int16).max  # most tokens for 16-bit positions and token counts
FREE = -1  # position of an invalid slot
# dtype of a constant log mass next to quantized states: up to 3 its error is .001, much less than that of the keys.
LIGHT_MASS = torch.float16
# Head state, (B, H, 2) int64: tokens before the first query that scores include, and up to the last one.
ASKED = "asked"


class Byte(int):
    """Initial value of own state that never exceeds 255."""


def key_lengths(keys: Tensor) -> Tensor:
    """Key lengths (B, H, S) float32 of keys (B, H, S, d), never 0."""
    # setting the dtype takes a third longer even if it is the same
    wide = None if keys.dtype.itemsize >= torch.float32.itemsize else torch.float32
    return torch.linalg.vector_norm(keys, dim=-1, dtype=wide).float().clamp_min_(TINY)


def integer_dtype(tokens: int) -> torch.dtype:
    """dtype of positions and token counts in a text of at most `tokens` tokens."""
    return torch.int16 if tokens <= SHORT_TEXT else torch.int32


def is_valid(position: Tensor) -> Tensor:
    """Validity (B, H, S) of slots from their positions."""
    return position >= 0


@dataclass(frozen=True)
class Columns:
    """Which metadata a method reads of a slot, and where it comes from.

    Validity follows from the position. Eviction changes no votes, so all slots share one number. A merging method has
    `votes`; its log mass is `mass_of_votes` * log(votes), or a column of its own if that is None. Derived scores are
    computed by `rate` when a decision needs them, and so is the query count named `counts`. A log mass that does not
    change while decoding (`fixed_mass`) takes 16 bits in a packed table.
    """

    votes: bool = True
    mass_of_votes: float | None = None
    rate: Callable[[Slots], Tensor] | None = None
    counts: str | None = None
    fixed_mass: bool = False

    @property
    def lighter(self) -> int:
        """Bytes by which a slot's metadata is smaller in a packed table."""
        return torch.float32.itemsize - LIGHT_MASS.itemsize if self.fixed_mass and self.mass_of_votes is None else 0

    @property
    def head_bytes(self) -> int:
        """Bytes per head from which query counts are derived."""
        return 0 if self.counts is None else 2 * torch.int64.itemsize

    def fresh(self, keys: Tensor, values: Tensor, position: Tensor, extra: dict[str, Tensor]) -> Slots:
        """Slots of new tokens with states (B, H, q, d) at `position` (B, H, q)."""
        shape = keys.shape[:3]
        device = keys.device
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

    def with_log_mass(self, slots: Slots, dense: bool = False) -> Slots:
        """Add validity (B, H, S) and log mass, float32, to the slots of a table; all slots of a `dense` table are
        valid.
        """
        valid = slots.valid if dense else is_valid(slots.position)
        if not self.mass_of_votes or is_constant(slots.votes):
            return slots.with_columns(valid=valid, log_mass=slots.log_mass.float())
        return slots.with_columns(valid=valid, log_mass=slots.votes.log().mul_(self.mass_of_votes))

    def with_scores(self, slots: Slots, asked: Tensor | None = None) -> Slots:
        """Add scores to slots that have their log mass; `asked` is the head state `ASKED`, None before the first
        scoring.
        """
        if self.counts is not None:
            # A slot is seen by all queries from its own on, so no counter is stored; below 1 if none has seen it.
            if asked is None:
                counts = torch.zeros_like(slots.position)
            else:
                first, last = asked.split(1, -1)
                counts = last - torch.maximum(slots.position, first)
            slots = slots.with_columns(extra=slots.extra | {self.counts: counts})
        return slots if self.rate is None else slots.with_columns(score=self.rate(slots))


def log_total(logits: Tensor, sinks: Tensor | None) -> Tensor:
    """Log-sum-exp (B, H, G, r, 1) of logits (B, H, G, r, S), with log mass, and of the sinks (B, H, G) if any."""
    total = torch.logsumexp(logits, -1, keepdim=True)
    return total if sinks is None else torch.logaddexp(total, sinks.float()[..., None, None])


def expand_index(index: Tensor, tensor: Tensor) -> Tensor:
    """Expand `index` (B, H, E) for a gather or scatter along the slots of `tensor` (B, H, S[, n])."""
    return index if tensor.dim() == 3 else index[..., None].expand(*index.shape, tensor.shape[-1])


def gather(tensor: Tensor, index: Tensor) -> Tensor:
    """Slots `index` (B, H, E) of `tensor`, (B, H, E[, n])."""
    return tensor.gather(2, expand_index(index, tensor))
