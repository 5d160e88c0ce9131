"""Scores over the values of two settings, such as a score's `aggregate` and `decay`: a table and a view."""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from kvlab.common.formatting import range_words
from kvlab.common.intervals import mean_over_groups
from kvlab.core.choice import FULL
from kvlab.core.errors import UserError
from kvlab.evaluation.scoring.metrics import higher_is_better
from kvlab.results.informative import informative
from kvlab.results.score_tables import PROMPT, paired_gap, with_names
from kvlab.views.base import words
from kvlab.views.base.head_map import cell_text
from kvlab.views.base.palette import SEQUENTIAL, Theme
from kvlab.views.base.template import QUIET, colour_bar, finish
from kvlab.views.base.view import view
from kvlab.views.scores import line_text, sample_note

CELL = ["task", "arm", "method", "asked", "budget", "first", "second"]
AXES = ("first", "second")


@view("setting_grid", title="Score by two settings", page="quality")
def setting_grid(rows: pd.DataFrame) -> pd.DataFrame:
    """A row per task, method, budget and values of the two settings that vary in the most methods.

    Only prompts that every method has answered count, of tasks whose score is better when higher. Columns: task, arm
    (the method with its other settings), method, asked, budget, first and second (values), score with `_low` and
    `_high` (95 % interval over prompts), prompts. `attrs`: the names of both `settings`, and the `gains` of each
    (`_gain`).

    Raises:
        UserError: no two settings vary.
    """
    rows = informative(rows)[0]
    rows = rows[(rows["method"] != FULL.method) & rows["metric"].map(higher_is_better)]
    settings = [json.loads(text) for text in rows["hyper_parameters"]]
    first, second = names = _varied(settings, rows["method"].tolist())
    has_both = [first in one and second in one for one in settings]
    rows = rows[has_both]
    settings = [one for one, kept in zip(settings, has_both, strict=True) if kept]
    others = [json.dumps({name: one[name] for name in sorted(one) if name not in names}) for one in settings]
    rows = with_names(rows.assign(hyper_parameters=others))
    for axis, name in zip(AXES, names, strict=True):
        rows[axis] = [json.dumps(one[name]).strip('"') for one in settings]
    answers = rows.groupby(PROMPT, dropna=False)["score"].transform("count")
    rows = rows[answers == answers.groupby(rows["task"]).transform("max")]
    lines = []
    for cell, group in rows.groupby(CELL, sort=False):
        found = mean_over_groups(group["score"].tolist(), None)
        score = {"score": found.mean, "score_low": found.low, "score_high": found.high, "prompts": found.n}
        lines.append(dict(zip(CELL, cell, strict=True)) | score)
    table = pd.DataFrame(lines)
    table.attrs |= {"settings": names, "gains": [_gain(rows, axis) for axis in AXES]}
    return table


def _varied(settings: Sequence[Mapping[str, Any]], methods: Sequence[str]) -> tuple[str, str]:
    """The two settings with several values in the most methods, those named first of as many."""
    values = defaultdict(set)
    for one, method in zip(settings, methods, strict=True):
        for name, value in one.items():
            values[name, method].add(json.dumps(value))
    counts = pd.Series([name for (name, _), found in sorted(values.items()) if len(found) > 1]).value_counts()
    if len(counts) < 2:
        raise UserError(
            "These rows have no two settings that vary: evaluate a method with several values of two, such as "
            "snapkv:aggregate=worst:decay=0."
        )
    first, second = counts.index[:2]
    return str(first), str(second)


def _gain(rows: pd.DataFrame, axis: str) -> dict[str, Any]:
    """What the best value of a setting scores above its worst, everything else equal: `best`, `worst`, `mean`, `low`,
    `high` (95 % interval over prompts) and prompts `n`."""
    means = rows.groupby([*PROMPT, axis], dropna=False)["score"].mean().reset_index()
    of_values = means.groupby(axis)["score"].mean()
    best, worst = of_values.idxmax(), of_values.idxmin()
    gap = paired_gap(means[means[axis] == best], means[means[axis] == worst], PROMPT)
    assert gap is not None
    return {"best": str(best), "worst": str(worst), "mean": gap.mean, "low": gap.low, "high": gap.high, "n": gap.n}


@setting_grid.figure
def draw_setting_grid(frame: pd.DataFrame, theme: Theme) -> go.Figure:
    """A panel per task: budgets and values of the first setting across, methods and values of the second down."""
    tasks = frame["task"].drop_duplicates().tolist()
    columns = frame[["budget", "asked", "first"]].drop_duplicates().sort_values("budget", kind="stable")
    downs = frame[["arm", "second"]].drop_duplicates().sort_values("arm", kind="stable")
    x = [f"{line.asked}, {line.first}" for line in columns.itertuples()]
    y = [f"{words.arm_text(str(line.arm))}, {line.second}" for line in downs.itertuples()]
    scale = list(zip(np.linspace(0, 1, len(SEQUENTIAL[theme])).tolist(), SEQUENTIAL[theme], strict=True))
    titles = [words.with_spaces(task) for task in tasks]
    figure = make_subplots(1, len(tasks), subplot_titles=titles, shared_yaxes=True, horizontal_spacing=0.03)
    for place, task in enumerate(tasks, start=1):
        cells = frame[frame["task"] == task].set_index(["budget", "first", "arm", "second"])
        keys = [
            [(across.budget, across.first, down.arm, down.second) for across in columns.itertuples()]
            for down in downs.itertuples()
        ]
        found = [[cells.loc[key] if key in cells.index else None for key in line] for line in keys]
        heat = go.Heatmap(
            z=np.array([[np.nan if cell is None else cell["score"] for cell in line] for line in found], np.float32),
            x=x,
            y=y,
            xgap=2,
            ygap=2,
            zmin=0,
            zmax=1,
            colorscale=scale,
            colorbar=colour_bar("score", theme),
            showscale=place == len(tasks),
            customdata=[["not evaluated" if cell is None else line_text(cell) for cell in line] for line in found],
            hovertemplate=f"{task}<br>%{{y}}<br>%{{x}}: %{{customdata}}<extra></extra>",
        )
        texts = [["" if cell is None else f"{cell['score']:.2f}" for cell in line] for line in found]
        figure.add_trace(heat, 1, place)
        figure.add_trace(cell_text(heat, texts, 10), 1, place)
    first, second = frame.attrs["settings"]
    height = 190 + 24 * len(y)
    across = f"budget, {first} ({sample_note(frame)})"
    finish(figure, title=setting_grid.title, x=across, y="", theme=theme, legend=False, height=height)
    figure.update_xaxes(showgrid=False, type="category").update_yaxes(showgrid=False, autorange="reversed")
    figure.update_annotations(font={"size": 12, "color": QUIET[theme]})
    return figure.update_yaxes(title_text=f"method, {second}", col=1).update_layout(margin_t=76)


@setting_grid.caption
def describe_setting_grid(frame: pd.DataFrame) -> str:
    """What changing each setting alone gains, the one that matters more first."""
    gains = zip(frame.attrs["settings"], frame.attrs["gains"], strict=True)
    ordered = sorted(gains, key=lambda pair: -pair[1]["mean"])
    parts = [
        f"{name} {gain['best']} scores {range_words(gain['mean'], gain['low'], gain['high'])} above {gain['worst']}"
        for name, gain in ordered
    ]
    return f"Over all methods and budgets, {' and '.join(parts)} (n = {ordered[0][1]['n']})."
