"""Decode-step decisions that kernels can carry out in place, as settlers declare them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

from kvlab.core.contract.numerics import MIX

if TYPE_CHECKING:
    from kvlab.core.contract.view import View


@dataclass
class Work:
    """One decision of a table: the newest query updates the scores, and one slot of each head is evicted.

    While the table stays the same, only `mass` and `tokens_seen` change from step to step.

    Columns are (B, H, S) with one layout; absent or constant ones are None. `mass` (B, H, S) is the newest query's
    attention; `tokens_seen` is (B,), all else (B, H).
    """

    kind: int
    keys: Tensor  # (B, H, S, d)
    values: Tensor
    position: Tensor  # negative in invalid slots
    mass: Tensor
    tokens_seen: Tensor
    recent: Tensor  # protected newest tokens
    sinks: Tensor  # protected first tokens
    evicted_votes: Tensor  # votes evicted so far
    score: Tensor | None = None
    votes: Tensor | None = None
    log_mass: Tensor | None = None
    average: Tensor | None = None  # log of the running average used for prediction
    # (B, H, 2): range of queries the scores include (`kvlab.core.contract.slot_columns.ASKED`)
    asked: Tensor | None = None
    residual: Tensor | None = None
    threshold: Tensor | None = None
    decay: float = 1.0  # of scores
    alpha: float = 0.5  # of averages
    least: float = 0.0  # smallest cosine for a merge, or weight of the newest one in a moving threshold
    mass_of_votes: float = 0.0  # log mass is this times log(votes) if it has no column
    sums: bool = False  # add the scores of merged slots, else keep the larger
    bias: bool = True  # add what the mean key lacks to the log mass
    reach: int = 1  # slots a value is spread over
    drawn: bool = False  # decide whether to spread by a number drawn for the token
    stream: int = 0  # start of head 0's random stream
    mixes: tuple[int, int, int] = MIX


EVICT, RESIDUAL, NEAREST, SIMILAR, SPREAD = KINDS = range(5)  # what happens to the evicted slot
NOT_YET = -2.0  # initial value of the moving threshold of `SIMILAR`: below every cosine


@dataclass(frozen=True)
class InPlace:
    """How one slot of every head is evicted in place.

    The kernel first adds the newest query's attention to the scores. Scores are a running sum multiplied by `decay` at
    each query, unless `fields` defines another rule.

    Attributes:
        kind: one of `KINDS`, which kernels dispatch on.
        bounds: (recent (B, H), sinks (B, H, 1)) tokens of a view that are protected.
        fields: further kernel arguments (fields of `Work`) for a view; None if the
            view cannot be decided in place.
        decay: factor of the running sum of scores, if the scorer has one.
    """

    kind: int
    bounds: Callable[[View], tuple[Tensor, Tensor]]
    fields: Callable[[View], Mapping[str, Any] | None] = lambda view: {}
    decay: float = 1.0
