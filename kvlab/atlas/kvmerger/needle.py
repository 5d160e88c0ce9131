"""Figure 5: the needle in a haystack by length and depth, and whether its tokens survived."""

from __future__ import annotations

import pandas as pd

from kvlab.atlas.claims.needle import fate
from kvlab.atlas.exhibit import Choice, Drawn, Needs
from kvlab.atlas.kvmerger.benchmarks import BUDGETS, CAM, H2O, OURS, contested
from kvlab.atlas.scores import Experiment, origin_of
from kvlab.evaluate.results.summary import over_tasks
from kvlab.figures import needle_map as figures
from kvlab.figures.base.palette import Theme
from kvlab.requests.compare import MethodChoice
from kvlab.results.provenance import Provenance
from kvlab.results.score_tables import FULL, PROMPT
from kvlab.results.sources import Sources

EXPERIMENT = Experiment(
    "kvmerger-fig-5",
    (H2O, CAM, OURS),
    BUDGETS,
    tasks=("needle",),
    samples=3,
    only_budgets=True,
    only_tasks=True,
    lengths=(512, 1024, 1536),
    depths=(0.05, 0.25, 0.5, 0.75, 0.95),
)
BETTER = "CaM and KVMerger find the needle more often than H2O at both budgets."
HIDDEN = ["hidden_own", "hidden_merged"]


def draw_needle(sources: Sources, choice: Choice, theme: Theme) -> tuple[Drawn, ...] | Needs:
    """The heat maps, and the fate of the needle's tokens where the results hold it."""
    rows = EXPERIMENT.rows(sources)
    rows = rows.dropna(subset="depth") if len(rows) else rows
    if rows.empty or (rows["method"] == FULL).all():
        return EXPERIMENT.needs(sources)
    rows = rows.assign(row=_names(rows))
    cells, means = _scores(rows, "row", "length", "depth"), _scores(rows, "row")
    claim = contested(BETTER, rows, ((OURS, H2O), (CAM, H2O)), EXPERIMENT.more_prompts(sources))
    figure, reading, place = (
        figures.needle_map(cells, theme),
        figures.read_needle_map(cells, means),
        origin_of(rows),
    )
    drawn = Drawn("map", figure, cells, reading, place, claim)
    followed = rows.dropna(subset=HIDDEN) if set(HIDDEN) <= set(rows) else rows.iloc[:0]
    return (drawn, _fates(followed, place, theme)) if len(followed) else (drawn,)


def _scores(rows: pd.DataFrame, *by: str) -> pd.DataFrame:
    """A row a group: mean score with its 95 % interval, and prompts."""
    found = over_tasks(rows, by, ("score",))
    return found.drop(columns="tasks")


def _fates(rows: pd.DataFrame, place: Provenance, theme: Theme) -> Drawn:
    held = rows[HIDDEN].sum(axis=1)
    frame = over_tasks(
        rows.assign(held=held, gone=(1 - held).clip(lower=0)), ["row"], (*HIDDEN, "held", "gone", "score")
    )
    figure, reading = figures.needle_fates(frame, theme), figures.read_needle_fates(frame)
    return Drawn("fates", figure, frame, reading, place, fate(answers(rows)))


def answers(rows: pd.DataFrame) -> pd.DataFrame:
    """A row a prompt, method and budget: prompt, score, and the share of the needle's tokens that is held."""
    compressed = rows[rows["method"] != FULL]
    prompts = compressed.groupby(PROMPT, dropna=False, sort=False).ngroup()
    return compressed.assign(prompt=prompts, held=compressed[HIDDEN].sum(axis=1))[["prompt", "score", "held"]]


def _names(rows: pd.DataFrame) -> list[str]:
    return [
        "full cache" if method == FULL else MethodChoice(method=method, budget=budget).label
        for method, budget in zip(rows["method"], rows["budget"], strict=True)
    ]


DRAWINGS = {"fig-5": draw_needle}
