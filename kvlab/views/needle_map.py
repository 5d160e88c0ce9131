"""Needle in a haystack: score by length and depth, and the fate of the needle's tokens."""

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from kvlab.views.base.lines import add_points, hatch
from kvlab.views.base.palette import FATES, HUES, SEQUENTIAL, STATE_COLOURS, SURFACES, Theme, pick
from kvlab.views.base.template import QUIET, colour_bar, finish
from kvlab.views.base.words import contrast, often, part, percent
from kvlab.views.scores import line_text

COLUMNS = 3
COLUMN_FATES = {"hidden_own": "kept", "hidden_merged": "merged", "gone": "dropped"}
WORDS = {"hidden_own": "own slot", "hidden_merged": "merged slot", "gone": "dropped"}


def needle_map(frame: pd.DataFrame, theme: Theme = "light") -> go.Figure:
    """A panel per method and budget: mean retrieval score by length (columns) and depth (rows).

    `frame` has columns row (method and budget), length, depth, score with its interval, prompts.
    """
    names = frame["row"].drop_duplicates().tolist()
    rows = -(-len(names) // COLUMNS)
    figure = make_subplots(
        rows,
        min(COLUMNS, len(names)),
        subplot_titles=names,
        shared_yaxes=True,
        horizontal_spacing=0.03,
        vertical_spacing=0.24 / rows,
    )
    for place, name in enumerate(names):
        here = frame[frame["row"] == name]
        words = here.assign(words=[line_text(line) for _, line in here.iterrows()])
        table = here.pivot(index="depth", columns="length", values="score")
        figure.add_heatmap(
            z=table.to_numpy(np.float32),
            x=[f"{length:,}" for length in table.columns],
            y=[percent(depth) for depth in table.index],
            coloraxis="coloraxis",
            xgap=2,
            ygap=2,
            customdata=words.pivot(index="depth", columns="length", values="words").to_numpy(),
            hovertemplate=f"{name}<br>%{{x}} tokens, depth %{{y}}<br>score %{{customdata}}<extra></extra>",
            row=place // COLUMNS + 1,
            col=place % COLUMNS + 1,
        )
    title = "Needle retrieval by length and depth"
    finish(figure, title=title, x="", y="", theme=theme, height=130 + 210 * rows, legend=False)
    figure.update_yaxes(autorange="reversed", showgrid=False, type="category").update_yaxes(title_text="depth", col=1)
    figure.update_xaxes(showgrid=False, type="category").update_xaxes(title_text="prompt (tokens)", row=rows)
    figure.update_annotations(font={"size": 12, "color": QUIET[theme]})
    bar = colour_bar("mean score", theme)
    figure.update_coloraxes(cmin=0, cmax=1, colorscale=SEQUENTIAL[theme], colorbar=bar)
    return figure.update_layout(margin_t=76)


def caption_needle_map(frame: pd.DataFrame, means: pd.DataFrame) -> str:
    """Who finds the needle best and worst."""
    scores = means.set_index("row")["score"]
    how = often(float(scores.iloc[0])) if len(scores) else ""
    return contrast(
        scores,
        "On average, the hidden fact is found best with {most}, and worst with {least}.",
        f"All methods alike: the hidden fact is {how} found.",
        f"With {{only}}, the hidden fact is {how} found.",
    )


def needle_fates(frame: pd.DataFrame, theme: Theme = "light") -> go.Figure:
    """A bar per method and budget with the fates of the needle's tokens at the end of the answer; a mark for the score.

    `frame` has columns row, hidden_own, hidden_merged, held (both), gone, score (with intervals), and prompts.
    """
    figure = go.Figure()
    for column, fate in COLUMN_FATES.items():
        name, (_, state, pattern) = WORDS[column], FATES[fate]
        colour = pick(STATE_COLOURS[state], theme)
        figure.add_bar(
            x=frame[column],
            y=frame["row"],
            orientation="h",
            name=name,
            marker={"color": colour, "pattern": hatch(pattern, colour, theme, pale=0.5)},
            customdata=[line_text(line, column, percent) for _, line in frame.iterrows()],
            hovertemplate=f"%{{y}}: %{{customdata}} {name}<extra></extra>",
        )
    add_points(
        figure,
        frame["score"],
        frame["row"],
        "score",
        pick(HUES["ink"], theme),
        "%{y}: score %{customdata}",
        size=11,
        marker_symbol="diamond",
        marker_line={"width": 1.5, "color": SURFACES[theme]},
        customdata=[line_text(line) for _, line in frame.iterrows()],
    )
    title = "Fate of the needle's tokens"
    finish(figure, title=title, x="share of the needle's tokens, and score", y="", theme=theme)
    figure.update_layout(barmode="stack", height=150 + 34 * len(frame))
    return figure.update_xaxes(range=[0, 1.03], tickformat=".0%").update_yaxes(autorange="reversed", showgrid=False)


def caption_needle_fates(frame: pd.DataFrame) -> str:
    """Who holds most and least of the needle."""
    held = frame.set_index("row")["held"]
    share = part(float(held.iloc[0])) if len(held) else ""
    return contrast(
        held,
        "The largest part of the hidden fact is still held by {most}, the smallest by {least}.",
        f"Every method still holds {share} of the hidden fact.",
        f"{{only}} still holds {share} of the hidden fact.",
    )
