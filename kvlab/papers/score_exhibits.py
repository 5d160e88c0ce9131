"""Exhibits of scores as rows of `exhibits.toml`: arms, budgets and tasks, how they are drawn, and the claim.

A row with `arms` is drawn here, by the drawers that its panels name, and judged by paired differences of the arms.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from kvlab.common.intervals import Interval
from kvlab.core import FULL
from kvlab.evaluation.scoring.metrics import higher_is_better
from kvlab.papers import evaluations
from kvlab.papers.exhibit import Choice, Drawn, Needs, Paper
from kvlab.papers.paper_tables import grey_table, paper_gap, paper_values
from kvlab.requests.measurement import Measurement
from kvlab.results import score_tables
from kvlab.results.sources import Sources
from kvlab.results.verdict import OPEN, Basis, Claim, Threshold
from kvlab.views import scores as figures
from kvlab.views.base import Theme, arm_text, number, percent

LEVEL_KL = Threshold(-0.01, "0.01 nats per token more KL from the full cache: hardly another next token")
THRESHOLDS = {"ahead": evaluations.AHEAD, "not behind": evaluations.NOT_BEHIND, "level KL": LEVEL_KL}
TASKS = {
    "own": evaluations.OWN_TASKS,
    "further": ("needle_multivalue", "needle_multiquery", "variable_tracking", "copy"),
    "needles": ("needle", "key_value"),
    "text": ("next_token_kl",),
}
CONTEST = {
    "only_budgets": True,
    "only_tasks": True,
    "lengths": [1024],
    "question_aware": False,
    "draw": {"scores": "table"},
}
EXPERIMENT = ("samples", "only_budgets", "only_tasks", "lengths", "question_aware")
PANEL = ("arms", "heading", "draw", "claim", "names")


@dataclass(frozen=True)
class PairClaim:
    """The claim that the first arm of every pair scores more than the second, on the same prompts.

    A pair may have a third member, the budget at which it counts; else it counts over all budgets together, or with
    `each_budget` at every one. `beside` are pairs that the finding reports and that do not decide. With `larger`, pairs
    of budgets are judged task by task instead. `able_arm`: not judged if no arm has a tenth of the full cache's score.
    """

    says: str
    pairs: tuple[tuple[Any, ...], ...] = ()
    each_budget: bool = False
    threshold: str = "ahead"
    beside: tuple[tuple[Any, ...], ...] = ()
    larger: tuple[float, float] | None = None
    able_arm: bool = False


@dataclass(frozen=True)
class Panel:
    """One experiment of an exhibit, its drawings and its claim, which stands with the first drawing.

    `names` are short names of arms that differ in options alone. `drawers` maps the name of each drawing to how it is
    drawn: `budget`, `table` or `option`.
    """

    experiment: evaluations.Experiment
    claim: PairClaim
    drawers: Mapping[str, str]
    heading: str = ""
    names: Mapping[str, str] = field(default_factory=dict)

    def name_of(self, arm: evaluations.Arm) -> str:
        """A short name that tells the arms apart."""
        return self.names.get(arm.name) or arm_text(arm.label)

    def judge(self, rows: pd.DataFrame, settle: Measurement | None, printed: pd.DataFrame) -> Claim:
        """The verdict, by paired differences; `printed` are the paper's own values.

        Not judged if the full cache fails the tasks.
        """
        claim = self.claim
        full = score_tables.full_score(rows)
        if full is not None and full.mean < evaluations.ABLE:
            text = f"The full cache itself scores {evaluations.gap_text(full, number)} on these tasks."
            return Claim(claim.says, OPEN, text, Basis(full.n), effect="floor")
        table = score_tables.score_table(rows)
        compressed = table[table["method"] != FULL.method]
        best = compressed.loc[compressed["score"].idxmax()]
        most = table.loc[table["method"] == FULL.method, "score"].max()
        if claim.able_arm and best["score"] < evaluations.ABLE * most:
            reached = f"where the full cache reaches {most:.3g}"
            text = f"No arm scores above {figures.line_text(best)} on any task, {reached}."
            return Claim(claim.says, OPEN, text, effect="floor")

        gaps = {}
        values: dict[str, float | None] = {}
        if claim.larger:
            large, small = claim.larger
            for task, group in rows[rows["method"] != FULL.method].groupby("task", sort=False):
                one, other = (group[group["budget"] == budget] for budget in (large, small))
                gaps[f"{task}, {large:g} minus {small:g} slots"] = score_tables.paired_gap(
                    one, other, score_tables.PROMPT
                )
        budgets = sorted(rows.loc[rows["method"] != FULL.method, "budget"].unique(), reverse=True)
        for first, second, *at in claim.pairs:
            one, other = evaluations.Arm.parse(first), evaluations.Arm.parse(second)
            for budget in at or (budgets if claim.each_budget else [None]):
                name = f"{self.name_of(one)} minus {self.name_of(other)}"
                named_at = budgets[0] if budget is None and len(budgets) == 1 else budget
                name += "" if named_at is None else f" at {percent(named_at)}"
                gaps[name] = difference(rows, one, other, budget)
                asked = "" if budget is None else percent(budget)
                values[name] = paper_gap(printed, one.label, other.label, asked)
                if values[name] is None and one.method != other.method:
                    values[name] = paper_gap(printed, one.method, other.method, asked)
        beside = {
            f"{self.name_of(one)} minus {self.name_of(other)}": difference(rows, one, other)
            for one, other in (map(evaluations.Arm.parse, pair) for pair in claim.beside)
        }
        shown = "; ".join(f"{name} {evaluations.gap_text(found)}" for name, found in {**beside, **gaps}.items())
        measured = "Mean score" if full is not None else "Nats of KL saved"
        finding = f"{measured} on the same prompts, with its 95 % interval: {shown or 'none'}."
        if full is not None:
            finding += f" The full cache scores {evaluations.gap_text(full, number)}."
        return evaluations.contest(claim.says, gaps, finding, settle, THRESHOLDS[claim.threshold], values)


def difference(
    rows: pd.DataFrame, first: evaluations.Arm, second: evaluations.Arm, budget: float | None = None
) -> Interval | None:
    """Mean of arm `first` minus arm `second` over their common prompts and budgets, with its 95 % interval.

    Positive if `first` is better: where only metrics are known of which less is better, the sign is turned; else these
    are left out. The full cache has no budget. None without common prompts.
    """
    is_higher = rows["metric"].map(higher_is_better)
    known = rows[is_higher] if is_higher.any() else rows.assign(score=-rows["score"])
    keys = [*score_tables.PROMPT, "question_aware", *([] if second.method == FULL.method else ["budget"])]
    sides = []
    for arm in (first, second):
        options = score_tables.without_preset(arm.options)
        mine = known[known["method"] == arm.method]
        if arm.method != FULL.method:
            same = {
                text
                for text in mine["hyper_parameters"].unique()
                if score_tables.without_preset(json.loads(text)) == options
            }
            mine = mine[mine["hyper_parameters"].isin(same)]
            mine = mine if budget is None else mine[mine["budget"] == budget]
        sides.append(mine)
    return score_tables.paired_gap(sides[0], sides[1], keys) if all(map(len, sides)) else None


@dataclass(frozen=True)
class ScoreExhibit:
    """An exhibit of scores, from its row of `exhibits.toml`.

    `experiment` has the arms of all panels. `same_prompts`: only prompts that all arms have at one budget are shown.
    `paper_data` names the paper's own model and files, which the user has to have.
    """

    paper: Paper
    slug: str
    experiment: evaluations.Experiment
    panels: tuple[Panel, ...]
    option: str = ""
    default: str = ""
    same_prompts: bool = False
    paper_data: Mapping[str, Any] = field(default_factory=dict)

    def draw(self, sources: Sources, choice: Choice, theme: Theme) -> tuple[Drawn, ...] | Needs:
        """The drawings of every panel that was evaluated."""
        printed = paper_values(self.paper, self.slug)
        drawn: list[Drawn] = []
        for panel in self.panels:
            rows = panel.experiment.rows(sources)
            if len(rows):
                rows = on_the_same_prompts(rows) if self.same_prompts else rows
                claim = panel.judge(rows, panel.experiment.more_prompts(sources), printed)
                drawn += self._drawings(panel, rows, claim, printed, theme)
        if drawn and self.paper_data:
            further = self.experiment.on_paper_data(sources, self.paper_data["model"], *self.paper_data["files"])
            drawn[0] = Drawn(**{**vars(drawn[0]), "further": further})
        return tuple(drawn) or self.experiment.needs(sources)

    def _drawings(
        self, panel: Panel, rows: pd.DataFrame, claim: Claim, printed: pd.DataFrame, theme: Theme
    ) -> list[Drawn]:
        table = score_tables.score_table(rows)
        renamed = {}
        for method, text, label in table[["method", "options", "arm"]].drop_duplicates().itertuples(index=False):
            options = score_tables.without_preset(json.loads(text))
            for arm in panel.experiment.arms:
                if arm.name in panel.names and (arm.method, score_tables.without_preset(arm.options)) == (
                    method,
                    options,
                ):
                    renamed[label] = panel.names[arm.name]
        drawn: list[Drawn] = []
        for name, drawer in panel.drawers.items():
            frame = table.assign(arm=table["arm"].replace(renamed)) if renamed else table
            if drawer == "budget":
                figure = figures.score_against_budget(frame, theme, panel.heading)
                caption = evaluations.caption_by_budget(rows, table)
            elif drawer == "option":
                frame = score_tables.option_column(score_tables.shared_budgets(table), self.option)
                frame = frame.replace({self.option: {"default": self.default}}) if self.default else frame
                figure = figures.score_by_option(frame, self.option, theme, panel.heading)
                means = score_tables.means_over_tasks(rows, frame, ["asked", self.option])
                caption = figures.caption_score_by_option(means, self.option)
            else:
                figure = figures.benchmark_table(frame, theme, *([panel.heading] if panel.heading else []))
                caption = figures.caption_benchmark_table(score_tables.means_over_tasks(rows, table))
            for label in sorted(renamed, key=len, reverse=True):
                caption = caption.replace(label, renamed[label])
            is_first = not drawn
            grey = grey_table(printed) if is_first and len(printed) else None
            drawn.append(
                Drawn(name, figure, frame, caption, evaluations.origin_of(rows), claim if is_first else None, grey)
            )
        return drawn


def on_the_same_prompts(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of prompts that all arms have at one budget; all rows if there is no such prompt."""
    arm = rows["method"] + rows["hyper_parameters"]
    compressed = rows.assign(arm=arm)[rows["method"] != FULL.method]
    asked = compressed.groupby([*score_tables.PROMPT, "budget"], dropna=False)["arm"].nunique()
    common = asked[asked == compressed["arm"].nunique()].reset_index()
    if common.empty:
        return rows
    same = rows.merge(common[[*score_tables.PROMPT, "budget"]], on=[*score_tables.PROMPT, "budget"])
    full = rows[rows["method"] == FULL.method].merge(
        common[score_tables.PROMPT].drop_duplicates(), on=score_tables.PROMPT
    )
    return pd.concat([full, same], ignore_index=True)


def score_exhibit(paper: Paper, slug: str, row: dict[str, Any]) -> ScoreExhibit:
    """The exhibit of a row of `exhibits.toml`; of contests beyond the papers the first arm should beat the second."""
    if paper == "beyond":
        row = {**CONTEST, "heading": row["title"], **row}
        row["claim"] = {"first": row["arms"][0], **row["claim"]}
    parts = row.get("panels", [{}])
    every = row.get("arms") or list(dict.fromkeys(arm for part in parts for arm in part["arms"]))
    panels = []
    for part in parts:
        fields = {name: part.get(name, row.get(name)) for name in PANEL}
        arms = fields["arms"] or every
        claim: dict[str, Any] = dict(fields["claim"])
        if first := claim.pop("first", None):
            claim["pairs"] = [(first, arm) for arm in arms if arm != first]
        for name in ("pairs", "beside"):
            claim[name] = tuple(map(tuple, claim.get(name, ())))
        names = dict(zip((evaluations.Arm.parse(arm).name for arm in arms), fields["names"] or (), strict=False))
        panels.append(
            Panel(
                _experiment(paper, slug, row, arms),
                PairClaim(**claim),
                fields["draw"],
                fields["heading"] or "",
                {name: short for name, short in names.items() if short},
            )
        )
    return ScoreExhibit(
        paper,
        slug,
        _experiment(paper, slug, row, every),
        tuple(panels),
        row.get("option", ""),
        row.get("default", ""),
        row.get("same_prompts", False),
        row.get("paper_data", {}),
    )


def _experiment(paper: Paper, slug: str, row: Mapping[str, Any], arms: Sequence[str]) -> evaluations.Experiment:
    others: dict[str, Any] = {
        name: tuple(row[name]) if isinstance(row[name], list) else row[name] for name in EXPERIMENT if name in row
    }
    return evaluations.Experiment(
        f"{paper}-{slug}",
        tuple(evaluations.Arm.parse(arm) for arm in arms if arm != FULL.method),
        tuple(row["budgets"]),
        TASKS[row.get("tasks", "own")] if isinstance(row.get("tasks", "own"), str) else tuple(row["tasks"]),
        **others,
    )
