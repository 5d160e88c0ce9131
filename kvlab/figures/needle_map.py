"""The needle in a haystack: what was found at each length and depth, and what became of the needle's tokens."""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from kvlab.figures.palette import HUES, MASS_COLOURS, SEQUENTIAL, SURFACES, Theme, mix, pick
from kvlab.figures.template import QUIET, colour_bar, finish
from kvlab.figures.words import number, percent, plural

COLUMNS = 3
FATES = (
    ("hidden_own", "a slot of their own", "kept", ""),
    ("hidden_merged", "in a merged slot", "merged", "x"),
    ("gone", "dropped", "regret", "/"),
)


def needle_map(frame: pd.DataFrame, theme: Theme = "light") -> go.Figure:
    """A panel a method and budget: mean retrieval score by length (across) and depth (down).

    `frame` has columns row (method and budget), length, depth, score, samples.
    """
    names = frame["row"].drop_duplicates().tolist()
    rows = -(-len(names) // COLUMNS)
    figure = make_subplots(
        rows, min(COLUMNS, len(names)), subplot_titles=names, shared_yaxes=True, horizontal_spacing=0.03,
        vertical_spacing=0.24 / rows,
    )  # fmt: skip
    for place, name in enumerate(names):
        table = frame[frame["row"] == name].pivot_table(index="depth", columns="length", values="score")
        figure.add_heatmap(
            z=table.to_numpy(np.float32),
            x=[f"{length:,}" for length in table.columns],
            y=[percent(depth) for depth in table.index],
            coloraxis="coloraxis",
            xgap=2,
            ygap=2,
            hovertemplate=f"{name}<br>%{{x}} tokens, depth %{{y}}<br>score %{{z:.2f}}<extra></extra>",
            row=place // COLUMNS + 1,
            col=place % COLUMNS + 1,
        )
    title = "Needle found, by length and depth"
    finish(figure, title=title, x="", y="", theme=theme, height=130 + 210 * rows, legend=False)
    figure.update_yaxes(autorange="reversed", showgrid=False, type="category").update_yaxes(title_text="depth", col=1)
    figure.update_xaxes(showgrid=False, type="category").update_xaxes(title_text="prompt (tokens)", row=rows)
    figure.update_annotations(font={"size": 12, "color": QUIET[theme]})
    bar = colour_bar("mean score", theme)
    figure.update_coloraxes(cmin=0, cmax=1, colorscale=SEQUENTIAL[theme], colorbar=bar)
    return figure.update_layout(margin_t=76)


def read_needle_map(frame: pd.DataFrame) -> str:
    """Mean score of each row over all cells, in words."""
    means = frame.groupby("row", sort=False)["score"].mean()
    cells = frame[["length", "depth"]].drop_duplicates()
    parts = [f"{name} {number(score, 2)}" for name, score in means.items()]
    return f"Mean score over {plural(len(cells), 'cell')} of length and depth: {', '.join(parts)}."


def needle_fates(frame: pd.DataFrame, theme: Theme = "light") -> go.Figure:
    """A bar a method and budget: what became of the needle's tokens when the answer was done; a mark: the score.

    `frame` has columns row, hidden_own, hidden_merged, gone, score, all shares.
    """
    figure = go.Figure()
    for column, name, hue, pattern in FATES:
        colour = pick(MASS_COLOURS[hue], theme)
        shape = {"shape": pattern, "size": 5, "fgcolor": colour, "bgcolor": mix(colour, SURFACES[theme], 0.5)}
        figure.add_bar(
            x=frame[column],
            y=frame["row"],
            orientation="h",
            name=name,
            marker={"color": colour, "pattern": shape if pattern else {}},
            hovertemplate=f"%{{y}}: %{{x:.1%}} {name}<extra></extra>",
        )
    figure.add_scatter(
        x=frame["score"],
        y=frame["row"],
        mode="markers",
        name="score",
        marker={
            "symbol": "diamond",
            "size": 11,
            "color": pick(HUES["ink"], theme),
            "line": {"width": 1.5, "color": SURFACES[theme]},
        },
        hovertemplate="%{y}: score %{x:.2f}<extra></extra>",
    )
    title = "What became of the needle's tokens"
    finish(figure, title=title, x="share of the needle's tokens, and score", y="", theme=theme)
    figure.update_layout(barmode="stack", height=150 + 34 * len(frame))
    return figure.update_xaxes(range=[0, 1.03], tickformat=".0%").update_yaxes(autorange="reversed", showgrid=False)


def read_needle_fates(frame: pd.DataFrame) -> str:
    """Which row keeps most of the needle and which least, in words."""
    kept = (frame["hidden_own"] + frame["hidden_merged"]).set_axis(frame["row"])
    return (
        f"Mean over layers, heads and prompts: {kept.idxmax()} still holds {percent(kept.max())} of the needle's "
        f"tokens, {kept.idxmin()} {percent(kept.min())}."
    )
