"""Evaluation results: ranks with ties, scores against bytes with the Pareto frontier, and scores next to a paper's."""

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from kvlab.core.choice import FULL
from kvlab.views.base import words
from kvlab.views.base.head_map import cell_text
from kvlab.views.base.lines import interval_bars
from kvlab.views.base.palette import HUES, SEQUENTIAL_STOPS, Theme, pick, run_styles
from kvlab.views.base.template import colour_bar, finish, legend_room
from kvlab.views.frames.trade_off import HELD
from kvlab.views.scores import line_text, sample_note

LEVEL = "level with the best"
MOST_WITH_SCORES = 8  # tasks; with more, cells show the rank only


def rank_table(frame: pd.DataFrame, theme: Theme = "light") -> go.Figure:
    """Methods by tasks; each cell shows rank and score, `=` for shared ranks, bold if level with the best.

    The colour is the rank's, darkest for the first: scores of tasks have no common scale, nor direction.

    From `kvlab.results.quality_tables.ranks`; its `attrs` may have the `budget`. A mark's customdata is (task, arm).
    """
    tasks = frame["task"].drop_duplicates().tolist()
    arms = frame["arm"].drop_duplicates().tolist()
    shared = frame.groupby(["task", "rank"])["arm"].transform("size") > 1
    few = len(tasks) <= MOST_WITH_SCORES
    written = []
    hover = []
    for (_, line), same in zip(frame.iterrows(), shared, strict=True):
        rank = f"{int(line['rank'])}{'=' if same else ''}"
        text = f"{rank} · {words.number(line['score'])}" if few else rank
        written.append(f"<b>{text}</b>" if line["level"] else text)
        stands = LEVEL if line["level"] else f"behind the best by {line_text(line, 'behind')}"
        hover.append(f"rank {int(line['rank'])}, score {line_text(line)}, {stands}")
    by_cell = frame.assign(words=written, hover=hover).set_index(["arm", "task"])
    table = {
        name: [[by_cell[name].get((arm, task), default) for task in tasks] for arm in arms]
        for name, default in (("rank", np.nan), ("words", ""), ("hover", "not evaluated"))
    }
    x = [words.with_spaces(task) for task in tasks]
    y = [words.arm_text(arm) for arm in arms]
    last = max(2, len(arms))
    ticks = sorted({1, (1 + last) // 2, last})
    heat = go.Heatmap(
        z=-np.asarray(table["rank"], np.float32),
        x=x,
        y=y,
        xgap=2,
        ygap=2,
        zmin=-last,
        zmax=-1,
        colorscale=SEQUENTIAL_STOPS[theme],
        colorbar=colour_bar("rank", theme)
        | {"tickvals": [-rank for rank in ticks], "ticktext": [str(rank) for rank in ticks]},
        customdata=table["hover"],
        hovertemplate="%{y}, %{x}: %{customdata}<extra></extra>",
    )
    texts = cell_text(heat, table["words"])
    marks = go.Scatter(
        x=[words.with_spaces(task) for task in frame["task"]],
        y=[words.arm_text(arm) for arm in frame["arm"]],
        mode="markers",
        marker={"size": 26, "opacity": 0.0},
        customdata=frame[["task", "arm"]].to_numpy().tolist(),
        hoverinfo="none",
        showlegend=False,
    )
    title = f"Ranks at {frame.attrs['budget']}" if "budget" in frame.attrs else "Ranks"
    height = 150 + 46 * len(arms)
    across = f"task (rank{', score' if few else ''}, {sample_note(frame)}; bold: {LEVEL})"
    figure = finish(
        go.Figure([heat, texts, marks]), title=title, x=across, y="method", theme=theme, legend=False, height=height
    )
    return figure.update_yaxes(range=[len(arms) - 0.5, -0.5], showgrid=False).update_xaxes(showgrid=False)


def caption_rank_table(frame: pd.DataFrame) -> str:
    """Who is level with the best in every task."""
    if len(frame) and not frame["score"].fillna(1).any():
        return "Every method scores 0 in every task."
    level = frame.groupby("arm", sort=False)["level"].all()
    names = [words.arm_text(str(arm)) for arm in level.index[level]]
    if not names:
        return "No method is as good as the best in every task."
    if len(names) == len(level):
        return (
            "No method is clearly worse than the best in any task." if len(names) > 1 else "Only one method is shown."
        )
    return f"As good as the best in every task, as far as these prompts can tell: {words.join_names(names)}."


def score_against_bytes(
    frame: pd.DataFrame, theme: Theme = "light", title: str = "Score by bytes", axis: str = HELD
) -> go.Figure:
    """Mean score with 95 % interval against bytes per prompt, one line per arm, with the Pareto frontier.

    From `kvlab.results.quality_tables.by_bytes` with the same `axis`: bytes held, or read by a decode step.
    """
    frame = frame.assign(live_bytes=frame[axis])
    factor, unit = words.byte_unit(float(frame["live_bytes"].max()))
    pairs = frame[["arm", "method"]].drop_duplicates().itertuples(index=False)
    styles = run_styles(((str(arm), str(method)) for arm, method in pairs), theme)
    figure = go.Figure()
    best = frame[frame["frontier"]].sort_values("live_bytes")
    figure.add_scatter(
        x=best["live_bytes"] / factor,
        y=best["score"],
        mode="lines",
        name="Pareto frontier",
        line={"color": pick(HUES["grey"], theme), "width": 6, "shape": "hv"},
        opacity=0.5,
        hoverinfo="skip",
    )
    for arm, group in frame.groupby("arm", sort=False):
        group = group.sort_values("live_bytes")
        style = styles[str(arm)]
        name = "full cache" if group["method"].iloc[0] == FULL.method else words.arm_text(str(arm))
        edge = pick(HUES["ink"], theme)
        figure.add_scatter(
            x=group["live_bytes"] / factor,
            y=group["score"],
            mode="lines+markers",
            name=name,
            line={"color": style.colour, "dash": style.dash, "width": 1.8},
            cliponaxis=False,
            marker={
                "symbol": style.marker,
                "size": [11 if on else 8 for on in group["frontier"]],
                "color": style.colour,
                "line": {"width": [2 if on else 0 for on in group["frontier"]], "color": edge},
            },
            error_y=interval_bars(group),
            customdata=[
                f"{line['asked']}: score {line_text(line)}, {words.byte_size(line['live_bytes'])}"
                for _, line in group.iterrows()
            ],
            hovertemplate=f"{name}, %{{customdata}}<extra></extra>",
        )
    y = f"mean score ({sample_note(frame)})"
    finish(
        figure,
        title=title,
        x=f"{words.AXES[axis]} per prompt ({unit})",
        y=y,
        theme=theme,
        height=430 + legend_room(figure),
    )
    return figure.update_xaxes(rangemode="tozero").update_yaxes(rangemode="tozero")


def caption_score_against_bytes(frame: pd.DataFrame, axis: str = HELD) -> str:
    """Who is not beaten in both score and memory."""
    names = list(
        dict.fromkeys(
            "the full cache" if line.method == "full" else f"{words.arm_text(str(line.arm))} {line.asked}"
            for line in frame[frame["frontier"]].sort_values(axis).itertuples()
        )
    )
    if not names:
        return words.NOT_RECORDED
    if frame["frontier"].all():
        return "No one is beaten in both score and memory by another."
    return f"Not beaten in both score and memory by another: {words.join_names(names)}."


OURS = ("dataset", "metric", "method", "budget", "ours", "ours_low", "ours_high", "prompts", "scored")


def ours_beside_theirs(
    frame: pd.DataFrame, theme: Theme = "light", title: str = "Measured and published scores"
) -> go.Figure:
    """Scores by dataset: filled marks with 95 % intervals are ours, open ones those of the paper's first model.

    `frame` has the columns `OURS` and one per model of the paper, from `kvlab.papers.paper_tables.compare_scores`.
    """
    theirs = [str(name) for name in frame if name not in OURS][:1]
    arms = frame["method"].drop_duplicates().tolist()
    styles = run_styles([(arm, arm.split(":")[0]) for arm in arms], theme)
    figure = go.Figure()
    for arm in arms:
        group = frame[frame["method"] == arm]
        metric = group["metric"].where(group["metric"] != "its own", "")
        columns = zip(group["dataset"], metric, group["budget"], strict=True)
        across = [" ".join(filter(None, names)) for names in columns]
        look = {"color": styles[arm].colour, "size": 9}
        figure.add_scatter(
            x=across,
            y=group["ours"],
            mode="markers",
            name=arm,
            marker=look,
            legendgroup=arm,
            error_y=interval_bars(group, "ours"),
            hovertemplate=f"{arm}, %{{x}}: ours %{{y:.3g}}<extra></extra>",
        )
        for model in theirs:
            figure.add_scatter(
                x=across,
                y=group[model],
                mode="markers",
                name=f"{arm}, {model}",
                legendgroup=arm,
                showlegend=False,
                marker={**look, "symbol": "circle-open", "line": {"width": 2}},
                hovertemplate=f"{arm}, %{{x}}: {model} %{{y:.3g}}<extra></extra>",
            )
    x = f"dataset and budget (filled: ours; open: the paper's {theirs[0]})" if theirs else "dataset and budget"
    return finish(figure, title=title, x=x, y="score", theme=theme, height=460)


def caption_ours_beside_theirs(frame: pd.DataFrame) -> str:
    """In how many of the measured cells the paper's value is within our interval."""
    theirs = [str(name) for name in frame if name not in OURS]
    if not theirs:
        return "The paper prints no numbers to compare with."
    run = frame[frame["ours"].notna()]
    values = run[theirs[0]]
    if not values.notna().any():
        return "Nothing was measured that the paper prints."
    inside = int(((values >= run["ours_low"]) & (values <= run["ours_high"])).sum())
    published = words.some_of(inside, int(values.notna().sum()), "published value")
    return words.sentence(f"the 95 % interval of the measurement here holds {published}")
