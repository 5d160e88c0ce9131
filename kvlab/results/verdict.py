"""Verdicts on papers' claims: their basis, and how an interval over prompts decides. Torch-free."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from kvlab.common.formatting import in_range, prompts
from kvlab.common.intervals import Interval
from kvlab.requests.measurement import Measurement

Verdict = Literal["holds", "does not hold", "not enough to say"]
HOLDS: Verdict = "holds"
FAILS: Verdict = "does not hold"
OPEN: Verdict = "not enough to say"
# Minimum number of prompts for a verdict: six on one side of a threshold happen by chance in 2 * 0.5^6 = 3 % of cases,
# five in 6 %, and an interval bootstrapped from fewer is too narrow.
LEAST_PROMPTS = 6


@dataclass(frozen=True)
class Basis:
    """Data behind a verdict: prompts, (layer, KV head) pairs, merges, and benchmark repeats; 0 is not mentioned."""

    prompts: int = 0
    heads: int = 0
    merges: int = 0
    repeats: int = 0

    @property
    def words(self) -> str:
        """`12 prompts, 24 heads, 8,412 merges`."""
        counts = {"heads": self.heads, "merges": self.merges, "repeats": self.repeats}
        counts_text = [f"{count:,} {name if count > 1 else name[:-1]}" for name, count in counts.items() if count]
        return ", ".join([*([prompts(self.prompts)] if self.prompts else []), *counts_text])


@dataclass(frozen=True)
class Threshold:
    """Value above which a measurement supports the claim, and why; `at_most`: below it; `up_to`: end of a range."""

    value: float
    reason: str
    at_most: bool = False
    up_to: float | None = None

    def side(self, found: Interval | None, least: int = LEAST_PROMPTS) -> Verdict:
        """`holds` if the whole interval supports the claim, `does not hold` if none of it does."""
        if found is None or found.n < least:
            return OPEN
        if self.up_to is not None:
            if self.value < found.low and found.high < self.up_to:
                return HOLDS
            return FAILS if found.high < self.value or found.low > self.up_to else OPEN
        low, high = (-found.high, -found.low) if self.at_most else (found.low, found.high)
        value = -self.value if self.at_most else self.value
        return HOLDS if low > value else FAILS if high < value else OPEN

    @property
    def words(self) -> str:
        """`above 0.1: a tenth of what two equal keys have`."""
        if self.up_to is not None:
            return f"between {self.value:g} and {self.up_to:g}: {self.reason}"
        return f"{'below' if self.at_most else 'above'} {self.value:g}: {self.reason}"


@dataclass(frozen=True)
class Claim:
    """A paper's statement, the verdict on this data, and the deciding finding in one sentence.

    `basis` is what the verdict is based on, `interval` that of the deciding number (over prompts, 95 %), `threshold`
    its limit. `settle` is a measurement that may decide an open claim. `setting` names the settings it was judged
    under; `Exhibit.draw` takes it from the provenance if it is empty. `judged_at` is the key of the exhibit that judges
    the claim, on an exhibit that only repeats the verdict.
    """

    paper: str
    verdict: Verdict
    finding: str
    basis: Basis = field(default_factory=Basis)
    interval: Interval | None = None
    threshold: Threshold | None = None
    settle: Measurement | None = None
    setting: str = ""
    judged_at: str = ""


def judge(
    paper: str,
    found: Interval | None,
    threshold: Threshold,
    basis: Basis,
    finding: str,
    settle: Measurement | None = None,
) -> Claim:
    """The claim judged by one number over prompts; `finding` describes it, `settle` measures more."""
    verdict = threshold.side(found)
    return Claim(paper, verdict, finding, basis, found, threshold, settle if verdict == OPEN else None)


def combine_verdicts(verdicts: Iterable[Verdict]) -> Verdict:
    """Verdict of a claim in several parts: fails with any of them, holds with all."""
    found = list(verdicts)
    if FAILS in found:
        return FAILS
    return HOLDS if found and all(one == HOLDS for one in found) else OPEN


def decisive(parts: Sequence[tuple[Interval | None, Threshold]]) -> tuple[Verdict, Interval | None, Threshold]:
    """Verdict of a claim in several parts (at least one), with interval and threshold of the deciding part.

    That is the first failing part, else the first open one, else the first.
    """
    sides = [held.side(found) for found, held in parts]
    verdict = combine_verdicts(sides)
    return verdict, *parts[sides.index(verdict)]


def basis_sentences(claim: Claim) -> list[str]:
    """Sentences on the basis of a verdict: prompts, deciding interval, threshold and settings."""
    found, held = claim.interval, claim.threshold
    parts = [f"On {claim.basis.words}."] if claim.basis.words else []
    if found is not None and found.n > 1:
        measured = "Measured:" if claim.verdict == OPEN else "Decided by"
        mean, low, high = in_range(found.mean, found.low, found.high)
        parts.append(f"{measured} {mean} (95 % interval {low} to {high}).")
    if held is not None:
        parts.append(f"Counts if {held.words}.")
    if claim.verdict == OPEN and found is not None and found.n < LEAST_PROMPTS:
        parts.append(f"Fewer than {LEAST_PROMPTS} prompts decide nothing.")
    return [*parts, f"Judged {claim.setting}."] if claim.setting else parts


def judge_universal(broken: int, basis: Basis) -> Verdict:
    """Verdict on a claim about every case: one counterexample fails it; enough prompts without one support it."""
    if broken:
        return FAILS
    return HOLDS if basis.prompts >= LEAST_PROMPTS else OPEN
