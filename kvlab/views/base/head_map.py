"""Heat map of layers (across) by KV heads (down, head 0 on top) in square cells, and text on cells.

A map of few layers takes half of a page's width, one of many layers all of it; `takes_whole_width` tells pages which.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from kvlab.views.base.palette import SEQUENTIAL, SURFACES, Theme
from kvlab.views.base.template import INK, LABEL, colour_bar_below, finish, round_distance, same_cells

DARK_INK = "#12151C"
LIGHT_INK = "#FFFFFF"


def cell_text(heat: go.Heatmap, words: Sequence[Sequence[str]] | np.ndarray, size: int = 11) -> go.Scatter:
    """A trace of the texts over `heat`, whose `zmin`, `zmax`, `x` and `y` must be set; empty texts are skipped.

    Plotly's own cell text uses only grey and white, which are hard to read on middle tones.
    """
    values = np.asarray(heat.z, float)
    table = np.asarray(words, object)
    rows, columns = np.nonzero(table != "")
    shares = np.clip((values[rows, columns] - heat.zmin) / ((heat.zmax - heat.zmin) or 1), 0, 1)
    inks = [ink_on(ground) for ground in colours_at(heat.colorscale, shares)]
    return go.Scatter(
        x=[heat.x[column] for column in columns],
        y=[heat.y[row] for row in rows],
        text=table[rows, columns].tolist(),
        mode="text",
        textfont={"size": size, "color": inks},
        hoverinfo="skip",
        showlegend=False,
    )


def colours_at(scale: Sequence[tuple[float, str]] | Sequence[str], shares: np.ndarray) -> np.ndarray:
    """(..., 3) RGB from 0 to 255 at `shares` (0 to 1) of a scale: #RRGGBB at equal distances, or with their shares."""
    stops = [(place / (len(scale) - 1), one) if isinstance(one, str) else one for place, one in enumerate(scale)]
    places, colours = zip(*stops, strict=True)
    table = np.array([channels(colour) for colour in colours])
    known = np.nan_to_num(shares)
    return np.stack([np.interp(known, places, table[:, channel]) for channel in range(3)], axis=-1)


def ink_on(ground: np.ndarray) -> str:
    """The dark or light text colour with the higher WCAG contrast on a background (RGB, 0 to 255)."""
    light = luminance(ground)
    on_dark = 1.05 / (light + 0.05)
    on_light = (light + 0.05) / (luminance(channels(DARK_INK)) + 0.05)
    return LIGHT_INK if on_dark >= on_light else DARK_INK


def luminance(colour: np.ndarray) -> float:
    """Relative luminance (WCAG 2) of RGB values from 0 to 255: 0 is black, 1 white."""
    channels = colour / 255
    linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


def channels(colour: str) -> np.ndarray:
    """RGB from 0 to 255 of #RRGGBB."""
    return np.array([int(colour[place : place + 2], 16) for place in (1, 3, 5)])


Place = tuple[int, int]  # layer and KV head
MANY_LAYERS = 16
# pixels that the cells can take in a window of 1,280, across the page and in half of it
WHOLE = 880
HALF = 380
# pixels: sides of a cell, and height of all cells
LARGEST = 44
SMALLEST = 6
TALLEST = 560
# pixels: a cell with text in it, and a character of this text
SMALLEST_WITH_TEXT = 14
CHARACTER = 7.0
LAYER_LABEL = 24  # pixels between two labels of layers, which may have three digits
# pixels: title and toolbar; labels of the axis; colour bar
ABOVE = 64
AXIS = 56
BAR = 44


def takes_whole_width(layers: int) -> bool:
    """Whether a map of so many layers takes the whole width of a page."""
    return layers > MANY_LAYERS


def cell_size(layers: int, heads: int) -> int:
    """Side of a cell in pixels, from `SMALLEST` to `LARGEST`, in a window of 1,280 pixels."""
    width = WHOLE if takes_whole_width(layers) else HALF
    return max(SMALLEST, min(LARGEST, width // max(1, layers), TALLEST // max(1, heads)))


def head_map(
    table: pd.DataFrame,
    title: str,
    theme: Theme,
    *,
    bar: str,
    hover: str,
    low: float = 0.0,
    high: float = 1.0,
    colours: Any = None,
    bar_options: dict[str, object] | None = None,
    focus: Place | None = None,
    words: np.ndarray | None = None,
    **cells: np.ndarray,
) -> go.Figure:
    """Draw `table` (layers, heads), coloured from `low` to `high`.

    `bar` is the colour bar's title and `bar_options` its further settings, `hover` the hover text after layer and head;
    `cells` are further heat map fields for it (`customdata`, `text`), of shape (layers, heads, ...). `colours` defaults
    to the sequential scale. The head `focus` is outlined. `words` (layers, heads) are written on the cells, and replace
    the colour bar, if all of them fit. Axes are categories, so that layers without a recording leave no gap.
    """
    layers = [str(layer) for layer in table.index]
    heads = [str(head) for head in table.columns]
    cell = cell_size(len(layers), len(heads))
    longest = max((len(word) for word in words.ravel()), default=0) if words is not None else 0
    written = words is not None and cell >= max(SMALLEST_WITH_TEXT, CHARACTER * longest + 4)
    heat = go.Heatmap(
        z=table.to_numpy(np.float32).T,
        x=layers,
        y=heads,
        xgap=1,
        ygap=1,
        zmin=low,
        zmax=high,
        colorscale=SEQUENTIAL[theme] if colours is None else colours,
        showscale=not written,
        colorbar=None if written else colour_bar_below(bar, theme, **(bar_options or {})),
        hovertemplate=f"layer %{{x}}, head %{{y}}{hover}<extra></extra>",
        hoverongaps=False,
        **{name: np.swapaxes(values, 0, 1) for name, values in cells.items()},
    )
    figure = go.Figure(heat)
    if written and words is not None:
        figure.add_trace(cell_text(heat, words.T, 12 if cell >= 18 else 10))
    below = AXIS if written else AXIS + BAR
    height = ABOVE + cell * len(heads) + below
    finish(figure, title=title, x="layer", y="KV head", theme=theme, height=height, legend=False)
    figure.update_layout(margin_b=below)
    # Fixed ranges, square cells at the top left at any page width, and labels that do not overlap.
    across = layers[:: round_distance(LAYER_LABEL / cell)]
    down = heads[:: round_distance(LABEL / cell)]
    both = {"type": "category", "constrain": "domain", "showgrid": False, "zeroline": False}
    x_range = [-0.5, len(layers) - 0.5]
    y_range = [len(heads) - 0.5, -0.5]
    figure.update_xaxes(tickvals=across, tickangle=0, range=x_range, constraintoward="left", **both)
    return outline(
        figure.update_yaxes(tickvals=down, range=y_range, scaleanchor="x", constraintoward="top", **both),
        table.index.tolist(),
        table.columns.tolist(),
        focus,
        theme,
    )


def caption_focus(caption: str, figure: go.Figure, focus: Place | None) -> str:
    """The caption of a map with the sentence on the outlined head; pages do not draw a map of one colour."""
    if focus is None or same_cells(figure):
        return caption
    outlined = f"Outlined: layer {focus[0]}, head {focus[1]}, the head in view."
    return f"{caption} {outlined}".strip()


def outline(
    figure: go.Figure, layers: Sequence[int], heads: Sequence[int], focus: Place | None, theme: Theme
) -> go.Figure:
    """Outline the head `focus` of a map whose axes count layers (x) and heads (y) from 0; nothing if it is not there.

    The line is ink with an edge in the background's colour, which is seen on every colour scale.
    """
    if focus is None or focus[0] not in layers or focus[1] not in heads:
        return figure
    x = layers.index(focus[0])
    y = heads.index(focus[1])
    for colour, width in ((SURFACES[theme], 5), (INK[theme], 2.5)):
        line = {"color": colour, "width": width}
        figure.add_shape(type="rect", x0=x - 0.5, x1=x + 0.5, y0=y - 0.5, y1=y + 0.5, line=line, layer="above")
    return figure
