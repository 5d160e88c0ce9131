"""The cache wall as a picture: layers across, KV heads down, each tile the text with what has become of its tokens."""

from __future__ import annotations

import base64
import io
import math

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from PIL import Image

from kvlab.figures.simple import comparison as simple
from kvlab.views.base.caption import with_simple
from kvlab.views.base.palette import STATE_COLOURS, SURFACES, WALL_FATES, Theme, pick
from kvlab.views.base.template import finish, round_distance
from kvlab.views.base.words import number, percent, plural

# pixels of all tiles: width, and bounds of the height
WIDTH = 1_080
LEAST = 300
MOST = 560
CELL_ASPECT = 2.5  # as in `kvlab/browser/src/wall/geometry.js`
HELD = 3  # codes below this one are held; they are drawn by the square root of their share, as in the browser
COLUMNS = ("both", "only_a", "only_b", "neither")
# pixels between labels
LABEL_WIDTH = 24
LABEL_HEIGHT = 14


def fate_looks(theme: Theme) -> tuple[list[str], list[str], list[str]]:
    """(colours, names, meanings) of the codes of a wall: fates, then not yet read."""
    texts = [text.split(": ") for _, text in WALL_FATES.values()]
    colours = [pick(STATE_COLOURS[state], theme) for state, _ in WALL_FATES.values()]
    return colours, [parts[0] for parts in texts], [parts[-1] for parts in texts]


def wall_picture(
    codes: np.ndarray, layers: list[int], heads: int, colours: list[str], names: list[str], title: str, theme: Theme
) -> go.Figure:
    """Draw `codes` (layers * heads, tokens) uint8, indices into `colours` and `names`.

    A pixel that covers several tokens mixes their colours.
    """
    width = max(2, WIDTH // len(layers))
    height = max(2, max(LEAST, min(MOST, heads * width)) // heads)
    gap = 2 if min(width, height) > 12 else 1
    tiles = _tiles(codes, colours, height - gap, width - gap, theme)
    image = np.empty((heads * height, len(layers) * width, 3), np.uint8)
    image[:] = _rgb(SURFACES[theme])
    for index, tile in enumerate(tiles):
        layer, head = divmod(index, heads)
        image[head * height : head * height + height - gap, layer * width : layer * width + width - gap] = tile
    figure = go.Figure(go.Image(source=_data_uri(image), hovertemplate="<extra></extra>"))
    for code, name in enumerate(names):
        if (codes == code).any():
            square = {"color": colours[code], "size": 12, "symbol": "square"}
            figure.add_trace(go.Scatter(x=[None], y=[None], mode="markers", marker=square, name=name, hoverinfo="skip"))
    finish(figure, title=title, x="layer", y="KV head", theme=theme, height=heads * height + 150)
    across = round_distance(LABEL_WIDTH / width)
    down = round_distance(LABEL_HEIGHT / height)
    places = np.arange(len(layers))[::across]
    figure.update_xaxes(
        tickvals=places * width + width / 2,
        ticktext=[str(layers[place]) for place in places],
        showgrid=False,
        zeroline=False,
        constrain="domain",
        range=[0, image.shape[1]],
    )
    rows = np.arange(heads)[::down]
    return figure.update_yaxes(
        tickvals=rows * height + height / 2,
        ticktext=[str(row) for row in rows],
        showgrid=False,
        zeroline=False,
        constrain="domain",
        scaleanchor="x",
        range=[image.shape[0], 0],
    )


@with_simple(simple.wall)
def caption_wall(shares: pd.DataFrame, names: list[str]) -> str:
    """Mean and range over heads of the first two shares of `shares_by_head`, and of what was dropped."""
    parts = []
    for column, name in zip(("kept", "holds", "absorbed", "dropped"), names, strict=False):
        low = shares[column].min()
        mean = shares[column].mean()
        high = shares[column].max()
        if mean == 0:
            continue
        spread = "in every head" if low == high else f"{percent(low)} to {percent(high)} by head"
        parts.append(f"{percent(mean)} {name} ({spread})")
    return f"{_moment(shares)}, of all tokens in {plural(len(shares), 'head')}: {', '.join(parts)}."


@with_simple(simple.difference)
def caption_difference(shares: pd.DataFrame, names: list[str]) -> str:
    """Mean shares over heads of `difference_by_head`, and the heads that differ least and most."""
    means = [f"{percent(float(shares[column].mean()))} {name}" for column, name in zip(COLUMNS, names, strict=False)]
    least, most = (shares.loc[place] for place in (shares["jaccard"].idxmax(), shares["jaccard"].idxmin()))
    alike = f"most alike in {_place(least)} (Jaccard index {number(least['jaccard'], 2)})"
    apart = f"least alike in {_place(most)} ({number(most['jaccard'], 2)})"
    return f"{_moment(shares)}, of all tokens in {plural(len(shares), 'head')}: {', '.join(means)}; {alike}, {apart}."


def _place(row: pd.Series) -> str:
    return f"layer {int(row['layer'])} head {int(row['head'])}"


def _moment(shares: pd.DataFrame) -> str:
    step = int(shares["step"].iloc[0])
    return "After the prompt" if step == 0 else f"After step {step}"


def _tiles(codes: np.ndarray, colours: list[str], height: int, width: int, theme: Theme) -> np.ndarray:
    """(heads, height, width, 3) uint8: the tokens of each head in lines, resized to the tile."""
    heads, tokens = codes.shape
    per_line = max(1, round(math.sqrt(tokens * width / (height * CELL_ASPECT))))
    lines = -(-tokens // per_line)
    empty = len(colours)
    cells = np.full((heads, lines * per_line), empty, np.uint8)
    cells[:, :tokens] = codes
    cells = cells.reshape(heads, lines, per_line)
    counts = np.stack([_resized(cells == code, height, width) for code in range(empty)], -1)  # (heads, h, w, codes)
    every = counts.sum(-1)
    held = counts[..., :HELD].sum(-1)
    strength = np.sqrt(held / np.maximum(every, 1))
    palette = np.array([_rgb(colour) for colour in colours], np.float32)
    of_held = counts[..., :HELD] @ palette[:HELD] / np.maximum(held, 1)[..., None]
    of_rest = counts[..., HELD:] @ palette[HELD:] / np.maximum(every - held, 1)[..., None]
    image = strength[..., None] * of_held + (1 - strength)[..., None] * of_rest
    return np.where(every[..., None] > 0, image, _rgb(SURFACES[theme])).round().astype(np.uint8)


def _resized(mask: np.ndarray, height: int, width: int) -> np.ndarray:
    """Count true cells (heads, lines, per line) under each pixel (heads, height, width), at least one cell a pixel."""
    for axis, size in ((1, height), (2, width)):
        count = mask.shape[axis]
        if size >= count:
            mask = np.take(mask, np.arange(size) * count // size, axis)
        else:
            mask = np.add.reduceat(mask, np.arange(size) * count // size, axis, dtype=np.int32)
    return mask.astype(np.float32)


def _data_uri(image: np.ndarray) -> str:
    """The image (height, width, 3) uint8 as a PNG, a tenth of the size of its numbers."""
    file = io.BytesIO()
    Image.fromarray(image).save(file, "PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


def _rgb(colour: str) -> tuple[int, int, int]:
    red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return red, green, blue
