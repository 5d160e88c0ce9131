"""Cosine similarity of keys or values: a window, the diagonal band, thumbnails of all heads, a token's neighbours."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from kvlab.figures.simple import vectors as simple
from kvlab.views.base.caption import with_simple
from kvlab.views.base.head_map import Place, outline
from kvlab.views.base.palette import DIVERGING, HUES, STATE_COLOURS, SURFACES, Theme, pick
from kvlab.views.base.template import colour_bar, colour_bar_below, finish, token_ticks
from kvlab.views.base.words import number, plural, shown_of, token_labels, visible
from kvlab.views.frames.float16 import block_edges, block_means

MAX_CELLS = 512
MAX_WALL_SIDE = 768
MOST_OUTLINES = 2000
# pixels
TALLEST_WALL = 900
WIDEST_WALL = 880
# pixels of a side
LARGEST_MAP = 230
SMALLEST_MAP = 28
MOST_LAYERS = 32  # with more, the maps would be smaller than `SMALLEST_MAP`


def similarity_map(
    frame: pd.DataFrame,
    texts: list[str],
    theme: Theme = "light",
    *,
    what: str = "keys",
    mode: str = "mean",
    sets: pd.DataFrame | None = None,
) -> go.Figure:
    """A window of the map (`Tile.frame()`), with the `outlines` of merge sets if given."""
    rows = token_labels(frame.index, texts)
    columns = token_labels(frame.columns, texts)
    heat = go.Heatmap(
        z=frame.to_numpy(np.float32),
        x=columns,
        y=rows,
        zmin=-1,
        zmax=1,
        colorscale=DIVERGING[theme],
        colorbar=colour_bar(f"cosine of {what} ({mode})", theme),
        hovertemplate="%{y}<br>%{x}<br>cosine %{z:.3f}<extra></extra>",
    )
    figure = go.Figure(heat)
    if sets is not None and len(sets):
        _outline(figure, frame, sets, theme)
    title = f"Similarity of {what}" + ("" if mode == "raw" else f" ({mode} of each block)")
    finish(figure, title=title, x="token (position and text)", y="token (position and text)", theme=theme, height=620)
    # Cells stay square at any width.
    square = {"showgrid": False, "constrain": "domain"}
    figure.update_yaxes(autorange="reversed", scaleanchor="x", constraintoward="top", **square, **token_ticks(rows))
    return figure.update_xaxes(tickangle=-40, constraintoward="left", **square, **token_ticks(columns))


@with_simple(simple.similarity_map)
def caption_similarity_map(frame: pd.DataFrame, sets: int = 0, every: int = 0) -> str:
    """The range of the window; `sets` of `every` merge sets in it are outlined."""
    values = frame.to_numpy()
    block = int(frame.index[1] - frame.index[0]) if len(frame) > 1 else 1
    cell = "one pair" if block <= 1 else f"a block of about {block} x {block} pairs"
    return (
        f"Each cell is {cell}; cosines run from {number(float(values.min()), 2)} to {number(float(values.max()), 2)}, "
        f"mean {number(float(values.mean()), 2)}."
        + shown_of(sets, every, "merge set", "the largest; zoom in to see smaller ones").replace("Showing", "Outlined:")
    )


def similarity_band(frame: pd.DataFrame, texts: list[str], theme: Theme = "light", what: str = "keys") -> go.Figure:
    """Cosine of each token with earlier ones by distance, from `diagonal_band`."""
    labels = token_labels(frame.columns, texts)
    heat = go.Heatmap(
        z=frame.to_numpy(np.float32),
        x=labels,
        y=frame.index.to_numpy(),
        zmin=-1,
        zmax=1,
        colorscale=DIVERGING[theme],
        colorbar=colour_bar(f"cosine of {what}", theme),
        hovertemplate="%{x}<br>%{y} before it<br>cosine %{z:.3f}<extra></extra>",
    )
    title = f"Neighbouring {what} along the text"
    x = "token (position and text)"
    figure = finish(go.Figure(heat), title=title, x=x, y="distance (tokens)", theme=theme, legend=False)
    return figure.update_xaxes(showgrid=False, tickangle=-40, **token_ticks(labels, 6)).update_yaxes(showgrid=False)


@with_simple(simple.similarity_band)
def caption_similarity_band(frame: pd.DataFrame) -> str:
    """Near against far."""
    near = float(np.nanmean(frame.iloc[:1]))
    far = float(np.nanmean(frame.iloc[len(frame) // 2 :]))
    verdict = "distance makes little difference"
    if abs(near - far) > 0.02:
        verdict = f"neighbours are {'more' if near > far else 'less'} similar"
    return (
        f"Mean cosine is {number(near, 2)} one token away and {number(far, 2)} beyond "
        f"{frame.index[len(frame) // 2] - 1} tokens: {verdict}."
    )


def layers_to_show(layers: Sequence[int], *also: int) -> list[int]:
    """The layers shown in a wall: all, or `MOST_LAYERS` evenly spread plus those in `also`."""
    if len(layers) <= MOST_LAYERS:
        return sorted(layers)
    places = np.linspace(0, len(layers) - 1, MOST_LAYERS).round().astype(int)
    return sorted({sorted(layers)[place] for place in places} | set(also) & set(layers))


def extreme_layers(frame: pd.DataFrame) -> tuple[int, int]:
    """The layers of the most and the least similar head."""
    top, low = _most_and_least(frame)
    return int(top["layer"]), int(low["layer"])


def similarity_wall(
    thumbnails: dict[tuple[int, int], np.ndarray],
    theme: Theme = "light",
    what: str = "keys",
    *,
    every: int = 0,
    focus: Place | None = None,
) -> go.Figure:
    """Thumbnails of the whole text per layer (across) and KV head (down); the head `focus` is outlined.

    `every` is the number of heads if only some are drawn. All maps form one heat map with separating lines, as one
    plotly axis per map takes seconds for a hundred heads.
    """
    layers = sorted({layer for layer, _ in thumbnails})
    heads = sorted({head for _, head in thumbnails})
    size = min(len(next(iter(thumbnails.values()))), MAX_WALL_SIDE // max(len(heads), len(layers)))
    # Hundredths in one byte per cell keep a wall of hundreds of heads small.
    cells = np.zeros((size * len(heads), size * len(layers)), np.int8)
    for (layer, head), values in thumbnails.items():
        row = size * heads.index(head)
        column = size * layers.index(layer)
        cells[row : row + size, column : column + size] = np.clip(np.rint(100 * _pooled(values, size)), -100, 100)
    bar = colour_bar_below("mean cosine", theme, tickvals=[-100, 0, 100], ticktext=["-1", "0", "1"])
    scale = {"zmin": -100, "zmax": 100, "colorscale": DIVERGING[theme], "colorbar": bar}
    # Maps span rank - 0.5 to rank + 0.5, so that a coordinate rounds to the rank of its layer or head.
    places = {"x0": -0.5 + 0.5 / size, "dx": 1 / size, "y0": -0.5 + 0.5 / size, "dy": 1 / size}
    figure = go.Figure(go.Heatmap(z=cells, **places, **scale, hovertemplate="mean cosine %{z} / 100<extra></extra>"))
    side = max(SMALLEST_MAP, min(LARGEST_MAP, WIDEST_WALL // len(layers), TALLEST_WALL // len(heads)))
    which = f"{len(thumbnails):,} of {every:,} heads" if every > len(thumbnails) else "each head"
    title = f"Similarity of {what} in {which} (each map is the whole text)"
    height = 200 + side * len(heads)
    finish(figure, title=title, x="layer", y="KV head", theme=theme, height=height, legend=False)
    figure.update_layout(margin_b=120, meta={**figure.layout.meta, "ranks": {"x": layers, "y": heads}})
    # Maps stay square at any page width.
    figure.update_xaxes(**_ranks(layers), range=[-0.5, len(layers) - 0.5], constrain="domain", constraintoward="left")
    figure.update_yaxes(**_ranks(heads), range=[len(heads) - 0.5, -0.5])
    figure.update_yaxes(scaleanchor="x", constrain="domain", constraintoward="top")
    between = "".join(f"M{place - 0.5},-0.5V{len(heads) - 0.5}" for place in range(1, len(layers)))
    between += "".join(f"M-0.5,{place - 0.5}H{len(layers) - 0.5}" for place in range(1, len(heads)))
    figure.add_shape(type="path", path=between or "M0,0", line={"color": SURFACES[theme], "width": 4})
    return outline(figure, layers, heads, focus, theme)


def _pooled(values: np.ndarray, size: int) -> np.ndarray:
    edges = block_edges(0, len(values), size)
    return block_means(block_means(values, edges).T, edges).T


def _ranks(numbers: list[int]) -> dict[str, object]:
    return {"tickvals": list(range(len(numbers))), "ticktext": numbers, "showgrid": False, "zeroline": False}


@with_simple(simple.similarity_wall)
def caption_similarity_wall(frame: pd.DataFrame, layers: Sequence[int] | None = None, every: int = 0) -> str:
    """The most and the least similar head; `frame` has columns layer, head, mean, near, far.

    `layers` are those drawn (default: all); `every` is the number of heads if `frame` has fewer.
    """
    top, low = _most_and_least(frame)
    near = number(float(frame["near"].mean()), 2)
    far = number(float(frame["far"].mean()), 2)
    most, least = (
        f"layer {int(row['layer'])} head {int(row['head'])} ({number(float(row['mean']), 2)})" for row in (top, low)
    )
    some = f" of {every:,}" if every > len(frame) else ""
    shown = len(frame) if layers is None else int(frame["layer"].isin(layers).sum())
    which = f"those of layers {', '.join(map(str, layers))}" if layers is not None else ""
    return (
        f"Tokens at most 8 apart have a mean cosine of {near} over {plural(len(frame), 'head')}{some}, those further "
        f"apart {far}. Most similar over the whole text: {most}; least: {least}."
        f"{shown_of(shown, len(frame), 'head', which)}"
    )


def _most_and_least(frame: pd.DataFrame) -> tuple[pd.Series, pd.Series]:
    return frame.loc[frame["mean"].idxmax()], frame.loc[frame["mean"].idxmin()]


def neighbours(
    frame: pd.DataFrame, texts: list[str], token: int, theme: Theme = "light", what: str = "keys"
) -> go.Figure:
    """Cosine of one token with the tokens around it, from `neighbour_profile`."""
    words = [visible(texts[position]) if position < len(texts) else "" for position in frame["position"]]
    figure = go.Figure().add_scatter(
        x=frame["offset"],
        y=frame["similarity"],
        mode="lines",
        line={"color": pick(HUES["blue"], theme), "width": 1.6},
        customdata=words,
        hovertemplate="%{customdata}, %{x:+d}<br>cosine %{y:.3f}<extra></extra>",
    )
    title = f"{what.capitalize()} around token {token}"
    return finish(figure, title=title, x="distance (tokens)", y="cosine", theme=theme, height=300, legend=False)


@with_simple(simple.neighbours)
def caption_neighbours(frame: pd.DataFrame) -> str:
    """The closest neighbour."""
    others = frame[frame["offset"] != 0]
    if others.empty:
        return "The text has no other token."
    best = others.loc[others["similarity"].idxmax()]
    return f"The most similar token is {abs(int(best['offset']))} away, cosine {number(float(best['similarity']), 3)}."


def _outline(figure: go.Figure, frame: pd.DataFrame, sets: pd.DataFrame, theme: Theme) -> None:
    """Merge sets as rectangles, one path: on a category axis only shapes can lie between labels."""
    colour = pick(STATE_COLOURS["pivot"], theme)
    starts = frame.index.to_numpy()
    names = ["start", "stop", "pivot_start", "pivot_stop"]
    cells = np.searchsorted(starts, sets[names].to_numpy(), side="right").clip(1) - 1
    cells[:, 1], cells[:, 3] = np.maximum(cells[:, 1], cells[:, 0] + 1), np.maximum(cells[:, 3], cells[:, 2] + 1)
    corners = {tuple(row) for row in cells.tolist()} | {(c, d, a, b) for a, b, c, d in cells.tolist()}
    path = "".join(
        f"M{a - 0.5},{c - 0.5}L{b - 0.5},{c - 0.5}L{b - 0.5},{d - 0.5}L{a - 0.5},{d - 0.5}Z"
        for a, b, c, d in sorted(corners)
    )
    figure.add_shape(type="path", path=path, line={"color": colour, "width": 1.4})
    marker = {"symbol": "square-open", "size": 12, "color": colour, "line": {"width": 1.5}}
    name = "merge set: these tokens share a slot"
    figure.add_scatter(x=[None], y=[None], mode="markers", name=name, marker=marker, hoverinfo="skip")
