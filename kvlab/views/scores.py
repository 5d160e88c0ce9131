"""Evaluation scores against the budget, against a method's option, and as a table of tasks.

Every frame is a score table: one row per task, arm and budget with columns task, arm, method, asked, kept, score,
score_low, score_high (and difference to the full cache) and prompts. Means over tasks come in a separate frame `means`
without the column task, because their intervals need the prompts.
"""

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from kvlab.common.formatting import ONE_PROMPT, Show, mean_words, range_words
from kvlab.core.choice import FULL
from kvlab.views.base import words
from kvlab.views.base.head_map import cell_text
from kvlab.views.base.lines import interval_bars
from kvlab.views.base.palette import DIVERGING, HUES, Style, Theme, pick, run_styles
from kvlab.views.base.template import QUIET, colour_bar, finish, legend_room

MOST_PANELS = 9
MOST_ON_ONE_LINE = 5  # tasks; with more, the interval goes on a second line
TASK_HUES = ("blue", "orange", "green", "purple", "red", "sky", "gold", "ink")
TASK_MARKERS = ("circle", "square", "diamond", "cross", "x", "triangle-up", "star", "hexagon")


def score_against_budget(frame: pd.DataFrame, theme: Theme = "light", title: str = "Score by budget") -> go.Figure:
    """A panel per task: score with 95 % interval against the share of tokens kept; the full cache is a line."""
    tasks = frame["task"].drop_duplicates().tolist()[:MOST_PANELS]
    columns = min(3, len(tasks))
    figure = _panels([words.with_spaces(task) for task in tasks], columns)
    pairs = frame[["arm", "method"]].drop_duplicates().itertuples(index=False)
    settled = ((str(arm), str(words.composition(str(arm)).get("settle", method))) for arm, method in pairs)
    styles = run_styles(settled, theme)
    for place, task in enumerate(tasks):
        cell = {"row": place // columns + 1, "col": place % columns + 1}
        here = frame[frame["task"] == task]
        for arm, group in here[here["method"] != FULL.method].groupby("arm", sort=False):
            group = group.sort_values("kept")
            figure.add_scatter(**_line(group, words.arm_text(str(arm)), styles[str(arm)], "kept"), **cell)
        full = here[here["method"] == FULL.method]
        if len(full):
            figure.add_scatter(
                x=[0, 1],
                y=[full["score"].iloc[0]] * 2,
                name="full cache",
                legendgroup="full cache",
                mode="lines",
                line={"color": pick(HUES["ink"], theme), "dash": "dash", "width": 1.4},
                hovertemplate=f"full cache: {line_text(full.iloc[0])}<extra></extra>",
                **cell,
            )
    rows = -(-len(tasks) // columns)
    finish(figure, title=title, x="", y="", theme=theme, height=110 + 230 * rows + legend_room(figure))
    figure.update_xaxes(tickformat=".3~p", rangemode="tozero")
    figure.update_xaxes(title_text="tokens kept", row=rows)
    return _finish_panels(figure, frame, theme)


def caption_score_against_budget(means: pd.DataFrame, panel: str = "task") -> str:
    """Who scores highest and lowest on average; an average over budgets where all fail ranks nobody."""
    few = words.shown_of(MOST_PANELS, int(means["tasks"].max()), panel, "the first")
    if means["score"].round(9).nunique() > 1:
        best = means.loc[means["score"].idxmax()]
        full = best["score"] - best["difference"]
        if best["score"] < full / 3:
            return (
                f"All methods fail here: none reaches a third of the full cache's {words.number(full)} on average, "
                f"the highest {line_text(best)}.{few}"
            )
    names = [f"{words.arm_text(str(row['arm']))} at {line_text(row)}" for _, row in means.iterrows()]
    sentence = words.contrast(
        means["score"].round(9).set_axis(names),
        "On average, the score is highest with {most}, and lowest with {least}.",
        f"On average, all score the same: {line_text(means.iloc[0])}.",
        "Only {only} was measured.",
    )
    return f"{sentence}{few}"


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
                line = _line(group, words.with_spaces(task), style, "place") | {"customdata": group[option]}
                line["hovertemplate"] = (
                    f"{words.with_spaces(task)}, {words.with_spaces(option)} %{{customdata}}: %{{text}}<extra></extra>"
                )
                figure.add_scatter(**line, **cell)
    rows = -(-len(budgets) // columns)
    height = 130 + 240 * rows + legend_room(figure)
    finish(figure, title=title or f"Score by {words.with_spaces(option)}", x="", y="", theme=theme, height=height)
    ends = [-0.5, len(values) - 0.5]
    figure.update_xaxes(tickvals=list(range(len(values))), ticktext=values, range=ends, zeroline=False)
    figure.update_xaxes(title_text=words.with_spaces(option), row=rows)
    return _finish_panels(figure, frame, theme)


def caption_score_by_option(means: pd.DataFrame, option: str) -> str:
    """Whether one value of the option is best in every budget."""
    if not means["score"].notna().any():
        return words.NOT_RECORDED
    top = means.loc[means["score"].idxmax()]
    highest = line_text(top)
    best = []
    few = words.shown_of(MOST_PANELS, means["asked"].nunique(), "budget", "the first")
    for _, group in means.groupby("asked", sort=False):
        values = group.set_index(option)["score"]
        best.append({value for value, score in values.items() if words.near(float(score), float(values.max()))})
    name = words.with_spaces(option)
    if all(len(tops) == means[option].nunique() for tops in best):
        text = f"The score does not depend on the {name}" if means[option].nunique() > 1 else f"One {name} is shown"
        return f"{text}: {highest}.{few}"
    common = set.intersection(*best)
    if not common:
        return f"Which {name} is best depends on the budget; the highest score is {highest} at {top['asked']}.{few}"
    where = " at every budget" if len(best) > 1 else ""
    return (
        f"The score is highest with {name} {words.join_names(sorted(common, key=str))}{where}, at most {highest}.{few}"
    )


def benchmark_table(frame: pd.DataFrame, theme: Theme = "light", title: str = "Scores") -> go.Figure:
    """Arms and budgets (rows) by tasks (columns), coloured by the difference to the full cache."""
    # By arm in order of appearance, each arm's largest budget first.
    frame = frame.iloc[np.lexsort((-frame["budget"].to_numpy(float), pd.factorize(frame["arm"])[0]))]
    frame = frame.assign(row=words.row_names)
    order = frame["row"].drop_duplicates().tolist()
    tasks = frame["task"].drop_duplicates().tolist()
    # Each column as a table of rows by tasks, all NaN if nothing of it is known.
    tables = {}
    for name in ("score", "score_low", "score_high", "difference", "prompts"):
        tables[name] = pd.DataFrame(np.nan, order, tasks)
        if frame[name].notna().any():
            wide = frame.pivot_table(index="row", columns="task", values=name, sort=False, dropna=False)
            tables[name] = wide.reindex(order)[tasks]
    score, low, high, gap, prompts = tables.values()
    bounds = np.stack([table.to_numpy(float) for table in (score, low, high)], axis=-1)
    labels = [["" if np.isnan(cell[0]) else range_words(*cell) for cell in row] for row in bounds]
    # Every scored cell needs a number for its colour; without the full cache it is 0.
    cells = gap.fillna(0).where(score.notna()).to_numpy(np.float32)
    most = float(np.nanmax(np.abs(cells), initial=0)) or 1.0
    heat = go.Heatmap(
        z=cells,
        x=[words.with_spaces(task) for task in tasks],
        y=order,
        xgap=2,
        ygap=2,
        zmin=-most,
        zmax=most,
        colorscale=DIVERGING[theme],
        text=labels,
        colorbar=colour_bar("difference to the full cache", theme),
        customdata=prompts.to_numpy(),
        hovertemplate="%{y}, %{x}: %{text}, n = %{customdata}<br>difference to the full cache %{z:.3f}<extra></extra>",
    )
    narrow = len(tasks) > MOST_ON_ONE_LINE
    written = [[word.replace(" (", "<br>(") for word in row] for row in labels] if narrow else labels
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


def caption_benchmark_table(means: pd.DataFrame) -> str:
    """The best compressed caches, and whether they reach the full one."""
    compressed = means[means["method"] != "full"]
    full = means[means["method"] == "full"]
    if not compressed["score"].notna().any():
        return "No compressed cache was measured."
    top = float(compressed["score"].max())
    best = compressed[[words.near(float(score), top) for score in compressed["score"]]]
    names = words.row_names(best)
    who = "all alike" if len(best) == len(compressed) > 1 else words.join_names(names)
    who = f"{who} at {line_text(best.iloc[0])}"
    if full.empty:
        return f"Best of the compressed caches on average: {who}."
    how = words.comparison_words(
        top, float(full["score"].max()), "a higher score than", "a lower score than", "the score of", 1e-6
    )
    return f"Best of the compressed caches on average: {who}, with {how} the full cache."


def line_text(line: pd.Series, name: str = "score", show: Show = words.number) -> str:
    """One measure of a score table's line, with interval and n."""
    return mean_words(line[name], line[f"{name}_low"], line[f"{name}_high"], int(line["prompts"]), show)


def sample_note(frame: pd.DataFrame) -> str:
    """Axis note on intervals and sample size, such as `95 %, n = 8 to 20`."""
    least = int(frame["prompts"].min())
    most = int(frame["prompts"].max())
    if most == 1:
        return ONE_PROMPT
    return f"95 %, n = {least:,}" + (f" to {most:,}" if most > least else "")


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
    """The axis of scores, and each name once in the legend."""
    names = [trace.name for trace in figure.data]
    for place, trace in enumerate(figure.data):
        trace.showlegend = trace.name not in names[:place]
    figure.update_yaxes(rangemode="tozero").update_yaxes(title_text=f"score ({sample_note(frame)})", col=1)
    figure.update_annotations(font={"size": 12, "color": QUIET[theme]})
    return figure.update_layout(margin_t=110, legend_y=1.09, legend_yanchor="bottom")
