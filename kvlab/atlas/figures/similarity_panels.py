"""Similarity of keys and values: maps of one head, by distance, and a token's neighbours in several heads."""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from kvlab.atlas.figures.simple import similarity as simple
from kvlab.views.base.caption import with_simple
from kvlab.views.base.lines import add_band, add_line
from kvlab.views.base.palette import DIVERGING, HUES, Theme, pick
from kvlab.views.base.template import QUIET, colour_bar, finish, log_axis
from kvlab.views.base.words import number

LINES = (("blue", "solid", "circle"), ("orange", "dash", "square"), ("grey", "dot", "diamond"))
HEAD_LINES = (("blue", "solid"), ("orange", "dash"), ("green", "dot"), ("purple", "dashdot"), ("ink", "solid"))


def maps_side_by_side(maps: dict[str, pd.DataFrame], theme: Theme = "light", title: str = "") -> go.Figure:
    """One similarity map (`Tile.frame()`) per kind of vector, on one colour scale; axes are token positions."""
    figure = make_subplots(1, len(maps), column_titles=list(maps), horizontal_spacing=0.05)
    for column, (kind, frame) in enumerate(maps.items(), start=1):
        cells = np.clip(np.rint(100 * frame.to_numpy()), -100, 100).astype(np.int8)
        figure.add_heatmap(
            z=cells,
            x=frame.columns.to_numpy(),
            y=frame.index.to_numpy(),
            coloraxis="coloraxis",
            row=1,
            col=column,
            hovertemplate=f"{kind}<br>token %{{y}} with %{{x}}<br>cosine %{{z}} / 100<extra></extra>",
        )
    finish(figure, title=title, x="token position", y="", theme=theme, height=400, legend=False)
    figure.update_yaxes(autorange="reversed", showgrid=False).update_xaxes(showgrid=False, nticks=5)
    for column in range(1, len(maps) + 1):
        anchor = "x" if column == 1 else f"x{column}"
        figure.update_yaxes(scaleanchor=anchor, constraintoward="top", showticklabels=column == 1, col=column)
    figure.update_xaxes(constrain="domain").update_yaxes(constrain="domain")
    figure.update_yaxes(title_text="token position", col=1)
    bar = colour_bar("mean cosine of a block", theme, tickvals=[-100, 0, 100], ticktext=["-1", "0", "1"])
    figure.update_coloraxes(cmin=-100, cmax=100, colorscale=DIVERGING[theme], colorbar=bar)
    figure.update_annotations(font={"size": 13, "color": QUIET[theme]})
    return figure.update_layout(margin={"t": 76, "r": 96})


def cosine_by_distance(frame: pd.DataFrame, theme: Theme = "light") -> go.Figure:
    """Mean cosine by distance and kind, mean over heads with the middle 80 %; dotted: any two tokens.

    `frame` has columns kind, offset, cosine, low, high, any_pair.
    """
    figure = go.Figure()
    ends = frame.groupby("kind", sort=False)["any_pair"].first()
    for (kind, group), (hue, dash, marker) in zip(frame.groupby("kind", sort=False), LINES, strict=False):
        colour = pick(HUES[hue], theme)
        red, green, blue = (int(colour[place : place + 2], 16) for place in (1, 3, 5))
        add_band(figure, group["offset"], group["low"], group["high"], f"rgba({red},{green},{blue},0.14)")
        hover = f"{kind}<br>%{{x}} tokens apart: %{{y:.3f}}"
        add_line(figure, group["offset"], group["cosine"], str(kind), colour, dash, hover, marker=marker, width=2)
        figure.add_hline(
            y=float(group["any_pair"].iloc[0]),
            line={"color": colour, "width": 1, "dash": "dot"},
            annotation={"text": "any two", "font": {"size": 11, "color": colour}, "xanchor": "right"}
            | {"yanchor": "top" if ends[kind] == ends.min() else "bottom"},
        )
    finish(figure, title="Similarity by distance", x="distance (tokens, log)", y="mean cosine", theme=theme)
    return figure.update_xaxes(**log_axis(frame["offset"]))


@with_simple(simple.cosine_by_distance)
def caption_cosine_by_distance(frame: pd.DataFrame) -> str:
    """Adjacent tokens against any two, by kind."""
    parts = []
    for kind, group in frame.groupby("kind", sort=False):
        nearest = float(group["cosine"].iloc[0])
        any_pair = float(group["any_pair"].iloc[0])
        parts.append(f"{kind} {number(nearest, 2)} against {number(any_pair, 2)}")
    return f"Mean cosine of adjacent tokens and of any two tokens, over heads: {'; '.join(parts)}."


def neighbours_of_heads(frame: pd.DataFrame, theme: Theme = "light") -> go.Figure:
    """Cosine of chosen tokens with their neighbours, one panel per token and one line per head.

    `frame` has columns token, layer, head, offset, similarity.
    """
    tokens = frame["token"].unique()
    figure = make_subplots(1, len(tokens), shared_yaxes=True, column_titles=[f"token {token}" for token in tokens])
    heads = frame[["layer", "head"]].drop_duplicates().itertuples(index=False)
    for rank, (layer, head) in enumerate(heads):
        hue, dash = HEAD_LINES[rank % len(HEAD_LINES)]
        group = frame[(frame["layer"] == layer) & (frame["head"] == head)]
        for column, token in enumerate(tokens, start=1):
            line = group[group["token"] == token]
            name = f"layer {layer}, head {head}"
            add_line(
                figure,
                line["offset"],
                line["similarity"],
                name,
                pick(HUES[hue], theme),
                dash,
                f"{name}<br>%{{x:+d}} tokens: %{{y:.3f}}",
                width=1.7,
                legendgroup=f"{layer}-{head}",
                showlegend=column == 1,
                row=1,
                col=column,
            )
    title = "Similarity of a token's key to its neighbours'"
    finish(figure, title=title, x="distance (tokens)", y="", theme=theme, height=400)
    figure.update_yaxes(title_text="cosine", col=1)
    # A token's cosine with itself is 1: the panel title goes above that peak.
    figure.update_annotations(font={"size": 13, "color": QUIET[theme]}, yshift=-16)
    return figure.update_yaxes(range=[min(-0.05, 1.08 * float(frame["similarity"].min())), 1.22])


@with_simple(simple.neighbours_of_heads)
def caption_neighbours_of_heads(frame: pd.DataFrame, every: int) -> str:
    """How the drawn heads (of `every`) differ in the similarity of adjacent tokens."""
    beside = frame[frame["offset"].abs() == 1].groupby(["layer", "head"])["similarity"].mean()
    if beside.empty:
        return "The text has no other token."
    (low_layer, low_head), (high_layer, high_head) = beside.idxmin(), beside.idxmax()
    among = f"Of the heads drawn, {len(beside)} of {every}, the" if len(beside) < every else "The"
    return (
        f"{among} adjacent key has a cosine of {number(beside.max(), 2)} in layer {high_layer} head {high_head} and "
        f"of {number(beside.min(), 2)} in layer {low_layer} head {low_head}."
    )
