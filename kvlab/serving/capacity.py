"""How many requests per second a memory serves within limits, by the share of a prompt's slots that is held."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd

from kvlab.core.errors import UserError
from kvlab.serving.levels import PAGES, Servability
from kvlab.serving.simulation import Engine, Lengths, Served, Traffic, simulate

REQUESTS, HALVINGS = 400, 9
PERCENTILE = 95
SHARES = (1.0, 0.5, 0.3, 0.2, 0.1, 0.05)


@dataclass(frozen=True)
class Limits:
    """What 95 % of the requests must meet: seconds per token, and seconds to the first token."""

    per_token: float = 0.05
    to_first: float = 10.0

    def hold(self, served: Served) -> bool:
        """Whether they do."""
        late = np.percentile(served.seconds_per_token, PERCENTILE) > self.per_token
        return not late and bool(np.percentile(served.seconds_to_first, PERCENTILE) <= self.to_first)


@dataclass(frozen=True)
class Users:
    """Lengths of prompts and answers, and the limits."""

    prompt: Lengths
    output: Lengths
    limits: Limits = field(default_factory=Limits)
    requests: int = REQUESTS
    seed: int = 0

    def traffic(self, rate: float) -> Traffic:
        """Poisson traffic at `rate` requests per second."""
        return Traffic.poisson(rate, self.prompt, self.output, self.requests, self.seed)


def most_requests(engine: Engine, users: Users) -> float:
    """The largest rate, in requests per second, at which the limits hold; 0 if they do not even for one at a time.

    Found by bisection of its logarithm, to within 1 %.
    """
    rate = _rate_of_one(engine, users)
    if not users.limits.hold(simulate(users.traffic(rate / 1e3), engine)):
        return 0.0
    low, high = rate / 1e3, rate
    while users.limits.hold(simulate(users.traffic(high), engine)):
        low, high = high, 4 * high
        if high > 1e4 * rate:
            return low
    while high > 1.01 * low:
        middle = (low * high) ** 0.5
        low, high = (middle, high) if users.limits.hold(simulate(users.traffic(middle), engine)) else (low, middle)
    return low


def _rate_of_one(engine: Engine, users: Users) -> float:
    """Requests per second one after another."""
    time, prompt, output = engine.time, users.prompt.mean, users.output.mean
    each = time.base + time.row + time.slot * float(engine.held(np.array([prompt]))[0])
    return 1 / max(time.prompt * prompt + output * each, 1e-12)


def together(engine: Engine, users: Users) -> float:
    """Requests of mean lengths whose pages fit into the memory together, at most the engine's rows."""
    mean = Traffic(np.zeros(1), *(np.array([round(length.mean)]) for length in (users.prompt, users.output)))
    return min(engine.pages / int(engine.needed(mean)[0]), engine.rows)


def held_share(share: float, engine: Engine) -> Engine:
    """The engine with this share of each prompt's slots held, copied into as few pages as possible."""
    return replace(engine, held=lambda prompt: np.ceil(share * prompt).astype(np.int64))


def by_budget(engine: Engine, users: Users, shares: Sequence[float] = SHARES) -> pd.DataFrame:
    """One row per share of slots held: requests per second within the limits, and relative to the full cache.

    Columns: budget, rate, together, rate_ratio, together_ratio. Raises UserError if the full cache meets the limits at
    no rate.
    """
    rows = [(share, most_requests(held_share(share, engine), users)) for share in shares]
    frame = pd.DataFrame(rows, columns=["budget", "rate"])
    frame["together"] = [together(held_share(share, engine), users) for share in shares]
    return _relative(frame, engine, users)


def by_method(engine: Engine, users: Users, methods: Sequence[Servability]) -> pd.DataFrame:
    """As `by_budget`, for methods at the measured 20 % in an engine that frees pages where they are, without a copy.

    Columns also: method, level, budget (share of slots in pages that stay).
    """
    page = min(PAGES, key=lambda size: abs(size - engine.page))
    held = [1 - method.freed[page].layer for method in methods]
    frame = by_budget(engine, users, held).assign(method=[one.method for one in methods])
    return frame.assign(level=[one.level for one in methods], kept=[one.kept for one in methods])


def _relative(frame: pd.DataFrame, engine: Engine, users: Users) -> pd.DataFrame:
    whole = held_share(1.0, engine)
    full, most = most_requests(whole, users), together(whole, users)
    if full == 0:
        raise UserError(
            "Even a single request is slower than the limits with the full cache: allow more time per token or to the "
            "first token, or choose a faster device."
        )
    return frame.assign(rate_ratio=frame["rate"] / full, together_ratio=frame["together"] / most)
