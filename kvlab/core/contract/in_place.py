"""Decode-step decisions that kernels can carry out in place, as settlers declare them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

if TYPE_CHECKING:
    from kvlab.core.contract.view import View

EVICT, RESIDUAL, NEAREST, SIMILAR, SPREAD = KINDS = range(5)  # what happens to the evicted slot
NOT_YET = -2.0  # initial value of the moving threshold of `SIMILAR`: below every cosine


def one_too_many(view: View) -> bool:
    """Whether every head is known to have one slot too many."""
    return view.certain


@dataclass(frozen=True)
class InPlace:
    """How one slot of every head is evicted in place.

    The kernel first adds the newest query's attention to the scores. Scores are a running sum multiplied by `decay` at
    each query, unless `fields` defines another rule.

    Attributes:
        kind: one of `KINDS`, which kernels dispatch on.
        bounds: (recent (B, H), sinks (B, H, 1)) tokens of a view that are protected.
        fields: further kernel arguments (fields of `kvlab.core.contract.inplace_work.Work`) for a view; None if the
            view cannot be decided in place.
        certain: whether every head of a view has exactly one slot too many.
        decay: factor of the running sum of scores, if the scorer has one.
    """

    kind: int
    bounds: Callable[[View], tuple[Tensor, Tensor]]
    fields: Callable[[View], Mapping[str, Any] | None] = lambda view: {}
    certain: Callable[[View], bool] = one_too_many
    decay: float = 1.0
