"""What a method that finds its own budget really used: by task, and over the values of one of its options."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from kvlab.figures.palette import HUES, SURFACES, Theme, method_style, mix, pick
from kvlab.figures.scores import TASK_HUES, TASK_MARKERS
from kvlab.figures.template import finish
from kvlab.figures.words import number, percent, plural, spoken

MEASURES = {"score": "score", "kept": "tokens kept", "seconds": "seconds a prompt"}
MOST_TASKS = len(TASK_HUES)


def usage_by_task(frame: pd.DataFrame, theme: Theme = "light") -> go.Figure:
    """Share of the tokens kept, a box a task over its prompts; columns task, kept (one row a prompt)."""
    figure, colour = go.Figure(), method_style("gvote", theme).colour
    for task, group in frame.assign(task=frame["task"].map(spoken)).groupby("task", sort=False):
        q = group["kept"].quantile([0.05, 0.25, 0.5, 0.75, 0.95])
        figure.add_box(
            x=[task], q1=[q[0.25]], median=[q[0.5]], q3=[q[0.75]], lowerfence=[q[0.05]], upperfence=[q[0.95]],
            name=str(task), line={"color": colour, "width": 1.6}, fillcolor=mix(colour, SURFACES[theme], 0.7),
        )  # fmt: skip
        figure.add_scatter(
            x=[task], y=[group["kept"].mean()], mode="markers", showlegend=False,
            marker={"symbol": "star-diamond", "size": 11, "color": pick(HUES["ink"], theme)},
            hovertemplate=f"{task}: mean %{{y:.1%}} over {plural(len(group), 'prompt')}<extra></extra>",
        )  # fmt: skip
    finish(figure, title="Share of the tokens kept", x="box: quartiles and 5 to 95 % of the prompts; mark: mean",
           y="tokens kept", theme=theme, height=400, legend=False)  # fmt: skip
    return figure.update_yaxes(tickformat=".0%", rangemode="tozero")


def read_usage_by_task(frame: pd.DataFrame) -> str:
    """Smallest and largest mean."""
    means = frame.groupby(frame["task"].map(spoken), sort=False)["kept"].mean()
    if len(means) == 1:
        return f"{percent(means.iloc[0])} of the tokens are kept on average, over {plural(len(frame), 'prompt')}."
    return (
        f"From {percent(means.min())} ({means.idxmin()}) to {percent(means.max())} ({means.idxmax()}) of the tokens "
        f"are kept on average, over {plural(len(means), 'kind')} and {plural(len(frame), 'prompt')}."
    )


def option_sweep(frame: pd.DataFrame, option: str, theme: Theme = "light") -> go.Figure:
    """Score, tokens kept and seconds over the values of one option, a line a task: columns `MEASURES`, task, option."""
    figure = make_subplots(1, len(MEASURES), subplot_titles=list(MEASURES.values()), horizontal_spacing=0.08)
    values = frame[option].drop_duplicates().tolist()
    for index, (task, group) in enumerate(list(frame.groupby("task", sort=False))[:MOST_TASKS]):
        group = group.set_index(option).reindex([value for value in values if value in set(group[option])])
        colour, marker = pick(HUES[TASK_HUES[index]], theme), TASK_MARKERS[index]
        for column, measure in enumerate(MEASURES, 1):
            figure.add_scatter(
                x=group.index, y=group[measure], name=spoken(str(task)), legendgroup=str(task), showlegend=column == 1,
                mode="lines+markers", line={"color": colour, "width": 1.8},
                marker={"symbol": marker, "size": 7, "color": colour},
                hovertemplate=f"{task}, {option} %{{x}}: {MEASURES[measure]} %{{y:.3g}}<extra></extra>",
                row=1, col=column,
            )  # fmt: skip
    name = option.replace("_", " ")
    finish(figure, title=f"Effect of {name}", x=name, y="", theme=theme, height=420)
    figure.update_xaxes(type="category", categoryarray=values).update_yaxes(rangemode="tozero")
    figure.update_yaxes(tickformat=".0%", col=2)
    figure.update_annotations(font={"size": 13})
    return figure.update_layout(margin={"t": 118}, legend={"y": 1.12})


def read_option_sweep(frame: pd.DataFrame, option: str) -> str:
    """First against last value, means over tasks."""
    means, tasks = frame.groupby(option, sort=False)[list(MEASURES)].mean(), frame["task"].nunique()
    first, last = means.iloc[0], means.iloc[-1]
    return (
        f"From {option.replace('_', ' ')} {means.index[0]} to {means.index[-1]}: score {number(first['score'])} to "
        f"{number(last['score'])}, tokens kept {percent(first['kept'])} to {percent(last['kept'])}, seconds a prompt "
        f"{number(first['seconds'])} to {number(last['seconds'])} (mean over {plural(tasks, 'task')})."
    )
