"""Figure 3c and Tables 1, 3, 4, 5 and 6: scores of tasks, with the paper's benchmark values beside them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pandas as pd

from kvlab.atlas.claims.contests import contest, unable
from kvlab.atlas.exhibit import Choice, Drawn, Exhibit, Needs, Paper
from kvlab.atlas.papers import grey_table, paper_values
from kvlab.atlas.scores import (
    FULL,
    PROMPT,
    Arm,
    Experiment,
    arms,
    full_score,
    gap,
    gap_words,
    option_column,
    origin_of,
    read_by_option,
    read_table,
    score_table,
    score_words,
)
from kvlab.atlas.sources import Sources
from kvlab.atlas.verdict import Claim
from kvlab.figures import scores as figures
from kvlab.figures.palette import Theme
from kvlab.figures.words import percent

PAPER: Paper = "kvmerger"
BUDGETS = (0.5, 0.35)
# Below this the full cache itself fails, and its compressions cannot differ.
ABLE = 0.1
FURTHER_TASKS = ("needle_multivalue", "needle_multiquery", "variable_tracking", "copy")
H2O, CAM, OURS = Arm("h2o"), Arm("cam"), Arm("kvmerger")
Pairs = tuple[tuple[Arm, Arm], ...]


@dataclass(frozen=True)
class Table:
    """One table: its experiment, what the paper reads from it, and which arm should beat which."""

    slug: str
    experiment: Experiment
    says: str
    pairs: Pairs
    option: str = ""
    default: str = ""  # the option's value where it was not given

    def draw(self, sources: Sources, choice: Choice, theme: Theme) -> tuple[Drawn, ...] | Needs:
        """Scores of every task, arm and budget; with an option, also over its values."""
        rows = self.experiment.rows(sources)
        if rows.empty:
            return self.experiment.needs(sources)
        rows = on_the_same_prompts(rows)
        table = score_table(rows)
        claim = contested(self.says, rows, self.pairs, self.experiment.more_prompts(sources))
        values = paper_values(PAPER, self.slug)
        figure, reading = figures.benchmark_table(table, theme), read_table(rows, table)
        place, beside = origin_of(rows), grey_table(values) if len(values) else None
        drawn = (Drawn("scores", figure, table, reading, place, claim, beside),)
        if not self.option:
            return drawn
        by_value = option_column(table, self.option).replace({self.option: {"default": self.default}})
        figure = figures.score_by_option(by_value, self.option, theme)
        reading = read_by_option(rows, by_value, self.option)
        return (*drawn, Drawn("by option", figure, by_value, reading, place))


def on_the_same_prompts(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of prompts that every arm there is was asked at one budget; all rows where there is no such prompt."""
    arm = rows["method"] + rows["hyper_parameters"]
    compressed = rows.assign(arm=arm)[rows["method"] != FULL]
    asked = compressed.groupby([*PROMPT, "budget"], dropna=False)["arm"].nunique()
    common = asked[asked == compressed["arm"].nunique()].reset_index()
    if common.empty:
        return rows
    same = rows.merge(common[[*PROMPT, "budget"]], on=[*PROMPT, "budget"])
    full = rows[rows["method"] == FULL].merge(common[PROMPT].drop_duplicates(), on=PROMPT)
    return pd.concat([full, same], ignore_index=True)


def contested(says: str, rows: pd.DataFrame, pairs: Pairs, settle: str) -> Claim:
    """Whether the first arm of each pair beats the second on the same prompts at every budget, by paired intervals.

    A full cache that cannot do the tasks leaves nothing to judge.
    """
    full = full_score(rows)
    if full is None or full.mean < ABLE:
        return unable(says, f"The full cache itself scores {score_words(full)} on these tasks.", full.n if full else 0)
    budgets = sorted(rows.loc[rows["method"] != FULL, "budget"].unique(), reverse=True)
    gaps = {
        f"{first.label} minus {second.label} at {percent(budget)}": gap(rows, first.label, second.label, budget)
        for first, second in pairs
        for budget in budgets
    }
    parts = [f"{name} {gap_words(found)}" for name, found in gaps.items()]
    return contest(says, gaps, f"{'; '.join(parts)}; the full cache has {score_words(full)}.", settle)


def _experiment(slug: str, *which: Arm, budgets: tuple[float, ...] = BUDGETS, **more: object) -> Experiment:
    return Experiment(f"kvmerger-{slug}", which, budgets, only_budgets=True, **more)  # type: ignore[arg-type]


# Each ablation's other side is the method as it stands, so that one evaluation feeds all tables.
_RANDOM, _AVERAGE = Arm("kvmerger", {"pivot": "random"}), Arm("kvmerger", {"weights": "average"})
_SIGMAS = arms("kvmerger", "sigma_mode", 1, 3, 6)
_BEST = "KVMerger scores above H2O and CaM at both budgets."
TABLES = {
    "fig-3c": Table(
        "fig-3c",
        _experiment("fig-3c", H2O, _AVERAGE, budgets=(0.5,)),
        "Merging the sets by a plain average falls short of evicting with H2O (Table 4's 21.84 against H2O's 22.58).",
        ((H2O, _AVERAGE),),
    ),
    "tab-1": Table("tab-1", _experiment("tab-1", H2O, CAM, OURS), _BEST, ((OURS, H2O), (OURS, CAM))),
    "tab-3": Table(
        "tab-3",
        _experiment("tab-3", OURS, _RANDOM, budgets=(0.5,)),
        "The most attended token is a better pivot than a random one.",
        ((OURS, _RANDOM),),
        "pivot",
        "attention",
    ),
    "tab-4": Table(
        "tab-4",
        _experiment("tab-4", OURS, _AVERAGE, budgets=(0.5,)),
        "Gaussian weights are better than equal ones.",
        ((OURS, _AVERAGE),),
        "weights",
        "gaussian",
    ),
    "tab-5": Table(
        "tab-5",
        _experiment("tab-5", OURS, *_SIGMAS, budgets=(0.5,)),
        "The set's own mean distance is a better sigma than 1, 3 or 6.",
        tuple((OURS, other) for other in _SIGMAS),
        "sigma_mode",
        "mean_l2",
    ),
    "tab-6": Table(
        "tab-6",
        _experiment("tab-6", H2O, CAM, OURS, tasks=FURTHER_TASKS, only_tasks=True),
        _BEST,
        ((OURS, H2O), (OURS, CAM)),
    ),
}
_CELLS = "Each cell is a task's mean score with its 95 % interval, coloured by its distance to the full cache; the "
_LONGBENCH = "paper's own LongBench scores stand below in grey. LongBench files go in with --data longbench=FILE."
_WORDS: Mapping[str, tuple[str, str, str]] = {
    "fig-3c": (
        "H2O against plain averaging of merging sets",
        _CELLS + "paper plots this without printing numbers.",
        "Whether merging without good weights is worth it at all.",
    ),
    "tab-1": ("Task scores at 50 % and 35 %", _CELLS + _LONGBENCH, "The row of KVMerger against H2O and CaM."),
    "tab-3": ("Pivot by attention or at random", _CELLS + _LONGBENCH, "A gap larger than the intervals."),
    "tab-4": ("Gaussian or equal weights", _CELLS + _LONGBENCH, "A gap larger than the intervals."),
    "tab-5": (
        "Width of the Gaussian: 1, 3, the set's own, 6",
        _CELLS + _LONGBENCH,
        "Whether any width is clearly better; figure 3d shows what each does to the weights.",
    ),
    "tab-6": (
        "A second benchmark (the paper: ZeroScrolls)",
        _CELLS + "paper's ZeroScrolls scores stand below in grey. Tasks here are kvlab's further ones.",
        "Whether the order of methods is that of table 1.",
    ),
}
EXHIBITS = tuple(
    Exhibit(PAPER, slug, f"{slug.split('-')[0].capitalize()} {slug.split('-')[1]}", *_WORDS[slug], "eval", table.draw)
    for slug, table in TABLES.items()
)
