"""Usage of a method that finds its own budget: by task, and by the values of one option."""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from kvlab.atlas.figures.simple import budgets as simple
from kvlab.common.formatting import prompts
from kvlab.views.base.caption import with_simple
from kvlab.views.base.lines import interval_bars
from kvlab.views.base.palette import HUES, SURFACES, Theme, method_style, mix, pick
from kvlab.views.base.template import finish
from kvlab.views.base.words import number, percent, plural, shown_of, with_spaces
from kvlab.views.scores import TASK_HUES, TASK_MARKERS, line_text, sample_note

MEASURES = {"score": "score", "kept": "tokens kept", "seconds": "seconds per prompt"}
MOST_TASKS = len(TASK_HUES)


def usage_by_task(frame: pd.DataFrame, means: pd.DataFrame, theme: Theme = "light") -> go.Figure:
    """Share of the tokens kept, one box per task over its prompts; columns task, kept (one row per prompt).

    `means` has one row per task: the mean of kept with its interval.
    """
    words = {line["task"]: line_text(line, "kept", percent) for _, line in means.iterrows()}
    figure = go.Figure()
    colour = method_style("gvote", theme).colour
    for name, group in frame.groupby("task", sort=False):
        task = with_spaces(str(name))
        q = group["kept"].quantile([0.05, 0.25, 0.5, 0.75, 0.95])
        figure.add_box(
            x=[task],
            q1=[q[0.25]],
            median=[q[0.5]],
            q3=[q[0.75]],
            lowerfence=[q[0.05]],
            upperfence=[q[0.95]],
            name=task,
            line={"color": colour, "width": 1.6},
            fillcolor=mix(colour, SURFACES[theme], 0.7),
        )
        figure.add_scatter(
            x=[task],
            y=[group["kept"].mean()],
            mode="markers",
            showlegend=False,
            marker={"symbol": "star-diamond", "size": 11, "color": pick(HUES["ink"], theme)},
            hovertemplate=f"{task}: mean {words[name]}<extra></extra>",
        )
    finish(
        figure,
        title="Share of the tokens kept",
        x="box: quartiles and 5 to 95 % of the prompts; mark: mean",
        y="tokens kept",
        theme=theme,
        height=400,
        legend=False,
    )
    return figure.update_yaxes(tickformat=".3~p", rangemode="tozero")


@with_simple(simple.usage_by_task)
def caption_usage_by_task(means: pd.DataFrame) -> str:
    """Smallest and largest task mean."""
    low = means.loc[means["kept"].idxmin()]
    high = means.loc[means["kept"].idxmax()]
    least, most = (line_text(line, "kept", percent) for line in (low, high))
    if len(means) == 1:
        return f"{least} of the tokens are kept on average."
    return (
        f"On average {least} of the tokens are kept in {with_spaces(low['task'])}, {most} in "
        f"{with_spaces(high['task'])}, the least and the most of "
        f"{plural(len(means), 'task')} and {prompts(int(means['prompts'].sum()))}."
    )


def option_sweep(frame: pd.DataFrame, option: str, theme: Theme = "light") -> go.Figure:
    """Score, tokens kept and seconds by the values of one option, one line per task, with 95 % intervals.

    Columns: those of a score table with `MEASURES`, and the option's.
    """
    figure = make_subplots(1, len(MEASURES), subplot_titles=list(MEASURES.values()), horizontal_spacing=0.08)
    values = frame[option].drop_duplicates().tolist()
    for index, (task, group) in enumerate(list(frame.groupby("task", sort=False))[:MOST_TASKS]):
        group = group.set_index(option).reindex([value for value in values if value in set(group[option])])
        colour = pick(HUES[TASK_HUES[index]], theme)
        marker = TASK_MARKERS[index]
        for column, measure in enumerate(MEASURES, 1):
            figure.add_scatter(
                x=group.index,
                y=group[measure],
                name=with_spaces(str(task)),
                legendgroup=str(task),
                showlegend=column == 1,
                mode="lines+markers",
                line={"color": colour, "width": 1.8},
                marker={"symbol": marker, "size": 7, "color": colour},
                error_y=interval_bars(group, measure),
                text=[line_text(line, measure) for _, line in group.iterrows()],
                hovertemplate=f"{task}, {option} %{{x}}: {MEASURES[measure]} %{{text}}<extra></extra>",
                row=1,
                col=column,
            )
    name = option.replace("_", " ")
    axis = f"{name} ({sample_note(frame)})"
    finish(figure, title=f"Effect of {name}", x=axis, y="", theme=theme, height=420)
    figure.update_xaxes(type="category", categoryarray=values).update_yaxes(rangemode="tozero")
    figure.update_yaxes(tickformat=".3~p", col=2)
    figure.update_annotations(font={"size": 13})
    return figure.update_layout(margin={"t": 118}, legend={"y": 1.12})


@with_simple(simple.option_sweep)
def caption_option_sweep(means: pd.DataFrame, option: str) -> str:
    """First against last value; `means` over the tasks has one row per value, in order."""
    first = means.iloc[0]
    last = means.iloc[-1]
    shows: dict[str, Callable[[float], str]] = {"score": number, "kept": percent, "seconds": number}
    changes = [
        f"{words} {line_text(first, measure, shows[measure])} to {line_text(last, measure, shows[measure])}"
        for measure, words in MEASURES.items()
    ]
    return (
        f"From {with_spaces(option)} {first[option]} to {last[option]}, means over {plural(first['tasks'], 'task')}: "
        f"{'; '.join(changes)}.{shown_of(MOST_TASKS, int(first['tasks']), 'task', 'the first')}"
    )
