"""Decode-step decisions that a kernel can carry out in place, as settlers declare them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

if TYPE_CHECKING:
    from kvlab.methods.core.view import View

EVICT, RESIDUAL, NEAREST, SIMILAR, SPREAD, POOL, ABSORB = KINDS = range(7)  # what becomes of the slot that leaves
LEAVE_NO_TRACE = (EVICT, POOL, ABSORB)  # in the slots that stay


def one_too_many(view: View) -> bool:
    """Whether every head is known to have one slot too many."""
    return view.certain


@dataclass(frozen=True)
class InPlace:
    """How one slot of every head leaves a table in place.

    The kernel first adds the newest query's attention to the scores. Scores are a running sum that is multiplied by
    `decay` at each query, unless `fields` name another rule.

    Attributes:
        kind: one of `KINDS`, which kernels dispatch on.
        bounds: (recent (B, H), sinks (B, H, 1)) tokens of a view that stay whatever their scores.
        fields: further arguments of the kernel (fields of `kvlab.methods.core.inplace_work.Work`) for a view; None
        where
            this view cannot be decided in place.
        certain: whether every head of a view has exactly one slot too many.
        decay: factor of the running sum of scores, where the scorer keeps one.
        plain_torch: plain torch implements it too, without a compiler.
        cpu_only: only the kernels compiled for a CPU implement it.
    """

    kind: int
    bounds: Callable[[View], tuple[Tensor, Tensor]]
    fields: Callable[[View], Mapping[str, Any] | None] = lambda view: {}
    certain: Callable[[View], bool] = one_too_many
    decay: float = 1.0
    plain_torch: bool = False
    cpu_only: bool = False
