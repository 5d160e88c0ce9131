"""Claims of evaluations: one arm scores above another on the same prompts, or not clearly below it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kvlab.common.intervals import Interval
from kvlab.requests.measurement import Measurement
from kvlab.results.verdict import OPEN, Basis, Claim, Threshold, Verdict, decisive, together

AHEAD = Threshold(0.0, "the difference on the same prompts is above zero with its whole interval")
NOT_BEHIND = Threshold(-0.05, "a margin of five points of score: competitive says nothing closer")


def verdict_of(gaps: Iterable[Interval | None], threshold: Threshold = AHEAD) -> Verdict:
    """`holds` where every gap's interval lies beyond the threshold, `does not hold` where one falls short of it."""
    return together(threshold.side(one) for one in gaps)


def contest(
    says: str,
    gaps: Mapping[str, Interval | None],
    finding: str,
    settle: Measurement | None = None,
    threshold: Threshold = AHEAD,
) -> Claim:
    """The claim that every one of the named gaps lies beyond the threshold; it shows the interval that decides."""
    known = sorted((one for one in gaps.values() if one is not None), key=lambda one: one.low)
    missing = [None] * (len(gaps) - len(known))
    if not known:
        return Claim(says, OPEN, finding, threshold=threshold, settle=settle)
    verdict, decider, _ = decisive([(one, threshold) for one in [*known, *missing]])
    basis = Basis(decider.n if decider else known[0].n)
    return Claim(says, verdict, finding, basis, decider, threshold, settle if verdict == OPEN else None)


def unable(says: str, finding: str, prompts: int = 0) -> Claim:
    """Where the full cache, or every arm, fails the tasks: more prompts would not tell anything either."""
    return Claim(says, OPEN, finding, Basis(prompts))
