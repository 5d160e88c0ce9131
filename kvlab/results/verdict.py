"""Verdicts on papers' claims: their basis, how an interval over prompts decides, and sentences on both. Torch-free."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from kvlab.common.formatting import in_range, prompts, short
from kvlab.common.intervals import Interval
from kvlab.requests.measurement import Benchmark, Measurement

Verdict = Literal["holds", "does not hold", "not enough to say"]
HOLDS: Verdict = "holds"
FAILS: Verdict = "does not hold"
OPEN: Verdict = "not enough to say"
# Minimum number of prompts for a verdict: six on one side of a threshold happen by chance in 2 * 0.5^6 = 3 % of cases,
# five in 6 %, and an interval bootstrapped from fewer is too narrow.
LEAST_PROMPTS = 6
MOST_PROMPTS_NEEDED = 1000  # above which it is only said that there are more
# Why equal scores decide nothing: both are at the best score, both at the worst, or both the same elsewhere.
Effect = Literal["", "ceiling", "floor", "equal"]


@dataclass(frozen=True)
class Basis:
    """Data behind a verdict: prompts, (layer, KV head) pairs, merges, and benchmark repeats; 0 is not mentioned."""

    prompts: int = 0
    heads: int = 0
    merges: int = 0
    repeats: int = 0

    @property
    def description(self) -> str:
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
    def bounds(self) -> tuple[float, float]:
        """The range that counts for the claim, infinite on an open side."""
        if self.at_most:
            return -math.inf, self.value
        return self.value, math.inf if self.up_to is None else self.up_to

    @property
    def range_words(self) -> str:
        """`above 0.1`, `below 0.1` or `between 0.8 and 1.25`."""
        if self.up_to is not None:
            return f"between {self.value:g} and {self.up_to:g}"
        return f"{'below' if self.at_most else 'above'} {self.value:g}"

    @property
    def description(self) -> str:
        """`above 0.1: a tenth of what two equal keys have`."""
        return f"{self.range_words}: {self.reason}"


@dataclass(frozen=True)
class Claim:
    """A paper's statement, the verdict on this data, and the deciding finding in one sentence.

    `basis` is what the verdict is based on, `interval` that of the deciding number (over prompts, 95 %), `threshold`
    its limit. `settle` is a measurement that may decide an open claim. `setting` names the settings it was judged
    under; `Exhibit.draw` takes it from the provenance if it is empty. `judged_at` is the key of the exhibit that judges
    the claim, on an exhibit that only repeats the verdict. `part` names the comparison that decides, of several.
    `units` are the values that decide where there is no interval over prompts, such as a benchmark's settings.
    `printed` are the paper's own values of the same number. `effect` names the case of equal scores, which decide
    nothing.
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
    part: str = ""
    units: tuple[float, ...] = ()
    printed: tuple[float, ...] = ()
    effect: Effect = ""


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


def decisive(parts: Sequence[tuple[Interval | None, Threshold]]) -> tuple[Verdict, Interval | None, Threshold]:
    """Verdict of a claim in several parts (at least one), with interval and threshold of the deciding part.

    That is the first failing part, else the first open one, else the first.
    """
    sides = [held.side(found) for found, held in parts]
    # It fails with any of them, and holds with all.
    verdict = FAILS if FAILS in sides else HOLDS if set(sides) == {HOLDS} else OPEN
    return verdict, *parts[sides.index(verdict)]


def basis_sentences(claim: Claim) -> list[str]:
    """Sentences on the basis of a verdict: prompts, threshold and settings."""
    parts = [f"On {claim.basis.description}."] if claim.basis.description else []
    if claim.threshold is not None:
        parts.append(f"Counts if {claim.threshold.description}.")
    return [*parts, f"Judged {claim.setting}."] if claim.setting else parts


EFFECTS: dict[Effect, str] = {
    "ceiling": "a ceiling effect: both score the best possible on every prompt, so no difference can show",
    "floor": "a floor effect: scores are too near the worst possible for a difference to show",
    "equal": "a ceiling and floor effect: both score the same on every prompt",
}


def verdict_sentence(claim: Claim, model: str) -> str:
    """Whether the claim holds, under which settings, on which model and how many prompts, and why, in one sentence.

    `model` is "" for a claim about no model, such as a calculation.
    """
    count = claim.interval.n if claim.interval is not None else claim.basis.prompts
    n = f"n = {count:,} prompt{'' if count == 1 else 's'}" if count else claim.basis.description
    arm = f" {claim.setting}," if "," in claim.setting else f" {claim.setting}" if claim.setting else ""
    where = f"{arm}{f' on {model}' if model else ''}{f' ({n})' if n else ''}"
    found = claim.interval
    held = claim.threshold
    reason = ""
    if claim.effect:
        level = f", {short(found.level)} on average" if found is not None and found.level is not None else ""
        reason = EFFECTS[claim.effect] + (level if claim.effect == "equal" else "")
    elif found is not None and held is not None and found.n < LEAST_PROMPTS:
        reason = f"a verdict needs at least {LEAST_PROMPTS} prompts"
    elif found is not None and held is not None:
        low, high = in_range(found.mean, found.low, found.high)[1:]
        share = {HOLDS: "all", FAILS: "none", OPEN: "only a part"}[held.side(found)]
        reason = f"{share} of the 95 % interval, {low} to {high}, is {held.range_words}"
    elif claim.units and held is not None:
        inside = sum(held.bounds[0] <= value <= held.bounds[1] for value in claim.units)
        reason = f"{inside} of {len(claim.units)} values {'is' if inside == 1 else 'are'} {held.range_words}"
        if len(claim.units) == 1:
            reason = f"the value is {'' if inside else 'not '}{held.range_words}"
    elif _is_universal(claim):
        reason = "no exception was found" if claim.verdict == HOLDS else "there are exceptions"
    return f"{claim.verdict.capitalize()}{where}{f': {reason}' if reason else ''}."


def what_would_change(claim: Claim) -> str:
    """What would change the verdict, in one sentence; "" where nothing is known."""
    found = claim.interval
    held = claim.threshold
    if claim.effect:
        return "Other prompts or another budget, at which the scores differ; more of the same would hardly do."
    if isinstance(claim.settle, Benchmark):
        return "The same benchmark at the paper's own size."
    if found is not None and held is not None:
        if claim.verdict == OPEN:
            if found.n < 2:
                return f"At least {LEAST_PROMPTS - found.n} more prompts."
            if found.n >= LEAST_PROMPTS and held.side(found) != OPEN:  # another part of the claim is open
                return "Data on the part of the claim that was not measured."
            needed = prompts_needed(found, held)
            mean = short(found.mean)
            if needed > MOST_PROMPTS_NEEDED:
                return f"More than {MOST_PROMPTS_NEEDED:,} prompts: the mean, {mean}, is close to the threshold."
            more = prompts(max(1, int(needed) - found.n)).replace("prompt", "more prompt")
            becomes = HOLDS if held.bounds[0] < found.mean < held.bounds[1] else FAILS
            return f"About {more}, if the mean stays at {mean}: then it {becomes}."
        # How far the mean and its interval are from the nearest bound of the threshold.
        nearest = min(filter(math.isfinite, held.bounds), key=lambda bound: abs(found.mean - bound))
        mean, low, high = in_range(found.mean, found.low, found.high)
        side, end = ("below", low) if found.mean > nearest else ("above", high)
        return f"Prompts that move the mean from {mean} to {side} {short(nearest)}; the interval now ends at {end}."
    if claim.units and held is not None and claim.verdict != OPEN:
        return f"Values that are {'not ' if claim.verdict == HOLDS else ''}{held.range_words}."
    if _is_universal(claim):
        return "One exception." if claim.verdict == HOLDS else "Nothing: one exception refutes it."
    return ""


def _is_universal(claim: Claim) -> bool:
    """Whether it was judged case by case (`judge_universal`)."""
    return claim.verdict != OPEN and claim.interval is None and not claim.units and claim.basis.prompts > 0


def is_exception(claim: Claim) -> bool:
    """Whether a case was found that refutes a claim about every case, on however few prompts."""
    return claim.verdict == FAILS and _is_universal(claim)


def prompts_needed(found: Interval, threshold: Threshold) -> float:
    """Number of prompts at which the interval would lie on one side of the threshold if the mean stayed.

    The interval shrinks with the root of the number of prompts. Infinite if the mean is on the threshold.
    """
    # Length of the interval's half towards each bound, relative to the mean's distance from it.
    ratio = 0.0
    for bound in filter(math.isfinite, threshold.bounds):
        half = found.mean - found.low if found.mean > bound else found.high - found.mean
        distance = abs(found.mean - bound)
        ratio = max(ratio, half / distance if distance > 0 and math.isfinite(half) else math.inf)
    return max(LEAST_PROMPTS, math.ceil(found.n * ratio**2)) if math.isfinite(ratio) else math.inf


def judge_universal(broken: int, basis: Basis) -> Verdict:
    """Verdict on a claim about every case: one counterexample fails it; enough prompts without one support it."""
    if broken:
        return FAILS
    return HOLDS if basis.prompts >= LEAST_PROMPTS else OPEN
