"""Figure 3c and Tables 1, 3, 4, 5 and 6: task scores with the paper's benchmark values."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from kvlab.atlas.exhibit import Choice, Drawn, Needs, Paper
from kvlab.atlas.papers import grey_table, paper_gap, paper_values
from kvlab.atlas.scores import (
    ABLE,
    OWN_TASKS,
    Arm,
    Experiment,
    arms,
    caption_by_option,
    caption_table,
    contest,
    gap,
    gap_text,
    origin_of,
    score_text,
    unable,
)
from kvlab.core.choice import FULL
from kvlab.requests.measurement import Measurement
from kvlab.results.score_tables import PROMPT, full_score, option_column, score_table
from kvlab.results.sources import Sources
from kvlab.results.verdict import Claim
from kvlab.views import scores as figures
from kvlab.views.base.palette import Theme
from kvlab.views.base.words import percent

PAPER: Paper = "kvmerger"
BUDGETS = (0.5, 0.35)
HALF = (0.5,)
FURTHER_TASKS = ("needle_multivalue", "needle_multiquery", "variable_tracking", "copy")
H2O = Arm("h2o")
CAM = Arm("cam")
OURS = Arm("kvmerger")
Pairs = tuple[tuple[Arm, Arm], ...]


@dataclass(frozen=True)
class Table:
    """One table: its arms, the paper's claim, and the arm that should beat the others."""

    slug: str
    arms: tuple[Arm, ...]
    says: str
    option: str = ""
    default: str = ""  # the option's value if not given
    best: Arm = OURS
    budgets: tuple[float, ...] = BUDGETS
    tasks: tuple[str, ...] = OWN_TASKS

    @property
    def experiment(self) -> Experiment:
        """The evaluation behind it."""
        further = self.tasks != OWN_TASKS
        return Experiment(
            f"kvmerger-{self.slug}", self.arms, self.budgets, self.tasks, only_budgets=True, only_tasks=further
        )

    @property
    def pairs(self) -> Pairs:
        """The best arm with each of the others."""
        return tuple((self.best, arm) for arm in self.arms if arm != self.best)

    def draw(self, sources: Sources, choice: Choice, theme: Theme) -> tuple[Drawn, ...] | Needs:
        """Scores by task, arm and budget; with an option, also by its values."""
        rows = self.experiment.rows(sources)
        if rows.empty:
            return self.experiment.needs(sources)
        rows = on_the_same_prompts(rows)
        table = score_table(rows)
        values = paper_values(PAPER, self.slug)
        claim = judge_contest(self.says, rows, self.pairs, self.experiment.more_prompts(sources), values)
        figure = figures.benchmark_table(table, theme)
        caption = caption_table(rows, table)
        place = origin_of(rows)
        beside = grey_table(values) if len(values) else None
        drawn = (Drawn("scores", figure, table, caption, place, claim, beside),)
        if not self.option:
            return drawn
        by_value = option_column(table, self.option).replace({self.option: {"default": self.default}})
        figure = figures.score_by_option(by_value, self.option, theme)
        caption = caption_by_option(rows, by_value, self.option)
        return (*drawn, Drawn("by option", figure, by_value, caption, place))


def on_the_same_prompts(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of prompts that all arms have at one budget; all rows if there is no such prompt."""
    arm = rows["method"] + rows["hyper_parameters"]
    compressed = rows.assign(arm=arm)[rows["method"] != FULL.method]
    asked = compressed.groupby([*PROMPT, "budget"], dropna=False)["arm"].nunique()
    common = asked[asked == compressed["arm"].nunique()].reset_index()
    if common.empty:
        return rows
    same = rows.merge(common[[*PROMPT, "budget"]], on=[*PROMPT, "budget"])
    full = rows[rows["method"] == FULL.method].merge(common[PROMPT].drop_duplicates(), on=PROMPT)
    return pd.concat([full, same], ignore_index=True)


def judge_contest(
    says: str, rows: pd.DataFrame, pairs: Pairs, settle: Measurement | None, values: pd.DataFrame | None = None
) -> Claim:
    """Whether the first arm of each pair beats the second on the same prompts at every budget, by paired intervals.

    Not judged if the full cache fails the tasks. `values` are the paper's own.
    """
    full = full_score(rows)
    if full is None or full.mean < ABLE:
        return unable(says, f"The full cache itself scores {score_text(full)} on these tasks.", full.n if full else 0)
    budgets = sorted(rows.loc[rows["method"] != FULL.method, "budget"].unique(), reverse=True)
    named = {
        f"{first.label} minus {second.label} at {percent(budget)}": (first.label, second.label, budget)
        for first, second in pairs
        for budget in budgets
    }
    gaps = {name: gap(rows, *one) for name, one in named.items()}
    printed = (
        {}
        if values is None
        else {
            name: paper_gap(values, first, second, percent(budget)) for name, (first, second, budget) in named.items()
        }
    )
    parts = [f"{name} {gap_text(found)}" for name, found in gaps.items()]
    finding = f"{'; '.join(parts)}; the full cache has {score_text(full)}."
    return contest(says, gaps, finding, settle, printed=printed)


# Ablations are compared with the default method, so that one evaluation feeds all tables.
_RANDOM = Arm("kvmerger", {"pivot": "random"})
_AVERAGE = Arm("kvmerger", {"weights": "average"})
_SIGMAS = arms("kvmerger", "sigma_mode", 1, 3, 6)
_PIVOT = "The most attended token is a better pivot than a random one."
_WEIGHTS = "Gaussian weights are better than equal ones."
_SIGMA = "The set's own mean distance is a better sigma than 1, 3 or 6."
_BEST = "KVMerger scores above H2O and CaM at both budgets."
_BEST_FURTHER = "KVMerger scores above H2O and CaM at both budgets on the further tasks of Table 6 too."
_PLAIN = "Merging the sets by a plain average falls short of evicting with H2O (Table 4's 21.84 against H2O's 22.58)."
TABLES = (
    Table("fig-3c", (H2O, _AVERAGE), _PLAIN, best=H2O, budgets=HALF),
    Table("tab-1", (H2O, CAM, OURS), _BEST),
    Table("tab-3", (OURS, _RANDOM), _PIVOT, "pivot", "attention", budgets=HALF),
    Table("tab-4", (OURS, _AVERAGE), _WEIGHTS, "weights", "gaussian", budgets=HALF),
    Table("tab-5", (OURS, *_SIGMAS), _SIGMA, "sigma_mode", "mean_l2", budgets=HALF),
    Table("tab-6", (H2O, CAM, OURS), _BEST_FURTHER, tasks=FURTHER_TASKS),
)
DRAWINGS = {table.slug: table.draw for table in TABLES}
