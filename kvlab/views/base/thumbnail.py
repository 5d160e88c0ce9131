"""Render a figure as a small SVG for lists: lines, bars, points and heat maps without text, a few kilobytes."""

from __future__ import annotations

import base64
import io
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import plotly.graph_objects as go
from PIL import Image

from kvlab.views.base.head_map import colours_at
from kvlab.views.base.palette import HUES, SEQUENTIAL, Theme, pick
from kvlab.views.base.template import GRID, QUIET
from kvlab.views.frames.float16 import block_edges

WIDTH = 240
HEIGHT = 120
EDGE = 5
SIZE = f'viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}"'
OPENING = f'<svg xmlns="http://www.w3.org/2000/svg" {SIZE}>'
MOST_POINTS = 160
MOST_CELLS = 96
MOST_BARS = 120


def thumbnail(figure: go.Figure, theme: Theme = "light") -> str:
    """The figure as a 240 x 120 SVG of its marks; unsupported traces are skipped."""
    inner_width = WIDTH - 2 * EDGE
    inner_height = HEIGHT - 2 * EDGE
    panels: dict[tuple[str, str], Panel] = {}
    points = []
    for trace in (trace for trace in figure.data if hasattr(trace, "xaxis")):
        names = (trace.xaxis or "x", trace.yaxis or "y")
        if names not in panels:
            axes = [figure.layout[name.replace(name[0], f"{name[0]}axis", 1)] for name in names]
            (left, right), (bottom, top) = (axis.domain or (0, 1) for axis in axes)
            scales = []
            for axis in axes:
                is_reversed = axis.autorange == "reversed" or (axis.range is not None and axis.range[0] > axis.range[1])
                order = axis.categoryarray if axis.categoryarray is not None else ()
                scales.append(Scale(axis.type == "log", is_reversed, {str(name): at for at, name in enumerate(order)}))
            panels[names] = Panel(
                EDGE + left * inner_width,
                EDGE + (1 - top) * inner_height,
                (right - left) * inner_width,
                (top - bottom) * inner_height,
                *scales,
            )
        points.append((trace, panels[names], *_points(trace, panels[names])))
    body = []
    for panel in panels.values():
        right = panel.left + panel.width
        lines = f"M{panel.left:.1f} {panel.top:.1f}V{panel.top + panel.height:.1f}H{right:.1f}"
        body.append(f'<path d="{lines}" fill="none" stroke="{GRID[theme]}" stroke-width="1"/>')
    for trace, panel, x, y in points:
        body += _marks(trace, panel, x, y, theme)
    if not points:
        # A symbol for a figure without axes, such as a Sankey diagram or a table.
        look = f'fill="none" stroke="{pick(HUES["purple"], theme)}" stroke-width="7" opacity="0.5"'
        for level in (25, 48, 72, 95):
            end = f"{60 + (level - 60) / 3:.0f}"
            body.append(f'<path d="M20 {level}C110 {level} 130 {end} 220 {end}" {look}/>')
    return f"{OPENING}{''.join(body)}</svg>"


def blank(reason: str, theme: Theme = "light") -> str:
    """Placeholder for a missing figure, with a short reason."""
    ink = QUIET[theme]
    box = f'<rect x="4" y="4" width="{WIDTH - 8}" height="{HEIGHT - 8}" rx="6" fill="none" stroke="{ink}"'
    words = f'<text x="{WIDTH / 2}" y="{HEIGHT / 2 + 4}" fill="{ink}" text-anchor="middle" font-size="12"'
    font = 'font-family="Inter, system-ui, sans-serif"'
    return f'{OPENING}{box} stroke-dasharray="4 4" stroke-width="1"/>{words} {font}>{reason}</text></svg>'


def _points(trace: Any, panel: Panel) -> tuple[np.ndarray, np.ndarray]:
    """The trace's x and y as numbers on its axes; missing ones are enumerated."""
    x = getattr(trace, "x", None)
    y = getattr(trace, "y", None)
    if trace.type == "heatmap" and trace.z is not None:
        rows, columns = np.shape(trace.z)
        x = np.arange(columns) if x is None else x
        y = np.arange(rows) if y is None else y
    if trace.type == "bar":
        lying = trace.orientation == "h"
        base = trace.base
        length = x if lying else y
        (panel.x if lying else panel.y).numbers([0] if base is None else np.add(base, np.asarray(length, float)))
        if base is not None:
            x, y = (base, y) if lying else (x, base)
    if trace.type in ("histogram", "image"):
        return np.zeros(0), np.zeros(0)
    if x is None and y is not None:
        x = np.arange(len(y))
    across = panel.x.numbers(x)
    return across, panel.y.numbers(y)


def _marks(trace: Any, panel: Panel, x: np.ndarray, y: np.ndarray, theme: Theme) -> list[str]:
    if trace.type == "heatmap":
        values = np.zeros((0, 0)) if trace.z is None else np.asarray(trace.z, float)
        for axis in (0, 1) if values.size else ():
            # Maximum per block, so that thin bright lines stay visible.
            edges = block_edges(0, values.shape[axis], MOST_CELLS)[:-1]
            values = np.fmax.reduceat(values, edges, axis=axis)
        if not panel.y.reverse:
            values = values[::-1]
        finite = values[np.isfinite(values)]
        if not len(finite):
            return []
        low = float(finite.min()) if trace.zmin is None else float(trace.zmin)
        high = float(finite.max()) if trace.zmax is None else float(trace.zmax)
        shares = np.clip((values - low) / ((high - low) or 1), 0, 1)
        # (rows, columns, 4) uint8 RGBA of shares between 0 and 1.
        stops = [(float(place), str(stop)) for place, stop in trace.colorscale or ()]
        is_known = stops and all(stop.startswith("#") for _, stop in stops)
        result = np.zeros((*shares.shape, 4), np.uint8)
        result[..., :3] = colours_at(stops if is_known else SEQUENTIAL[theme], shares)
        result[..., 3] = np.where(np.isfinite(shares), 255, 0)
        return [_image(Image.fromarray(result, "RGBA"), panel)]
    if trace.type == "image":
        return [_image(Image.open(io.BytesIO(base64.b64decode(trace.source.partition(",")[2]))), panel)]
    count = min(len(x), len(y))
    x = panel.across(x[:count])
    y = panel.up(y[:count])
    finite = np.isfinite(x) & np.isfinite(y)
    if trace.type == "bar":
        return _bars(trace, panel, x, y, finite, theme)
    if not hasattr(trace, "mode"):  # box plots in stories of before
        return []
    mode = trace.mode or "lines"
    colour = _colour(trace, theme)
    thin = slice(None, None, max(1, -(-count // MOST_POINTS)))
    parts = []
    if "lines" in mode:
        shown = finite[thin]
        path = "".join(
            f"{'L' if index and shown[index - 1] else 'M'}{x[thin][index]:.1f} {y[thin][index]:.1f}"
            for index in np.flatnonzero(shown)
        )
        dash = ' stroke-dasharray="3 2"' if (trace.line.dash or "solid") != "solid" else ""
        parts.append(f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="1.3"{dash}/>' if path else "")
    if "markers" in mode:
        dot = f'<circle cx="{{:.1f}}" cy="{{:.1f}}" r="1.6" fill="{colour}"/>'
        parts += [dot.format(x[place], y[place]) for place in np.flatnonzero(finite)[thin]]
    return parts


def _bars(trace: Any, panel: Panel, x: np.ndarray, y: np.ndarray, visible: np.ndarray, theme: Theme) -> list[str]:
    lying = trace.orientation == "h"
    along, thick = (y, panel.height) if lying else (x, panel.width)
    size = max(1.0, 0.7 * thick / max(1, len(np.unique(along[visible]))))
    place_of = panel.across if lying else panel.up
    tips = np.zeros(len(x)) if trace.base is None else np.add(trace.base, trace.x if lying else trace.y)
    others = place_of(np.asarray(tips, float))
    fixed = _colour(trace, theme)
    colours = trace.marker.color if isinstance(trace.marker.color, tuple | list) else None
    drawn = []
    for index in np.flatnonzero(visible)[:: max(1, -(-len(x) // MOST_BARS))]:
        fill = colours[index] if colours and isinstance(colours[index], str) else fixed
        ends = sorted((float(others[index]), float(x[index] if lying else y[index])))
        start = f"{ends[0]:.1f}"
        length = f"{ends[1] - ends[0]:.1f}"
        across = f"{along[index] - size / 2:.1f}"
        place = (start, across, length, f"{size:.1f}") if lying else (across, start, f"{size:.1f}", length)
        drawn.append('<rect x="{}" y="{}" width="{}" height="{}" '.format(*place) + f'fill="{fill}"/>')
    return drawn


def _image(picture: Image.Image, panel: Panel) -> str:
    """A picture that fills the panel, at most as many pixels as the thumbnail."""
    picture.thumbnail((WIDTH, HEIGHT))
    buffer = io.BytesIO()
    picture.save(buffer, "PNG")
    data = base64.b64encode(buffer.getvalue()).decode()
    return (
        f'<image x="{panel.left:.1f}" y="{panel.top:.1f}" width="{panel.width:.1f}" height="{panel.height:.1f}" '
        f'preserveAspectRatio="none" style="image-rendering:pixelated" href="data:image/png;base64,{data}"/>'
    )


def _colour(trace: Any, theme: Theme) -> str:
    """The colour of a trace's line or marker if it is a single colour."""
    for part in ("line", "marker"):
        colour = getattr(getattr(trace, part, None), "color", None)
        if isinstance(colour, str):
            return colour
    return pick(HUES["blue"], theme)


@dataclass
class Panel:
    """A pair of axes: its position in the picture, and its scales."""

    left: float
    top: float
    width: float
    height: float
    x: Scale
    y: Scale

    def across(self, values: np.ndarray) -> np.ndarray:
        return self.left + self.x.share(values) * self.width

    def up(self, values: np.ndarray) -> np.ndarray:
        return self.top + (1 - self.y.share(values)) * self.height


@dataclass
class Scale:
    """One axis: categories in order, or numbers (log10 on a log axis) between the extremes."""

    log: bool
    reverse: bool
    categories: dict[str, int]
    low: float = math.inf
    high: float = -math.inf

    def numbers(self, values: Any) -> np.ndarray:
        """Values as numbers; extends the axis to include them."""
        listed = [] if values is None else list(values)
        if any(isinstance(value, str) for value in listed):
            places = [self.categories.setdefault(str(value), len(self.categories)) for value in listed]
            found = np.asarray(places, float)
        else:
            found = np.asarray([math.nan if value is None else float(value) for value in listed])
        if self.log:
            found = np.log10(np.where(found > 0, found, math.nan))
        finite = found[np.isfinite(found)]
        if len(finite):
            self.low, self.high = min(self.low, float(finite.min())), max(self.high, float(finite.max()))
        return found

    def share(self, values: np.ndarray) -> np.ndarray:
        span = self.high - self.low
        shares = (values - self.low) / span if span > 0 else np.where(np.isfinite(values), 0.5, math.nan)
        return 1 - shares if self.reverse else shares
