"""Scores measured with kvlab next to those printed in a paper."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go

from kvlab.figures.base.lines import interval_bars
from kvlab.figures.base.palette import Theme, run_styles
from kvlab.figures.base.template import finish
from kvlab.figures.base.words import plural

OURS = ("dataset", "metric", "method", "budget", "ours", "ours_low", "ours_high", "prompts", "scored")


def paper_models(frame: pd.DataFrame) -> list[str]:
    """The columns of the paper's models."""
    return [str(name) for name in frame if name not in OURS]


def ours_beside_theirs(
    frame: pd.DataFrame, theme: Theme = "light", title: str = "Measured and published scores"
) -> go.Figure:
    """Datasets (x) and scores (y): filled marks with 95 % intervals are ours, open ones those of the paper's first
    model.

    `frame` has the columns `OURS` and one per model of the paper, from `kvlab.atlas.paper_tables.compare_scores`.
    """
    theirs = paper_models(frame)[:1]
    arms = frame["method"].drop_duplicates().tolist()
    styles = run_styles([(arm, arm.split(":")[0]) for arm in arms], theme)
    figure = go.Figure()
    for arm in arms:
        group = frame[frame["method"] == arm]
        across = [_words(line) for line in group.to_dict("records")]
        look = {"color": styles[arm].colour, "size": 9}
        figure.add_scatter(
            x=across, y=group["ours"], mode="markers", name=arm, marker=look, legendgroup=arm,
            error_y=interval_bars(group, "ours"),
            hovertemplate=f"{arm}, %{{x}}: ours %{{y:.3g}}<extra></extra>",
        )  # fmt: skip
        for model in theirs:
            figure.add_scatter(
                x=across, y=group[model], mode="markers", name=f"{arm}, {model}", legendgroup=arm, showlegend=False,
                marker={**look, "symbol": "circle-open", "line": {"width": 2}},
                hovertemplate=f"{arm}, %{{x}}: {model} %{{y:.3g}}<extra></extra>",
            )  # fmt: skip
    x = f"dataset and budget (filled: ours; open: the paper's {theirs[0]})" if theirs else "dataset and budget"
    return finish(figure, title=title, x=x, y="score", theme=theme, height=460)


def _words(line: dict[str, object]) -> str:
    metric = "" if line["metric"] == "its own" else f" {line['metric']}"
    return f"{line['dataset']}{metric} {line['budget']}".strip()


def read_ours_beside_theirs(frame: pd.DataFrame) -> str:
    """How many of the paper's cells were measured, and how many of its values are in our interval."""
    theirs, run = paper_models(frame), frame[frame["ours"].notna()]
    if not theirs:
        return f"{plural(len(run), 'cell')} measured here; the paper prints no numbers."
    values = run[theirs[0]]
    inside = int(((values >= run["ours_low"]) & (values <= run["ours_high"])).sum())
    return (
        f"{len(run)} of {plural(len(frame), 'cell')} were measured; in {inside} of them the value of {theirs[0]} is "
        "within our 95 % interval."
    )
