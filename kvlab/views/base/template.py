"""Shared layout of all figures: fonts, axes, colour bars, and axes of layers, tokens and logarithms."""

import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from kvlab.views.base.palette import SURFACES, Theme

FONT = "Inter, -apple-system, 'Segoe UI', 'Helvetica Neue', Arial, sans-serif"
CLEAR = "rgba(0,0,0,0)"
INK: dict[Theme, str] = {"light": "#1F2430", "dark": "#E8EBF1"}
QUIET: dict[Theme, str] = {"light": "#5A6270", "dark": "#A3ABB8"}
GRID: dict[Theme, str] = {"light": "#E6E9EE", "dark": "#2A303B"}
HEIGHT = 360
NO_GRID = {"showgrid": False, "zeroline": False, "ticks": "", "fixedrange": True}
# Of every chart that plotly.js draws. Without the second its toolbar offers to send figure and data to a cloud.
PLOTLY_CONFIG: dict[str, Any] = {"displaylogo": False, "showSendToCloud": False}
# pixels of a letter, of the line before a name, of a row
LEGEND_CHARACTER = 6.6
LEGEND_LINE = 50
LEGEND_ROW = 19
# pixels: a horizontal colour bar, and a character of its title
BAR_LENGTH = 200
BAR_CHARACTER = 6.5
# with more lines, all but the one in focus have this opacity
MANY_LINES = 4
PALE = 0.5
KEEPS_HEIGHT = "keeps_height"  # in `meta`, of a figure whose texts would cover each other if it were lower
# Axis title to URL parameter of the dashboard: a click on a mark navigates there.
URL_PARAMETERS = {
    "KV head": "head", "layer": "layer", "step": "step", "token (position and text)": "token",
    "token (position)": "token", "position in the text": "token",
}  # fmt: skip


def finish(
    figure: go.Figure, *, title: str, x: str, y: str, theme: Theme = "light", height: int = HEIGHT, legend: bool = True
) -> go.Figure:
    """Apply title, axis titles, fonts, grid and legend.

    The background stays transparent to match the page; exports fill it in.
    """
    figure.layout.template = "none"
    ink = INK[theme]
    look: dict[str, Any] = {
        "title": {
            "text": title,
            "font": {"size": 15, "color": ink},
            "x": 0,
            "xref": "paper",
            "y": 1,
            "yref": "container",
            "yanchor": "top",
            "pad": {"t": 10},
            "automargin": True,
        },
        "font": {"family": FONT, "size": 13, "color": ink},
        "paper_bgcolor": CLEAR,
        "plot_bgcolor": CLEAR,
        "height": height,
        "margin": {"l": 68, "r": 20, "t": 76 if legend else 46, "b": 56},
        "hoverlabel": {"bgcolor": SURFACES[theme], "font": {"color": ink, "family": FONT}, "align": "left"},
        "legend": {
            "orientation": "h",
            "x": 0,
            "xanchor": "left",
            "y": 1.02,
            "yanchor": "bottom",
            "font": {"size": 12},
            "traceorder": "normal",
        },
        "showlegend": legend,
        # keeps the zoom when the data change
        "uirevision": title,
    }
    layout = _merged(figure.layout.to_plotly_json(), look)
    for name in {"xaxis", "yaxis", *layout}:
        if name.startswith(("xaxis", "yaxis")):
            layout[name] = _merged(
                layout.get(name, {}),
                {
                    **dict.fromkeys(("gridcolor", "linecolor", "zerolinecolor", "tickcolor"), GRID[theme]),
                    "title": {"text": (x if name[0] == "x" else y), "standoff": 10, "font": {"size": 13}},
                    "automargin": True,
                    "ticks": "outside",
                    "ticklen": 4,
                    "tickfont": {"color": QUIET[theme], "size": 12},
                },
            )
    go_to = {axis: URL_PARAMETERS[title] for axis, title in (("x", x), ("y", y)) if title in URL_PARAMETERS}
    layout["meta"] = {**(layout.get("meta") or {}), **({"go": go_to} if go_to else {})}
    # Assigned at once: update_layout and update_xaxes validate each field, which takes eight times as long.
    figure.layout = layout
    return figure


def legend_room(figure: go.Figure, width: int = 440) -> int:
    """Pixels that a figure of this width needs for the rows of its legend beyond the first two.

    Plotly gives all names the width of the longest one.
    """
    names = {str(trace.name) for trace in figure.data if trace.name and trace.showlegend is not False}
    longest = max(map(len, names), default=0)
    in_a_row = max(1, int(width / (LEGEND_CHARACTER * longest + LEGEND_LINE)))
    return LEGEND_ROW * max(-(-len(names) // in_a_row) - 2, 0)


def _merged(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """Deep merge of `new` into `old`."""
    both = {key: _merged(old[key], value) for key, value in new.items() if isinstance(value, dict) and key in old}
    return old | new | both


def colour_bar(title: str, theme: Theme, **options: object) -> dict[str, object]:
    """A slim colour bar with a title."""
    title_look = {"text": title, "side": "right", "font": {"size": 12}}
    ticks = {"color": QUIET[theme], "size": 11}
    return {"title": title_look, "thickness": 12, "outlinewidth": 0, "tickfont": ticks, **options}


def colour_bar_below(title: str, theme: Theme, **options: object) -> dict[str, object]:
    """A colour bar under the axes at the left, visible at any page width; the figure needs 40 pixels for it below.

    Its title is beside it: above the bar, plotly puts it on the tick labels if the axes are low.
    """
    place = {"orientation": "h", "x": 0, "xanchor": "left", "yref": "container", "y": 0, "yanchor": "bottom"}
    length = BAR_LENGTH + BAR_CHARACTER * len(title)
    return colour_bar(title, theme, **place, lenmode="pixels", len=length, tickangle=0, **options)


def for_export(figure: go.Figure, theme: Theme, width: int = 1100) -> go.Figure:
    """A copy on an opaque background with a fixed width, for PNG, SVG and HTML."""
    copy = go.Figure(figure)
    return copy.update_layout(paper_bgcolor=SURFACES[theme], plot_bgcolor=SURFACES[theme], width=width)


CONTROLS_FROM = 100  # pixels of a bottom margin, of which the rest is room for controls


def without_controls(figure: go.Figure) -> go.Figure:
    """A copy without slider and buttons, which do nothing in a picture; what the slider is at is written above it."""
    copy = go.Figure(figure)
    if not (copy.layout.sliders or copy.layout.updatemenus):
        return copy
    for slider in copy.layout.sliders:
        shown = slider.currentvalue
        if shown.visible is not False and slider.steps:
            text = f"{shown.prefix or ''}{slider.steps[slider.active or 0].label}"
            copy.add_annotation(
                text=text,
                x=1,
                y=1,
                xref="paper",
                yref="paper",
                xanchor="right",
                yanchor="bottom",
                yshift=6,
                showarrow=False,
            )
    room = max(0, (copy.layout.margin.b or 0) - CONTROLS_FROM)
    # Assigned, because an update merges lists.
    copy.layout.sliders = None
    copy.layout.updatemenus = None
    copy.layout.margin.b = (copy.layout.margin.b or 0) - room or None
    copy.layout.height = copy.layout.height - room if copy.layout.height else None
    return copy


def log_axis(values: pd.Series | np.ndarray) -> dict[str, object]:
    """Axis settings for a log scale over the positive `values`: powers of ten, or finer ticks for small ranges."""
    positive = values[values > 0]
    settings: dict[str, object] = {"type": "log", "exponentformat": "power", "tickfont": {"size": 11}}
    low, high = (float(positive.min()), float(positive.max())) if len(positive) else (1.0, 10.0)
    if high / low > 300:
        return settings | {"dtick": 1}
    exponents = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1)
    digits = (1, 2, 5) if high / low > 20 else (1, 1.5, 2, 3, 4, 5, 7)
    ticks = [digit * 10.0**exponent for exponent in exponents for digit in digits]
    return settings | {"tickvals": ticks, "ticktext": [f"{tick:.6g}" for tick in ticks]}


def token_ticks(labels: list[str], limit: int = 12) -> dict[str, object]:
    """Axis settings that show at most `limit` labels, evenly spaced."""
    chosen = labels[:: max(1, -(-len(labels) // limit))]
    return {"type": "category", "tickmode": "array", "tickvals": chosen, "ticktext": chosen}


SAME_LINE = 1e-3  # relative difference that is not visible


def has_colour_bar(figure: go.Figure) -> bool:
    """Whether the figure has a colour bar."""
    maps = any(trace.type in ("heatmap", "histogram2d") and trace.showscale is not False for trace in figure.data)
    marks = any(trace.type == "scatter" and bool(trace.marker.showscale) for trace in figure.data)
    return maps or marks or figure.layout.coloraxis.colorscale is not None


def same_lines(figure: go.Figure) -> int:
    """Number of lines if there is more than one and all coincide; else 0."""
    lines = [trace for trace in figure.data if trace.type == "scatter" and "lines" in (trace.mode or "")]
    if len(lines) < 2 or len(lines) < len(figure.data):
        return 0
    first = lines[0]
    return len(lines) if all(_same(first.x, line.x) and _same(first.y, line.y) for line in lines[1:]) else 0


def same_cells(figure: go.Figure) -> int:
    """Number of cells if the figure is a map of several layers and heads, all of the same value; else 0.

    Maps along the text are drawn in any case, as they are linked with it.
    """
    if (figure.layout.meta or {}).get("go") != {"x": "layer", "y": "head"}:
        return 0
    maps = [np.ravel(trace.z) for trace in figure.data if trace.type == "heatmap"]
    if not maps:  # a picture
        return 0
    values = np.concatenate(maps).astype(float)
    same = values.size > 1 and bool(np.isfinite(values).all()) and float(np.ptp(values)) == 0
    return values.size if same else 0


def _same(one: object, other: object) -> bool:
    if one is None or other is None:
        return False
    first = np.asarray(one)
    second = np.asarray(other)
    if first.shape != second.shape:
        return False
    if first.dtype.kind in "iuf" and second.dtype.kind in "iuf":
        return bool(np.allclose(first, second, rtol=SAME_LINE, atol=0, equal_nan=True))
    return bool(np.array_equal(first, second))


# pixels
ROOMY_ROW = 22
TALLEST_AXIS = 720
SHORTEST_AXIS = 220
LABEL = 17  # pixels between two tick labels that can be told apart
MARK = 0.7  # share of a row that a mark may cover, so that the marks of two layers stay apart


def axis_height(layers: Sequence[int]) -> int:
    """Height of the axis in pixels: grows with the layers it spans, up to `TALLEST_AXIS`."""
    return min(TALLEST_AXIS, max(SHORTEST_AXIS, ROOMY_ROW * (max(layers) - min(layers) + 1)))


def layer_axis(layers: Sequence[int], pixels: int | None = None) -> dict[str, object]:
    """Axis settings for the layers on an axis of so many pixels (default: `axis_height`).

    The range is fixed, because plotly would widen it for markers and then label layers that do not exist.
    """
    first = min(layers)
    last = max(layers)
    every = round_distance(LABEL * (last - first + 1) / (pixels or axis_height(layers)))
    ticks = [layer for layer in range(first, last + 1) if layer % every == 0]
    return {"tickvals": ticks, "range": [last + 0.5, first - 0.5], "autorange": False}


def round_distance(distance: float) -> int:
    """The smallest of 1, 2, 5, 10, 20, 50, ... that is at least `distance`."""
    factor = 1
    while True:
        for step in (1, 2, 5):
            if step * factor >= distance:
                return step * factor
        factor *= 10


def along_text(figure: go.Figure, axis: Literal["x", "y"] = "x", offset: int = 0, place: str = "") -> go.Figure:
    """Link the figure to the text: a point's token is `offset` plus its value on `axis`.

    Labels may begin with the position. For an axis of steps the offset is prompt tokens - 1: the newest token of step
    k. `place` names the layer and head of the figure, so that a test in the browser can wait for it.
    """
    meta = figure.layout.meta or {}
    return figure.update_layout(meta={**meta, "tokens": {"axis": axis, "offset": offset}, "place": place})


def no_fading() -> dict[str, Any]:
    """Keep plotly from fading unselected cells."""
    return {"selected": {"marker": {"opacity": 1}}, "unselected": {"marker": {"opacity": 1}}}
