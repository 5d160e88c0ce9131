"""Claims of evaluations: one arm scores above another on the same prompts, or not clearly below."""

from __future__ import annotations

from collections.abc import Mapping

from kvlab.common.intervals import Interval
from kvlab.requests.measurement import Measurement
from kvlab.results.verdict import OPEN, Basis, Claim, Threshold, decisive

AHEAD = Threshold(0.0, "the difference on the same prompts is above zero with its whole interval")
ABLE = 0.1  # mean score below which a cache fails the tasks and cannot be judged
NOT_BEHIND = Threshold(-0.05, "a margin of five points of score: competitive says nothing closer")


def contest(
    says: str,
    gaps: Mapping[str, Interval | None],
    finding: str,
    settle: Measurement | None = None,
    threshold: Threshold = AHEAD,
) -> Claim:
    """The claim that all named gaps are beyond the threshold, with the deciding interval."""
    known = sorted((one for one in gaps.values() if one is not None), key=lambda one: one.low)
    missing = [None] * (len(gaps) - len(known))
    if not known:
        return Claim(says, OPEN, finding, threshold=threshold, settle=settle)
    verdict, decider, _ = decisive([(one, threshold) for one in [*known, *missing]])
    basis = Basis(decider.n if decider else known[0].n)
    return Claim(says, verdict, finding, basis, decider, threshold, settle if verdict == OPEN else None)


def unable(says: str, finding: str, prompts: int = 0) -> Claim:
    """The full cache or every arm fails the tasks, so that more prompts would not help."""
    return Claim(says, OPEN, finding, Basis(prompts))
