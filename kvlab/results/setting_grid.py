"""Scores over the values of two settings, such as a score's `aggregate` and `decay`: a table and a view."""

import json
from collections import Counter, defaultdict
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots
from pydantic import JsonValue

from kvlab.common.formatting import range_words
from kvlab.common.intervals import mean_over_groups
from kvlab.core import FULL, UserError
from kvlab.evaluation.results.summary import PROMPT
from kvlab.evaluation.scoring.metrics import higher_is_better
from kvlab.results.informative import informative
from kvlab.results.score_tables import with_names
from kvlab.views.base import QUIET, SEQUENTIAL_STOPS, Theme, colour_bar, finish, words
from kvlab.views.base.head_map import cell_text
from kvlab.views.base.view import view
from kvlab.views.scores import line_text, sample_note

CELL = ["task", "arm", "method", "asked", "budget", "first", "second"]
AXES = ("first", "second")
PAIR = [*PROMPT, "question_aware"]
# What a metric that is better when lower is called on the figure, and its unit.
LOWER_IS_BETTER = {"kl": ("KL", "nats per token"), "bits_per_byte": ("code length", "bits per byte")}


@view("setting_grid", title="Score by two settings", page="quality")
def setting_grid(rows: pd.DataFrame) -> pd.DataFrame:
    """A row per task, method, budget and values of the two settings that vary in the most methods.

    Only prompts that every method has answered count, of tasks whose score is better when higher; without such a task,
    of those with one metric that is better when lower, which `attrs["metric"]` then names. Columns: task, arm
    (the method with its other settings), method, asked, budget, first and second (values), score with `_low` and
    `_high` (95 % interval over prompts), prompts. `attrs`: the names of both `settings`, and the difference
    that each makes, `gains` (`_gain`).

    Raises:
        UserError: no method has two settings that vary, or no prompt was answered with both values of one.
    """
    rows = informative(rows)[0]
    rows = rows[(rows["method"] != FULL.method) & rows["score"].notna()]
    higher = rows["metric"].map(higher_is_better)
    metric = "" if higher.any() or rows.empty else str(rows["metric"].iloc[0])
    rows = rows[rows["metric"] == metric] if metric else rows[higher]
    given = [json.loads(text) for text in rows["hyper_parameters"]]
    # Older rows have no settings, and newer ones lack some that were added later and have their default.
    defaults = rows["settings"].fillna("{}")
    settings = [json.loads(text) | asked for text, asked in zip(defaults, given, strict=True)]
    # The pair of settings asked for that both vary in the most methods, the first by name of as many.
    values = defaultdict(set)
    for one, asked, method in zip(settings, given, rows["method"], strict=True):
        for name in asked:
            values[method, name].add(_text(one.get(name)))
    of_method = defaultdict(list)
    for (method, name), found in sorted(values.items()):
        if len(found) > 1:
            of_method[method].append(name)
    pairs = Counter(pair for varied in of_method.values() for pair in combinations(varied, 2))
    if not pairs:
        raise UserError(
            "These rows have no two settings that vary: evaluate a method with several values of two, such as "
            "snapkv:aggregate=worst:decay=0."
        )
    first, second = names = max(sorted(pairs), key=pairs.__getitem__)
    has_both = [first in one and second in one for one in settings]
    others = [json.dumps({name: one[name] for name in sorted(one) if name not in names}) for one in given]
    rows = with_names(rows.assign(hyper_parameters=others))
    for axis, name in zip(AXES, names, strict=True):
        rows[axis] = [_text(one.get(name)) for one in settings]
    rows = rows[has_both]
    answers = rows.groupby(PAIR, dropna=False)["score"].transform("count")
    rows = rows[answers == answers.groupby(rows["task"]).transform("max")]
    lines = []
    for cell, group in rows.groupby(CELL, sort=False):
        mean = mean_over_groups(group["score"].tolist(), None, kind="any" if metric else "score")
        score = {"score": mean.mean, "score_low": mean.low, "score_high": mean.high, "prompts": mean.n}
        lines.append(dict(zip(CELL, cell, strict=True)) | score)
    table = pd.DataFrame(lines)
    table.attrs |= {"settings": names, "metric": metric, "gains": [_gain(rows, axis, metric != "") for axis in AXES]}
    return table


def _text(value: JsonValue) -> str:
    """A setting's value: `1` and `1.0` are one."""
    return f"{value:g}" if isinstance(value, float) else value if isinstance(value, str) else json.dumps(value)


def _gain(rows: pd.DataFrame, axis: str, lower_is_better: bool) -> dict[str, Any]:
    """What a setting's best value gains on its worst, all else (prompt, method, budget, setting) equal.

    `best`, `worst`, `mean` with `low` and `high` (95 % interval over prompts), and the number of prompts, `n`.
    """
    (other,) = set(AXES) - {axis}
    equal = [*PAIR, "arm", "asked", other]
    of_values = rows.groupby(axis)["score"].mean() * (-1 if lower_is_better else 1)
    best, worst = of_values.idxmax(), of_values.idxmin()
    both = rows[rows[axis] == best].merge(rows[rows[axis] == worst], on=equal, suffixes=("", "_worst"))
    gaps = (
        both.assign(gap=(both["score"] - both["score_worst"]) * (-1 if lower_is_better else 1))
        .groupby(PAIR, dropna=False)["gap"]
        .mean()
    )
    if gaps.empty:
        raise UserError(f"No prompt was answered with both {best} and {worst}: evaluate both on equal prompts.")
    found = mean_over_groups(gaps.tolist(), gaps.index.get_level_values("task").tolist(), kind="difference")
    return {"best": best, "worst": worst, "mean": found.mean, "low": found.low, "high": found.high, "n": found.n}


@setting_grid.figure
def draw_setting_grid(frame: pd.DataFrame, theme: Theme) -> go.Figure:
    """A panel per task: budgets and values of the first setting across, methods and values of the second down."""
    tasks = frame["task"].drop_duplicates().tolist()
    columns = frame[["budget", "asked", "first"]].drop_duplicates().sort_values("budget", kind="stable")
    downs = frame[["arm", "second"]].drop_duplicates().sort_values("arm", kind="stable")
    x = [f"{line.asked}, {line.first}" for line in columns.itertuples()]
    y = [f"{words.arm_text(str(line.arm))}, {line.second}" for line in downs.itertuples()]
    titles = [words.with_spaces(task) for task in tasks]
    gap = 0.09 / max(3, len(tasks))
    stops = SEQUENTIAL_STOPS[theme]
    most = 1.0
    bar = "score"
    if metric := frame.attrs["metric"]:  # the best stands out either way
        stops = [(1 - place, colour) for place, colour in reversed(stops)]
        most = float(frame["score"].max())
        bar = ", ".join(LOWER_IS_BETTER[metric])
    figure = make_subplots(1, len(tasks), subplot_titles=titles, shared_yaxes=True, horizontal_spacing=gap)
    for place, task in enumerate(tasks, start=1):
        cells = frame[frame["task"] == task].set_index(["asked", "first", "arm", "second"])
        keys = [
            [(across.asked, across.first, down.arm, down.second) for across in columns.itertuples()]
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
            zmax=most,
            colorscale=stops,
            colorbar=colour_bar(bar, theme),
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
    """The difference between the best and the worst value of each setting, the larger one first."""
    gains = zip(frame.attrs["settings"], frame.attrs["gains"], strict=True)
    ordered = sorted(gains, key=lambda pair: -pair[1]["mean"])
    verb = "scores"
    side = "above"
    if metric := frame.attrs["metric"]:
        verb = f"has a {LOWER_IS_BETTER[metric][0]}"
        side = f"{LOWER_IS_BETTER[metric][1]} below that of"
    parts = [
        f"{name} {gain['best']} {verb} {range_words(gain['mean'], gain['low'], gain['high'])} {side} {gain['worst']}"
        for name, gain in ordered
    ]
    return f"Over all methods and budgets, {' and '.join(parts)} (n = {ordered[0][1]['n']})."
