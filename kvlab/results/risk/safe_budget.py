"""The smallest budget that is safe on one's own prompts, with a statistical guarantee, from evaluation rows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from kvlab.core.errors import UserError
from kvlab.evaluation.results.rows import read_results
from kvlab.results.risk import bounds
from kvlab.results.risk.bounds import Simulation, certify_ladder, drops, simulate
from kvlab.results.risk.losses import ARM, ASKED, KL_ABOVE, MEASURES, Measure, ladder, losses

ALL = "all prompts"
TABLE = [
    "group", ARM, "method", ASKED, "budget", "budget_unit", "prompts", "changed", "risk", "upper", "p_value", "tested",
    "certified", "kept", "bytes",
]  # fmt: skip
ANSWERS = ["group", ARM, "method", "prompts", "safe", "changed", "risk", "upper", "bytes", "next", "needed", "drops"]


@dataclass(frozen=True)
class Criterion:
    """What is asked: at most a share `tolerance` of prompts changes, measured by `by`, with this confidence.

    By `score`, the tolerance is the mean fall of the score. By `kl`, a text with a mean KL above `kl_above` nats per
    token has changed. With `by_group`, every group of prompts (task) is certified on its own. Raises UserError for
    values that no test can have.
    """

    by: Measure = "answer"
    tolerance: float = 0.02
    confidence: float = 0.95
    kl_above: float = KL_ABOVE
    by_group: bool = False

    def __post_init__(self) -> None:
        if self.by not in MEASURES:
            raise UserError(f"A change is measured by {', '.join(MEASURES)}, not by {self.by!r}.")
        if not 0 < self.tolerance < 1:
            raise UserError(
                f"A tolerance of {_percent(self.tolerance)} cannot be certified: give more than 0 % and less than "
                "100 %, such as 2 %."
            )
        if not 0.5 <= self.confidence < 1:
            raise UserError(
                f"A confidence of {_percent(self.confidence)} cannot be used: give 50 % or more and less than 100 %, "
                "such as 95 %."
            )
        if not 0 <= self.kl_above < float("inf"):
            raise UserError(f"The threshold of the KL cannot be {self.kl_above:g}: give nats per token from 0.")

    @property
    def p_value(self) -> bounds.PValue:
        """The test: exact binomial where a prompt has changed or not, Hoeffding-Bentkus for falls of the score."""
        return bounds.hoeffding_bentkus_p_value if self.by == "score" else bounds.binomial_p_value


@dataclass(frozen=True)
class SafeBudgets:
    """The result: one row per group, method and budget (`table`), and one per group and method (`answers`).

    `answers` columns: `safe` (the smallest certified budget as text, null if none), the observed `changed`, `risk`,
    `upper` bound and `bytes` there, `next` (the largest budget that is not certified) with `needed` (the prompts that
    would certify it if its observed risk held; null if none would), and `drops` (budgets whose observed risk is lower
    than at the larger budget before). `paired` are the rows behind it, as from `losses`. `alpha` is the level of each
    test, after the correction for `families` methods and groups; `simulated` certifies samples of the same prompts.
    """

    criterion: Criterion
    table: pd.DataFrame
    answers: pd.DataFrame
    paired: pd.DataFrame
    alpha: float
    families: int
    least: int
    too_few: dict[str, int]
    model: str
    simulated: Simulation

    def best(self, group: str = ALL) -> pd.Series | None:
        """Of the answers for a group, the safe one with the fewest bytes; None if none is safe."""
        safe = self.answers[self.answers["safe"].notna() & (self.answers["group"] == group)]
        if safe.empty:
            return None
        return safe.sort_values(["bytes", "risk"], kind="stable").iloc[0]

    @property
    def groups(self) -> list[str]:
        """The groups that are certified."""
        return self.answers["group"].drop_duplicates().tolist()

    @property
    def changed(self) -> pd.DataFrame:
        """The rows of `paired` whose prompt changed, largest budgets first: they need most explanation."""
        changed = self.paired[self.paired["loss"] > 0]
        return changed.sort_values(["budget", "loss"], ascending=False, kind="stable")


def find_safe_budgets(
    rows: pd.DataFrame, criterion: Criterion, methods: Sequence[str] = (), show_too_few: bool = False
) -> SafeBudgets:
    """Certify budgets from evaluation rows of one model, for the named `methods` (with options), else for all.

    The level is split evenly over methods and groups (Bonferroni), so that all statements hold together with the
    confidence, and with them the one about the best method. Groups of fewer prompts than any guarantee needs are left
    out; with `show_too_few` they are counted like the others, and none of their budgets is certified. Raises UserError
    as `losses`, and unless `show_too_few` if no group has enough prompts.
    """
    paired = losses(rows, criterion.by, criterion.kl_above, methods)
    arms = paired[ARM].drop_duplicates().tolist()
    groups = paired["group"].drop_duplicates().tolist() if criterion.by_group else [ALL]
    families = len(arms) * len(groups)
    alpha = (1 - criterion.confidence) / families
    by_group = {group: paired if group == ALL else paired[paired["group"] == group] for group in groups}
    counts = {group: len(group_rows["prompt"].unique()) for group, group_rows in by_group.items()}
    least = least_prompts(criterion, families)
    if not show_too_few and (why := shortage(criterion, counts, families)):
        raise UserError(why)
    too_few = {group: count for group, count in counts.items() if count < least}
    lines: list[pd.DataFrame] = []
    answers: list[dict[str, object]] = []
    tables: dict[tuple[str, str], np.ndarray] = {}
    for group, group_rows in by_group.items():
        for arm in arms if show_too_few or group not in too_few else ():
            # The losses of the method, (prompts, budgets).
            of_arm = group_rows[group_rows[ARM] == arm].drop_duplicates(["prompt", ASKED])
            by_budget = of_arm.pivot(index="prompt", columns=ASKED, values="loss")
            tables[group, arm] = by_budget[ladder(group_rows, arm)].to_numpy(float)
            table, answer = _certified(group_rows, arm, criterion, alpha, tables[group, arm])
            lines.append(table.assign(group=group))
            answers.append({"group": group, **answer})
    table = pd.concat(lines, ignore_index=True)[TABLE]
    frame = pd.DataFrame(answers)[ANSWERS]
    model = str(rows["model"].iloc[0])
    simulated = simulate(tables, criterion.tolerance, alpha, criterion.p_value)
    return SafeBudgets(criterion, table, frame, paired, alpha, families, least, too_few, model, simulated)


def least_prompts(criterion: Criterion, families: int) -> int:
    """The prompts that any guarantee needs; `families` are the methods and groups that the level is split over."""
    return bounds.least_prompts(criterion.tolerance, (1 - criterion.confidence) / max(1, families))


def shortage(criterion: Criterion, counts: Mapping[str, int], families: int) -> str:
    """Why no group of prompts (`counts`) can be certified, and which tolerance can; empty if one has enough."""
    least = least_prompts(criterion, families)
    group, most = max(counts.items(), key=lambda one: one[1])
    if most >= least:
        return ""
    whose = f" in each group (the largest, {group}, has {most:,})" if len(counts) > 1 else ""
    split = f" for {families} methods and groups" if families > 1 else ""
    have = "" if len(counts) > 1 else f"; there {'is' if most == 1 else 'are'} {most:,}"
    return (
        f"At least {least:,} prompts{whose} are needed to certify {_percent(criterion.tolerance)} with "
        f"{_percent(criterion.confidence)} confidence{split}, even if none changes{have}: give more prompts, or "
        "accept a larger tolerance."
    )


def check_enough(criterion: Criterion, counts: Mapping[str, int], families: int) -> None:
    """Raise UserError if no group of prompts has as many as any guarantee needs."""
    if why := shortage(criterion, counts, families):
        raise UserError(why)


def _certified(
    paired: pd.DataFrame, arm: str, criterion: Criterion, alpha: float, table: np.ndarray
) -> tuple[pd.DataFrame, dict[str, object]]:
    arm_rows = paired[paired[ARM] == arm]
    budgets = ladder(paired, arm)
    steps = certify_ladder(table, criterion.tolerance, alpha, criterion.p_value)
    uppers = [bounds.upper_bound(criterion.p_value, step.total, len(table), alpha) for step in steps]
    means = arm_rows.groupby(ASKED)[["kept", "bytes", "budget"]].mean().loc[budgets]
    frame = pd.DataFrame(
        {
            ARM: arm,
            "method": arm_rows["method"].iloc[0],
            ASKED: budgets,
            "budget": means["budget"].to_numpy(),
            "budget_unit": arm_rows["budget_unit"].iloc[0],
            "prompts": len(table),
            "changed": [step.total for step in steps],
            "risk": [step.risk for step in steps],
            "upper": uppers,
            "p_value": [step.p_value for step in steps],
            "tested": [step.tested for step in steps],
            "certified": [step.certified for step in steps],
            "kept": means["kept"].to_numpy(),
            "bytes": means["bytes"].to_numpy(),
        }
    )
    # The smallest certified budget, and the largest that is not.
    passed = [place for place, step in enumerate(steps) if step.certified]
    failed = len(passed) if len(passed) < len(steps) else None
    safe = frame.iloc[passed[-1]] if passed else None
    needed = None
    if failed is not None:
        needed = bounds.prompts_needed(criterion.p_value, steps[failed].risk, criterion.tolerance, alpha)
    answer = {
        ARM: arm,
        "method": arm_rows["method"].iloc[0],
        "prompts": len(table),
        "safe": None if safe is None else safe[ASKED],
        **{name: np.nan if safe is None else float(safe[name]) for name in ("changed", "risk", "upper", "bytes")},
        "next": None if failed is None else budgets[failed],
        "needed": needed,
        "drops": [budgets[place] for place in drops(np.array([step.risk for step in steps]))],
    }
    return frame, answer


def _percent(share: float) -> str:
    return f"{100 * share:.4g} %"


def safe_budget(
    source: pd.DataFrame | Path | str,
    by: Measure = "answer",
    tolerance: float = 0.02,
    confidence: float = 0.95,
    *,
    methods: Sequence[str] = (),
    kl_above: float = KL_ABOVE,
    by_group: bool = False,
) -> SafeBudgets:
    """The smallest budget of each method that changes at most a share `tolerance` of prompts, from an evaluation.

    `source` is an evaluation's folder or its rows (`kvlab.evaluation.harness.evaluate`), measured at a ladder of
    budgets and under the full cache. The guarantee holds with `confidence` for future prompts that are drawn like
    these, if tolerance, methods and ladder were chosen before the results were seen. Raises UserError as
    `find_safe_budgets` and `Criterion`.
    """
    criterion = Criterion(by, tolerance, confidence, kl_above, by_group)
    rows = source if isinstance(source, pd.DataFrame) else read_results(Path(source))
    return find_safe_budgets(rows, criterion, methods)
