"""Evaluation scores against the budget, against a method's option, and as a table of tasks.

Every frame is a score table: one row per task, arm and budget with columns task, arm, method, asked, kept, score,
score_low, score_high (and difference to the full cache) and prompts. Means over tasks come in a separate frame `means`
without the column task, because their intervals need the prompts.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from kvlab.common.formatting import ONE_PROMPT, Show, mean_words, range_words
from kvlab.core.choice import FULL
from kvlab.figures.simple import scores as simple
from kvlab.views.base.arm_names import arm_text, composition, row_names
from kvlab.views.base.caption import with_simple
from kvlab.views.base.cells import cell_text
from kvlab.views.base.lines import interval_bars
from kvlab.views.base.palette import DIVERGING, HUES, Style, Theme, pick, run_styles
from kvlab.views.base.template import QUIET, colour_bar, finish, legend_room
from kvlab.views.base.words import number, percent, plural, shown_of, with_spaces

MOST_PANELS = 9
MOST_ON_ONE_LINE = 5  # tasks; with more, the interval goes on a second line
TASK_HUES = ("blue", "orange", "green", "purple", "red", "sky", "gold", "ink")
TASK_MARKERS = ("circle", "square", "diamond", "cross", "x", "triangle-up", "star", "hexagon")


def score_against_budget(frame: pd.DataFrame, theme: Theme = "light", title: str = "Score by budget") -> go.Figure:
    """A panel per task: score with 95 % interval against the share of tokens kept; the full cache is a line."""
    tasks = frame["task"].drop_duplicates().tolist()[:MOST_PANELS]
    columns = min(3, len(tasks))
    figure = _panels([with_spaces(task) for task in tasks], columns)
    styles = _arm_styles(frame, theme)
    for place, task in enumerate(tasks):
        cell = {"row": place // columns + 1, "col": place % columns + 1}
        here = frame[frame["task"] == task]
        for arm, group in here[here["method"] != FULL.method].groupby("arm", sort=False):
            group = group.sort_values("kept")
            figure.add_scatter(**_line(group, arm_text(str(arm)), styles[str(arm)], "kept"), **cell)
        _full_line(figure, here, theme, cell)
    _show_each_name_once(figure)
    rows = -(-len(tasks) // columns)
    finish(figure, title=title, x="", y="", theme=theme, height=110 + 230 * rows + legend_room(figure))
    figure.update_xaxes(tickformat=".3~p", rangemode="tozero")
    figure.update_xaxes(title_text="tokens kept", row=rows)
    return _finish_panels(figure, frame, theme)


@with_simple(simple.score_against_budget)
def caption_score_against_budget(means: pd.DataFrame, panel: str = "task") -> str:
    """The best arm with its difference to the full cache, and the worst, where all were evaluated.

    `means` has one row per arm; `panel` names what its column tasks counts.
    """
    means = means.set_index("arm").sort_values("score", ascending=False, kind="stable")
    scored = means["score"].round(9)
    best = means.iloc[0]
    worst = means.iloc[-1]
    over = f"on average over {plural(best['tasks'], panel)}"
    gap = "" if pd.isna(best["difference"]) else f", {line_text(best, 'difference')} against the full cache"
    top, low = ([arm_text(str(arm)) for arm in means.index[scored == edge]] for edge in (scored.max(), scored.min()))
    few = shown_of(MOST_PANELS, int(best["tasks"]), panel, "the first")
    if len(top) == len(means) > 1:
        return f"All {len(means)} score the same {over}: {line_text(best)}{gap}.{few}"
    first = f"{_named(top)} {'scores' if len(top) == 1 else 'score'} {line_text(best)} {over}{gap}"
    last = f"; {_named(low)} {'is' if len(low) == 1 else 'are'} last with {line_text(worst)}"
    return f"{first}{last if len(means) > 1 else ''}.{few}"


def score_by_option(frame: pd.DataFrame, option: str, theme: Theme = "light", title: str = "") -> go.Figure:
    """A panel per budget: score with 95 % interval by the values of one option (a column), one line per task."""
    budgets = frame["asked"].drop_duplicates().tolist()[:MOST_PANELS]
    columns = min(3, len(budgets))
    figure = _panels([f"budget {budget}" for budget in budgets], columns)
    tasks, values = (frame[name].drop_duplicates().tolist() for name in ("task", option))
    for place, budget in enumerate(budgets):
        cell = {"row": place // columns + 1, "col": place % columns + 1}
        here = frame[frame["asked"] == budget]
        for index, task in enumerate(tasks):
            hue = TASK_HUES[index % len(TASK_HUES)]
            marker = TASK_MARKERS[index % len(TASK_MARKERS)]
            style = Style(pick(HUES[hue], theme), marker, "solid" if index < len(TASK_HUES) else "dash")
            group = here[here["task"] == task]
            if len(group):
                # Side by side, so that equal scores do not overlap.
                aside = (index - (len(tasks) - 1) / 2) * min(0.08, 0.4 / len(tasks))
                group = group.assign(place=group[option].map(values.index) + aside)
                line = _line(group, with_spaces(task), style, "place") | {"customdata": group[option]}
                line["hovertemplate"] = (
                    f"{with_spaces(task)}, {with_spaces(option)} %{{customdata}}: %{{text}}<extra></extra>"
                )
                figure.add_scatter(**line, **cell)
    _show_each_name_once(figure)
    rows = -(-len(budgets) // columns)
    height = 130 + 240 * rows + legend_room(figure)
    finish(figure, title=title or f"Score by {with_spaces(option)}", x="", y="", theme=theme, height=height)
    ends = [-0.5, len(values) - 0.5]
    figure.update_xaxes(tickvals=list(range(len(values))), ticktext=values, range=ends, zeroline=False)
    figure.update_xaxes(title_text=with_spaces(option), row=rows)
    return _finish_panels(figure, frame, theme)


@with_simple(simple.score_by_option)
def caption_score_by_option(means: pd.DataFrame, option: str) -> str:
    """The best values of the option in each budget; `means` has one row per requested budget and value."""
    parts = []
    for asked, group in means.groupby("asked", sort=False):
        top = group[group["score"].round(9) == group["score"].round(9).max()]
        best = top[option].astype(str).tolist()
        who = "every value alike" if len(best) == len(group) > 1 else _named(best)
        parts.append(f"{line_text(top.iloc[0])} with {who} at {asked}")
    few = shown_of(MOST_PANELS, len(parts), "budget", "the first")
    return f"Best mean score over {plural(means['tasks'].max(), 'task')}: {', '.join(parts)}.{few}"


def benchmark_table(frame: pd.DataFrame, theme: Theme = "light", title: str = "Scores") -> go.Figure:
    """Arms and budgets (rows) by tasks (columns), coloured by the difference to the full cache."""
    # By arm in order of appearance, each arm's largest budget first.
    frame = frame.iloc[np.lexsort((-frame["budget"].to_numpy(float), pd.factorize(frame["arm"])[0]))]
    frame = frame.assign(row=row_names)
    order = frame["row"].drop_duplicates().tolist()
    tasks = frame["task"].drop_duplicates().tolist()
    names = ("score", "score_low", "score_high", "difference")
    score, low, high, gap = (_by_cell(frame, name, order, tasks) for name in names)
    bounds = np.stack([table.to_numpy(float) for table in (score, low, high)], axis=-1)
    words = [["" if np.isnan(cell[0]) else range_words(*cell) for cell in row] for row in bounds]
    # Every scored cell needs a number for its colour; without the full cache it is 0.
    cells = gap.fillna(0).where(score.notna()).to_numpy(np.float32)
    most = float(np.nanmax(np.abs(cells), initial=0)) or 1.0
    heat = go.Heatmap(
        z=cells,
        x=[with_spaces(task) for task in tasks],
        y=order,
        xgap=2,
        ygap=2,
        zmin=-most,
        zmax=most,
        colorscale=DIVERGING[theme],
        text=words,
        colorbar=colour_bar("difference to the full cache", theme),
        customdata=_by_cell(frame, "prompts", order, tasks).to_numpy(),
        hovertemplate="%{y}, %{x}: %{text}, n = %{customdata}<br>difference to the full cache %{z:.3f}<extra></extra>",
    )
    narrow = len(tasks) > MOST_ON_ONE_LINE
    written = [[word.replace(" (", "<br>(") for word in row] for row in words] if narrow else words
    figure = finish(
        go.Figure([heat, cell_text(heat, written, 10 if narrow else 11)]),
        title=title,
        y="method and budget",
        x=f"task (in the cells: score, {sample_note(frame)})",
        theme=theme,
        legend=False,
        height=150 + (40 if narrow else 34) * len(order),
    )
    return figure.update_yaxes(autorange="reversed", showgrid=False).update_xaxes(showgrid=False)


@with_simple(simple.benchmark_table)
def caption_benchmark_table(means: pd.DataFrame) -> str:
    """The best compressed row by its mean over the tasks, and the share of tokens it kept; `means` has all rows."""
    means = means.assign(row=row_names).sort_values("score", ascending=False, kind="stable")
    compressed = means[means["method"] != FULL.method]
    full = means[means["method"] == FULL.method]
    top = compressed.iloc[0]
    beside = f"; full cache: {line_text(full.iloc[0])}" if len(full) else ""
    over = plural(top["tasks"], "task")
    equal = int((compressed["score"].round(9) == round(top["score"], 9)).sum())
    if equal == len(compressed) > 1:
        return f"All {equal} compressed rows score the same on average over {over}: {line_text(top)}{beside}."
    if equal > 1:
        return f"{equal} rows share the best mean over {over}: {line_text(top)}{beside}."
    kept = f"keeping {line_text(top, 'kept', percent)} of the tokens"
    return f"{top['row']} has the best mean over {over}: {line_text(top)}, {kept}{beside}."


def line_text(line: pd.Series, name: str = "score", show: Show = number) -> str:
    """One measure of a score table's line, with interval and n."""
    return mean_words(line[name], line[f"{name}_low"], line[f"{name}_high"], int(line["prompts"]), show)


def sample_note(frame: pd.DataFrame) -> str:
    """Axis note on intervals and sample size, such as `95 %, n = 8 to 20`."""
    least = int(frame["prompts"].min())
    most = int(frame["prompts"].max())
    if most == 1:
        return ONE_PROMPT
    return f"95 %, n = {least:,}" + (f" to {most:,}" if most > least else "")


def _named(names: list[str], most: int = 3) -> str:
    if len(names) > most:
        return f"{len(names)} of them"
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _line(group: pd.DataFrame, name: str, style: Style, x: str) -> dict[str, object]:
    return {
        "x": group[x],
        "y": group["score"],
        "name": name,
        "legendgroup": name,
        "mode": "lines+markers",
        "line": {"color": style.colour, "dash": style.dash, "width": 1.8},
        "cliponaxis": False,
        "marker": {"symbol": style.marker, "size": 8, "color": style.colour},
        "error_y": interval_bars(group),
        "customdata": group["asked"],
        "text": [line_text(line) for _, line in group.iterrows()],
        "hovertemplate": f"{name}, budget %{{customdata}}: %{{text}}<extra></extra>",
    }


def _full_line(figure: go.Figure, frame: pd.DataFrame, theme: Theme, cell: dict[str, int]) -> None:
    full = frame[frame["method"] == FULL.method]
    if len(full):
        line = {"color": pick(HUES["ink"], theme), "dash": "dash", "width": 1.4}
        figure.add_scatter(
            x=[0, 1],
            y=[full["score"].iloc[0]] * 2,
            name="full cache",
            legendgroup="full cache",
            mode="lines",
            line=line,
            hovertemplate=f"full cache: {line_text(full.iloc[0])}<extra></extra>",
            **cell,
        )


def _panels(titles: list[str], columns: int) -> go.Figure:
    rows = -(-len(titles) // columns)
    return make_subplots(
        rows,
        columns,
        shared_yaxes=False,
        subplot_titles=titles,
        horizontal_spacing=0.07,
        vertical_spacing=0.26 / max(rows, 1),
    )


def _finish_panels(figure: go.Figure, frame: pd.DataFrame, theme: Theme) -> go.Figure:
    figure.update_yaxes(rangemode="tozero").update_yaxes(title_text=f"score ({sample_note(frame)})", col=1)
    figure.update_annotations(font={"size": 12, "color": QUIET[theme]})
    return figure.update_layout(margin_t=110, legend_y=1.09, legend_yanchor="bottom")


def _show_each_name_once(figure: go.Figure) -> None:
    seen: set[str] = set()
    for trace in figure.data:
        trace.showlegend = trace.name not in seen
        seen.add(trace.name)


def _arm_styles(frame: pd.DataFrame, theme: Theme) -> dict[str, Style]:
    pairs = frame[["arm", "method"]].drop_duplicates().itertuples(index=False)
    return run_styles(((str(arm), str(composition(str(arm)).get("settle", method))) for arm, method in pairs), theme)


def _by_cell(frame: pd.DataFrame, name: str, rows: list[str], tasks: list[str]) -> pd.DataFrame:
    """One column of the frame as a rows x tasks table; all NaN if nothing is known."""
    if not frame[name].notna().any():
        return pd.DataFrame(np.nan, rows, tasks)
    return frame.pivot_table(index="row", columns="task", values=name, sort=False, dropna=False).reindex(rows)[tasks]
