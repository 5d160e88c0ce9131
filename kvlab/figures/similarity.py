"""Cosine similarity of keys or values: a window, the diagonal band, the wall of all heads, a token's neighbours."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from kvlab.analysis.similarity.float16 import block_edges, block_means
from kvlab.figures.base.palette import DIVERGING, HUES, STATE_COLOURS, SURFACES, Theme, pick
from kvlab.figures.base.template import colour_bar, finish, token_ticks
from kvlab.figures.base.words import drawn_of, number, plural, token_labels, visible

MAX_CELLS = 512
MAX_WALL_SIDE = 768
MOST_OUTLINES = 2000
TALLEST_WALL, WIDEST_WALL = 900, 800  # pixels
MOST_LAYERS = 16  # of more, the maps would be too small to read


def similarity_map(
    frame: pd.DataFrame,
    texts: list[str],
    theme: Theme = "light",
    *,
    what: str = "keys",
    mode: str = "mean",
    sets: pd.DataFrame | None = None,
) -> go.Figure:
    """A window of the map (`Tile.frame()`, at most `MAX_CELLS` a side), with the `outlines` of merge sets if given."""
    rows, columns = token_labels(frame.index, texts), token_labels(frame.columns, texts)
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
    title = f"How alike the {what} are" + ("" if mode == "raw" else f" ({mode} of each block)")
    finish(figure, title=title, x="token (position and text)", y="token (position and text)", theme=theme, height=620)
    # Cells are squares in any file, however wide.
    figure.update_yaxes(
        autorange="reversed",
        showgrid=False,
        scaleanchor="x",
        constrain="domain",
        constraintoward="top",
        **token_ticks(rows),
    )
    figure.update_xaxes(
        showgrid=False, tickangle=-40, constrain="domain", constraintoward="left", **token_ticks(columns)
    )
    return figure


def read_similarity_map(frame: pd.DataFrame, sets: int = 0, every: int = 0) -> str:
    """The range of the window, in words; `sets` of `every` merge sets in it are outlined."""
    values = frame.to_numpy()
    block = int(frame.index[1] - frame.index[0]) if len(frame) > 1 else 1
    cell = "one pair" if block <= 1 else f"a block of about {block} x {block} pairs"
    return (
        f"Each cell is {cell}; cosines run from {number(float(values.min()), 2)} to {number(float(values.max()), 2)}, "
        f"mean {number(float(values.mean()), 2)}."
        + drawn_of(sets, every, "merge set", "the largest; zoom in to see smaller ones").replace("Drawn", "Outlined")
    )


def similarity_band(frame: pd.DataFrame, texts: list[str], theme: Theme = "light", what: str = "keys") -> go.Figure:
    """Cosine of each token with the one so many places before it, from `diagonal_band`."""
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
    figure = finish(
        go.Figure(heat), title=title, x="token (position and text)", y="distance (tokens)", theme=theme, legend=False
    )
    return figure.update_xaxes(showgrid=False, tickangle=-40, **token_ticks(labels, 6)).update_yaxes(showgrid=False)


def read_similarity_band(frame: pd.DataFrame) -> str:
    """Near against far, in words."""
    near, far = float(np.nanmean(frame.iloc[:1])), float(np.nanmean(frame.iloc[len(frame) // 2 :]))
    verdict = "neighbours are more alike" if near > far + 0.02 else "distance makes little difference"
    return (
        f"Mean cosine is {number(near, 2)} one token away and {number(far, 2)} beyond "
        f"{frame.index[len(frame) // 2] - 1} tokens: {verdict}."
    )


def wall_layers(layers: Sequence[int], *also: int) -> list[int]:
    """The layers of which a wall shows the maps: all, or `MOST_LAYERS` spread evenly and those named in `also`."""
    if len(layers) <= MOST_LAYERS:
        return sorted(layers)
    places = np.linspace(0, len(layers) - 1, MOST_LAYERS).round().astype(int)
    return sorted({sorted(layers)[place] for place in places} | set(also) & set(layers))


def layers_of_note(frame: pd.DataFrame) -> tuple[int, int]:
    """The layers of the most and the least alike head, of which a wall's words speak."""
    top, low = _most_and_least(frame)
    return int(top["layer"]), int(low["layer"])


def similarity_wall(
    thumbnails: dict[tuple[int, int], np.ndarray], theme: Theme = "light", what: str = "keys"
) -> go.Figure:
    """Overviews of the whole text, one small map a layer and KV head; the more numerous of the two lie across.

    All of them are one heat map with lines between: a plotly axis a map would take seconds for a hundred heads.
    """
    layers, heads = sorted({layer for layer, _ in thumbnails}), sorted({head for _, head in thumbnails})
    sideways = len(layers) > len(heads)
    down, across = (heads, layers) if sideways else (layers, heads)
    size = min(len(next(iter(thumbnails.values()))), MAX_WALL_SIDE // max(len(down), len(across)))
    # Hundredths in one byte a cell keep a wall of hundreds of heads small.
    cells = np.zeros((size * len(down), size * len(across)), np.int8)
    for (layer, head), values in thumbnails.items():
        first, second = (head, layer) if sideways else (layer, head)
        row, column = size * down.index(first), size * across.index(second)
        cells[row : row + size, column : column + size] = np.clip(np.rint(100 * _pooled(values, size)), -100, 100)
    # Under the maps at the left, where they stand however wide the page.
    under = {"orientation": "h", "x": 0, "xanchor": "left", "yref": "container", "y": 0, "yanchor": "bottom"}
    length = {"lenmode": "pixels", "len": 260}
    marks = {"tickvals": [-100, 0, 100], "ticktext": ["-1", "0", "1"]}
    bar = colour_bar("mean cosine", theme, **under, **length, **marks)
    bar["title"] = {"text": "mean cosine", "side": "top", "font": {"size": 12}}
    scale = {"zmin": -100, "zmax": 100, "colorscale": DIVERGING[theme], "colorbar": bar}
    # Cells at rank - 0.5 to rank + 0.5, so that a place rounds to the rank of its layer or head.
    places = {"x0": -0.5 + 0.5 / size, "dx": 1 / size, "y0": -0.5 + 0.5 / size, "dy": 1 / size}
    figure = go.Figure(go.Heatmap(z=cells, **places, **scale, hovertemplate="mean cosine %{z} / 100<extra></extra>"))
    side = max(40, min(230, WIDEST_WALL // len(across), TALLEST_WALL // len(down)))
    title, height = f"How alike tokens are in each head (each map is the whole text): {what}", 200 + side * len(down)
    x, y = ("layer", "KV head") if sideways else ("KV head", "layer")
    finish(figure, title=title, x=x, y=y, theme=theme, height=height, legend=False)
    figure.update_layout(margin_b=120, meta={**figure.layout.meta, "ranks": {"x": across, "y": down}})
    # Every map is a square, however wide the page.
    figure.update_xaxes(**_ranks(across), range=[-0.5, len(across) - 0.5], constrain="domain", constraintoward="left")
    figure.update_yaxes(**_ranks(down), range=[len(down) - 0.5, -0.5])
    figure.update_yaxes(scaleanchor="x", constrain="domain", constraintoward="top")
    between = "".join(f"M{place - 0.5},-0.5V{len(down) - 0.5}" for place in range(1, len(across)))
    between += "".join(f"M-0.5,{place - 0.5}H{len(across) - 0.5}" for place in range(1, len(down)))
    return figure.add_shape(type="path", path=between or "M0,0", line={"color": SURFACES[theme], "width": 4})


def _pooled(values: np.ndarray, size: int) -> np.ndarray:
    edges = block_edges(0, len(values), size)
    return block_means(block_means(values, edges).T, edges).T


def _ranks(numbers: list[int]) -> dict[str, object]:
    return {"tickvals": list(range(len(numbers))), "ticktext": numbers, "showgrid": False, "zeroline": False}


def read_similarity_wall(frame: pd.DataFrame, layers: Sequence[int] | None = None, every: int = 0) -> str:
    """The most and the least alike head, in words; `frame` has columns layer, head, mean, near, far.

    `layers` are those whose maps are drawn, none: all; `every` is how many heads there are, where `frame` has fewer.
    """
    top, low = _most_and_least(frame)
    near, far = number(float(frame["near"].mean()), 2), number(float(frame["far"].mean()), 2)
    most, least = (
        f"layer {int(row['layer'])} head {int(row['head'])} ({number(float(row['mean']), 2)})" for row in (top, low)
    )
    some = f" of {every:,}" if every > len(frame) else ""
    shown = len(frame) if layers is None else int(frame["layer"].isin(layers).sum())
    which = f"those of layers {', '.join(map(str, layers))}" if layers is not None else ""
    return (
        f"Tokens at most 8 apart have a mean cosine of {near} over {plural(len(frame), 'head')}{some}, those further "
        f"apart {far}. Most alike over the whole text: {most}; least: {least}."
        f"{drawn_of(shown, len(frame), 'head', which)}"
    )


def _most_and_least(frame: pd.DataFrame) -> tuple[pd.Series, pd.Series]:
    return frame.loc[frame["mean"].idxmax()], frame.loc[frame["mean"].idxmin()]


def neighbours(
    frame: pd.DataFrame, texts: list[str], token: int, theme: Theme = "light", what: str = "keys"
) -> go.Figure:
    """Cosine of one token with the tokens around it, from `neighbour_profile`."""
    words = [visible(texts[position]) if position < len(texts) else "" for position in frame["position"]]
    figure = go.Figure(
        go.Scatter(
            x=frame["offset"],
            y=frame["similarity"],
            mode="lines",
            line={"color": pick(HUES["blue"], theme), "width": 1.6},
            customdata=words,
            hovertemplate="%{customdata}, %{x:+d}<br>cosine %{y:.3f}<extra></extra>",
        )
    )
    title = f"{what.capitalize()} around token {token}"
    return finish(figure, title=title, x="distance (tokens)", y="cosine", theme=theme, height=300, legend=False)


def read_neighbours(frame: pd.DataFrame) -> str:
    """The closest neighbour, in words."""
    others = frame[frame["offset"] != 0]
    if others.empty:
        return "The text has no other token."
    best = others.loc[others["similarity"].idxmax()]
    return (
        f"The most alike is {abs(int(best['offset']))} away, with a cosine of {number(float(best['similarity']), 3)}."
    )


def _outline(figure: go.Figure, frame: pd.DataFrame, sets: pd.DataFrame, theme: Theme) -> None:
    """Merge sets as rectangles in the map's own cells; one path, since on an axis of labels only shapes lie between."""
    colour, starts = pick(STATE_COLOURS["pivot"], theme), frame.index.to_numpy()
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
