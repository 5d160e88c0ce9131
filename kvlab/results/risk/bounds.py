"""P-values of "the risk exceeds the tolerance", upper bounds of a risk, and the number of prompts these need.

Losses of 0 and 1 use the exact binomial test, other losses in [0, 1] the Hoeffding-Bentkus inequality (Angelopoulos et
al., Learn then Test, 2021, section 2.2; Bates et al., Distribution-free, risk-controlling prediction sets, 2021).
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

MOST_PROMPTS = 10_000_000  # above which a rate is said to be too close to the tolerance
STEPS = 60  # of a bisection: to the last digit of a float

PValue = Callable[[float, int, float], float]  # of (sum of losses, prompts, tolerance)


@lru_cache(maxsize=65_536)
def log_binomial_tail(hits: int, count: int, share: float) -> float:
    """log P(X <= `hits`) of X ~ Binomial(`count`, `share`), summed in log space."""
    if hits >= count or share <= 0:
        return 0.0
    if hits < 0 or share >= 1:
        return -math.inf
    numbers = np.arange(1, hits + 1, dtype=np.float64)
    ways = np.concatenate([[0.0], np.cumsum(np.log((count - numbers + 1) / numbers))])
    exponents = np.arange(hits + 1)
    terms = ways + exponents * math.log(share) + (count - exponents) * math.log1p(-share)
    largest = float(terms.max())
    return min(0.0, largest + math.log(float(np.exp(terms - largest).sum())))


def binomial_p_value(changes: float, count: int, tolerance: float) -> float:
    """P(Binomial(`count`, `tolerance`) <= `changes`): valid for "the risk exceeds it" with losses 0 and 1."""
    return math.exp(log_binomial_tail(round(changes), count, tolerance))


def hoeffding_bentkus_p_value(total: float, count: int, tolerance: float) -> float:
    """The smaller of Hoeffding's and Bentkus' bounds, for `count` losses in [0, 1] with sum `total`.

    min(exp(-n h(min(R, a), a)), e P(Binomial(n, a) <= ceil(n R))), where R is the mean loss, a the tolerance, and
    h(x, y) = x log(x / y) + (1 - x) log((1 - x) / (1 - y)).
    """
    mean = min(total / count, tolerance)
    parts = ((mean, tolerance), (1 - mean, 1 - tolerance))
    hoeffding = -count * sum(x * math.log(x / y) for x, y in parts if x > 0)
    bentkus = 1 + log_binomial_tail(math.ceil(total - 1e-9), count, tolerance)
    return math.exp(min(hoeffding, bentkus, 0.0))


@lru_cache(maxsize=65_536)
def upper_bound(p_value: PValue, total: float, count: int, alpha: float) -> float:
    """The smallest tolerance that the test rejects at level `alpha`: a bound above the risk with confidence 1 - alpha.

    For losses of 0 and 1 this is Clopper and Pearson's one-sided bound (1934).
    """
    low = min(total / count, 1.0)
    high = 1.0
    for _ in range(STEPS):
        middle = (low + high) / 2
        low, high = (low, middle) if p_value(total, count, middle) <= alpha else (middle, high)
    return high


def least_prompts(tolerance: float, alpha: float) -> int:
    """Prompts that any guarantee needs, when not one changes: n >= log(alpha) / log(1 - tolerance)."""
    return math.ceil(math.log(alpha) / math.log1p(-tolerance) - 1e-9)


def least_tolerance(count: int, alpha: float) -> float:
    """The smallest tolerance that `count` prompts certify when not one changes: 1 - alpha^(1 / n)."""
    return -math.expm1(math.log(alpha) / count)


def prompts_needed(p_value: PValue, rate: float, tolerance: float, alpha: float) -> int | None:
    """Prompts at which a risk observed as `rate` would be certified; None if it is not below the tolerance.

    Also None above `MOST_PROMPTS`. Losses are rounded up to whole prompts, so the number is not too small.
    """
    if rate >= tolerance:
        return None

    def passes(count: int) -> bool:
        return p_value(math.ceil(rate * count - 1e-9), count, tolerance) <= alpha

    high = least_prompts(tolerance, alpha)
    while not passes(high):
        high *= 2
        if high > MOST_PROMPTS:
            return None
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if passes(middle) else (middle, high)
    return high


@dataclass(frozen=True)
class Step:
    """One budget: the losses' sum and mean, and the p-value of "the risk exceeds the tolerance".

    `tested` is whether all larger budgets were certified.
    """

    total: float
    risk: float
    p_value: float
    tested: bool
    certified: bool


def certify_ladder(losses: np.ndarray, tolerance: float, alpha: float, p_value: PValue) -> list[Step]:
    """One step per column of `losses` (prompts, budgets), which go from the largest budget to the smallest.

    Losses are in [0, 1], and 0 or 1 where `p_value` is the binomial test.
    """
    count = len(losses)
    steps = list[Step]()
    open_ = True
    for total in losses.sum(axis=0).tolist():
        found = p_value(total, count, tolerance)
        certified = open_ and found <= alpha
        steps.append(Step(total, total / count, found, open_, certified))
        open_ = certified
    return steps


def drops(risks: np.ndarray) -> list[int]:
    """Places where the risk is lower than at the budget before, which is larger: it is not monotone there."""
    return [place + 1 for place in np.flatnonzero(np.diff(risks) < 0).tolist()]


DRAWS = 1000


@dataclass(frozen=True)
class Simulation:
    """What `draws` samples of as many prompts gave.

    `wrong`: samples in which a budget was certified whose risk on all measured prompts is above the tolerance.
    `safe`: by sequence (group and method), the samples in which each budget of its ladder was the smallest certified
    one; the last number counts those in which none was.
    """

    draws: int
    wrong: int
    safe: Mapping[tuple[str, str], tuple[int, ...]]


def simulate(
    tables: Mapping[tuple[str, str], np.ndarray],
    tolerance: float,
    alpha: float,
    p_value: PValue,
    draws: int = DRAWS,
    seed: int = 0,
) -> Simulation:
    """Draw samples with replacement from measured losses and certify each ladder at level `alpha`.

    `tables` has the losses of each group and method, (prompts, budgets), largest budget first. Methods of one group see
    the same drawn prompts, as in an evaluation. The measured prompts are then all prompts there are, so their mean loss
    is the true risk.
    """
    wrong = np.zeros(draws, bool)
    safe: dict[tuple[str, str], tuple[int, ...]] = {}
    for (group, arm), losses in tables.items():
        count, budgets = losses.shape
        random = np.random.default_rng([seed, *group.encode()])
        chosen = (np.bincount(random.integers(count, size=count), minlength=count) for _ in range(draws))
        totals = np.stack([times @ losses for times in chosen])  # (draws, budgets)
        known = {total: p_value(total, count, tolerance) <= alpha for total in np.unique(totals).tolist()}
        passed = np.vectorize(known.__getitem__, otypes=[bool])(totals)
        certified = np.logical_and.accumulate(passed, axis=1)
        wrong |= (certified & (losses.mean(axis=0) > tolerance)).any(axis=1)
        smallest = np.bincount(certified.sum(axis=1), minlength=budgets + 1).tolist()
        safe[group, arm] = (*smallest[1:], smallest[0])
    return Simulation(draws, int(wrong.sum()), safe)
