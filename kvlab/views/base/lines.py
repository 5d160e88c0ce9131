"""Lines, points and areas of a figure, distinguished by colour, dash, marker and pattern, and labels at their ends."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from kvlab.views.base.palette import HUES, SURFACES, Theme, mix, pick, run_styles
from kvlab.views.base.template import INK
from kvlab.views.base.words import visible


class Line(NamedTuple):
    """A column of a frame with its line's name and style."""

    column: str
    name: str
    hue: str
    dash: str
    marker: str = ""


def add_lines(
    figure: go.Figure,
    x: pd.Series,
    frame: pd.DataFrame,
    lines: Iterable[Line],
    theme: Theme,
    hover: str,
    **options: Any,
) -> go.Figure:
    """Add a line for each of `lines`; `{name}` in `hover` is its name, `options` are those of `add_line`."""
    for column, name, hue, dash, marker in lines:
        text = hover.replace("{name}", name)
        add_line(figure, x, frame[column], name, pick(HUES[hue], theme), dash, text, marker=marker, **options)
    return figure


def add_line(
    figure: go.Figure,
    x: pd.Series,
    y: pd.Series,
    name: str,
    colour: str,
    dash: str,
    hover: str,
    *,
    marker: str = "",
    size: int = 6,
    width: float = 1.8,
    **options: object,
) -> None:
    """Add a line; `hover` is the hover text of a point, `options` are passed to `go.Scatter`."""
    points = {"mode": "lines+markers", "marker": {"symbol": marker, "size": size, "color": colour}}
    figure.add_scatter(
        x=x,
        y=y,
        name=name,
        line={"color": colour, "dash": dash, "width": width},
        hovertemplate=f"{hover}<extra></extra>",
        **({"mode": "lines"} | (points if marker else {}) | options),
    )


def add_points(
    figure: go.Figure, x: Any, y: Any, name: str, colour: Any, hover: str, *, size: Any = 6, **options: object
) -> None:
    """Add points; `hover` is the hover text of a point, `options` are passed to `go.Scatter`."""
    look = {"mode": "markers", "marker_size": size, "marker_color": colour}
    figure.add_scatter(x=x, y=y, name=name, hovertemplate=f"{hover}<extra></extra>", **(look | options))


def add_band(figure: go.Figure, x: pd.Series, low: pd.Series, high: pd.Series, fill: str, name: str = "") -> None:
    """Fill the area between two lines; it is in the legend if it has a name."""
    edge = {"x": x, "mode": "lines", "line": {"width": 0}, "hoverinfo": "skip"}
    figure.add_scatter(y=high, showlegend=False, **edge)
    named = {"name": name} if name else {"showlegend": False}
    figure.add_scatter(y=low, fill="tonexty", fillcolor=fill, **named, **edge)


def hatch(shape: str, colour: str, theme: Theme, size: int = 5, pale: float = 0.55) -> dict[str, object]:
    """A pattern in the colour on the same colour faded by `pale`; none for an empty shape."""
    ground = mix(colour, SURFACES[theme], pale)
    return {"shape": shape, "size": size, "fgcolor": colour, "bgcolor": ground} if shape else {}


def interval_bars(frame: pd.DataFrame, column: str = "score") -> dict[str, Any]:
    """Error bars (`error_x` or `error_y`) from `column` to its `_low` and `_high`."""
    mean = frame[column]
    high = frame[f"{column}_high"] - mean
    low = mean - frame[f"{column}_low"]
    return {"type": "data", "array": high, "arrayminus": low, "thickness": 1.2, "width": 3}


def add_area(
    figure: go.Figure,
    x: pd.Series,
    y: pd.Series,
    name: str,
    colour: str,
    hover: str,
    pattern: dict[str, object] | None = None,
) -> None:
    """Stack an area on those already added; `hover` is its hover text."""
    figure.add_scatter(
        x=x,
        y=y,
        name=name,
        stackgroup="all",
        mode="lines",
        line={"width": 0.5, "color": colour},
        fillcolor=colour,
        fillpattern=pattern,
        hovertemplate=f"{hover}<extra></extra>",
    )


def each_run(frame: pd.DataFrame, theme: Theme) -> Iterator[tuple[str, pd.DataFrame, dict[str, Any]]]:
    """(label, rows, line and markers) of every run of a frame with columns label and method; long lines have fewer
    markers."""
    runs = frame[["label", "method"]].drop_duplicates().itertuples(index=False, name=None)
    for label, style in run_styles(runs, theme).items():
        look = {
            "mode": "lines+markers",
            "line": {"color": style.colour, "dash": style.dash, "width": 1.8},
            "marker": {"symbol": style.marker, "color": style.colour, "size": 6, "maxdisplayed": 12},
        }
        yield label, frame[frame["label"] == label], look


# pixels: height of a label, and width of a character at size 12
LINE = 16.0
CHARACTER = 6.7
# pixels: half a marker, and its distance from its label
POINT = 7.0
POINT_GAP = 5.0
ROWS = 12  # offsets that are tried above and below a point


@dataclass(frozen=True)
class Label:
    """A label: its anchor relative to its point in pixels (right and down), and the edge of it that the anchor is.

    `leads` is whether it is so far that a line to the point is needed.
    """

    across: float
    down: float
    anchor: Literal["left", "center", "right"]
    width: float
    leads: bool = False

    def box(self, point: tuple[float, float]) -> tuple[float, float, float, float]:
        """Left, top, right and bottom in pixels, for a point at (x, y) from the top left."""
        left = point[0] + self.across - {"left": 0.0, "center": 0.5, "right": 1.0}[self.anchor] * self.width
        top = point[1] + self.down - LINE / 2
        return left, top, left + self.width, top + LINE


def place_labels(
    points: Sequence[tuple[float, float]],
    texts: Sequence[str],
    size: tuple[float, float],
    bars: Sequence[tuple[float, float, float, float]] = (),
) -> list[Label]:
    """A label per point (pixels from the top left of a plot of `size`), each as near to its point as is free.

    A label that finds no free place within the plot lies where it covers least. `bars` are further boxes to avoid.
    """
    taken = [*((x - POINT, y - POINT, x + POINT, y + POINT) for x, y in points), *bars]
    placed: list[Label | None] = [None] * len(points)
    # From top to bottom, so that the labels of points on one spot form a list in their order.
    for index in sorted(range(len(points)), key=lambda index: (points[index][1], index)):
        width = CHARACTER * len(texts[index]) + 4
        others = [point for place, point in enumerate(points) if place != index]
        # Beside the point, above and below it, then further away on both sides.
        near = POINT + POINT_GAP
        candidates = [Label(near, 0.0, "left", width), Label(-near, 0.0, "right", width)]
        candidates += [Label(0.0, row * (LINE + 1), "center", width) for row in (-1, 1)]
        for row in (sign * row for row in range(1, ROWS + 1) for sign in (-1, 1)):
            candidates.append(Label(near + 8, row * LINE, "left", width, leads=True))
            candidates.append(Label(-near - 8, row * LINE, "right", width, leads=True))
        # Covered area outweighs points that the line to a label crosses or that are nearer to it than its own, and
        # these the distance.
        point = points[index]
        costs = []
        for label in candidates:
            box = label.box(point)
            outside = (box[2] - box[0]) * (box[3] - box[1]) - overlap(box, (0.0, 0.0, *size))
            covered = sum(overlap(box, other) for other in taken)
            end = point[0] + label.across, point[1] + label.down
            length = math.dist(point, end)
            crossed = 0
            for other in others:
                along = sum((b - a) * (p - a) for a, b, p in zip(point, end, other, strict=True)) / length
                way = min(max(along / length, 0.0), 1.0)
                nearest = [a + (b - a) * way for a, b in zip(point, end, strict=True)]
                crossed += along > 0 and math.dist(nearest, other) < POINT
            nearer = sum(math.dist(end, other) < length for other in others)
            distance = abs(label.down) + abs(label.across) / 10 + (LINE if label.leads else 0.0)
            costs.append(1000 * (covered + outside) + 100 * crossed + 200 * nearer + distance)
        label = candidates[costs.index(min(costs))]
        placed[index] = label
        taken.append(label.box(points[index]))
    return [label for label in placed if label is not None]


def overlap(one: tuple[float, float, float, float], other: tuple[float, float, float, float]) -> float:
    """Area that two boxes (left, top, right, bottom) share."""
    width = min(one[2], other[2]) - max(one[0], other[0])
    height = min(one[3], other[3]) - max(one[1], other[1])
    return max(width, 0.0) * max(height, 0.0)


GAP = 15.0  # pixels between the middles of two labels at size 12
LEAD = 16  # pixels from the end of a line to its label
LONGEST = 24  # characters of a label
LINE_END = "line end"  # name of such a label among the annotations of a figure
AROUND = 130  # pixels of a figure's height that are not plot, at most


class End(NamedTuple):
    """The last point of a line, with the line's name and colour; `y` is a value even on a log axis."""

    name: str
    x: float
    y: float
    colour: str


def labelled_height(count: int, height: int) -> int:
    """Height in pixels of a figure with room for so many labels, at least `height`."""
    return max(height, round(GAP * count) + AROUND)


def label_ends(
    figure: go.Figure, ends: Sequence[End], span: tuple[float, float], theme: Theme, axis: str = ""
) -> go.Figure:
    """Label the lines of a figure of known height instead of a legend; a thin line leads from each to its label.

    `span` is the range of the y axis, in exponents of ten if it is logarithmic; `axis` is the number of the axes of
    which these are the ends, the rightmost ones.
    """
    is_log = figure.layout.yaxis.type == "log"
    pixels = float(figure.layout.height - AROUND)
    ends = [end for end in ends if math.isfinite(end.x) and math.isfinite(end.y)]
    heights = [math.log10(end.y) if is_log else end.y for end in ends]
    wanted = [pixels * (span[1] - height) / (span[1] - span[0]) for height in heights]
    placed = spread(wanted, GAP, 0.0, pixels)
    # Long names are cut in the middle: names of runs differ at their ends.
    half = (LONGEST - 1) // 2
    texts = [
        end.name if len(end.name) <= LONGEST else f"{end.name[:half]}…{end.name[half + 1 - LONGEST :]}" for end in ends
    ]
    for end, text, y, start, stop in zip(ends, texts, heights, wanted, placed, strict=True):
        figure.add_annotation(
            xref=f"x{axis}",
            yref=f"y{axis}",
            name=LINE_END,
            x=end.x,
            y=y,
            ax=LEAD,
            ay=stop - start,
            text=visible(text, LONGEST).replace("·", " "),
            xanchor="left",
            yanchor="middle",
            align="left",
            showarrow=True,
            arrowhead=0,
            arrowwidth=1,
            arrowcolor=end.colour,
            standoff=4,
            borderpad=0,
            font={"size": 12, "color": mix(end.colour, INK[theme], 0.25)},
        )
    width = LEAD + 6 + CHARACTER * max(map(len, texts), default=0)
    figure.update_yaxes(range=list(span), autorange=False)
    # Plotly would widen the range for the labels, which lie in the margin.
    along = np.concatenate([np.asarray(line.x, float) for line in figure.data if len(line.x)] or [np.zeros(1)])
    spare = 0.02 * float(np.ptp(along)) or 0.5
    figure.update_xaxes(range=[along.min() - spare, along.max() + spare / 2], autorange=False)
    # By these names the page fades the other lines while the pointer is on one.
    meta = {**(figure.layout.meta or {}), "lines": [end.name for end in ends]}
    return figure.update_layout(showlegend=False, margin_r=max(20, math.ceil(width)), meta=meta)


def spread(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Places as near to `wanted` as possible (least squares), `gap` apart, within `low` and `high`, in the same order.

    If they do not fit, the gap shrinks.
    """
    count = len(wanted)
    gap = min(gap, (high - low) / max(count - 1, 1))
    order = sorted(range(count), key=lambda index: wanted[index])
    # Isotonic regression of the places after the gaps between them are taken out: pool neighbours out of order.
    pools: list[tuple[float, int]] = []
    for rank, index in enumerate(order):
        total = wanted[index] - rank * gap
        size = 1
        while pools and pools[-1][0] / pools[-1][1] > total / size:
            before = pools.pop()
            total = total + before[0]
            size = size + before[1]
        pools.append((total, size))
    flat = [total / size for total, size in pools for _ in range(size)]
    placed = [0.0] * count
    for rank, (index, place) in enumerate(zip(order, flat, strict=True)):
        placed[index] = min(max(place, low), high - (count - 1) * gap) + rank * gap
    return placed
