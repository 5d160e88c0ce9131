"""Native, editable office charts for figures that consist of a few lines or bars."""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

from kvlab.views.base.end_labels import LINE_END
from kvlab.views.base.palette import SURFACES, Theme, mix
from kvlab.views.base.template import INK, QUIET

MOST_SERIES = 8
MOST_POINTS = 400
DASHES = {
    "dash": "DASH", "dot": "ROUND_DOT", "dashdot": "DASH_DOT", "longdash": "LONG_DASH", "longdashdot": "LONG_DASH_DOT",
}  # fmt: skip
SPACES = "http://schemas.openxmlformats.org/drawingml/2006/chart"


def chart_kind(figure: go.Figure) -> str:
    """`lines` or `bars` if the figure is nothing else; "" if a picture is better."""
    layout = figure.layout
    drawn = _drawn(figure)
    notes = [note for note in layout.annotations if note.name != LINE_END]  # the chart has a legend instead
    if not 1 <= len(drawn) <= MOST_SERIES or figure.frames or notes or layout.shapes or layout.images:
        return ""
    if layout.sliders or layout.updatemenus or any(key[1:5] == "axis" and key[5:] for key in layout.to_plotly_json()):
        return ""
    if any(not 1 <= len(values(trace.y)) <= MOST_POINTS if hasattr(trace, "y") else True for trace in drawn):
        return ""
    if all(trace.type in ("scatter", "scattergl") and _is_line(trace) for trace in drawn):
        return "lines"
    same = len({tuple(map(str, values(trace.x))) for trace in drawn}) == 1
    if same and all(trace.type == "bar" and _is_bar(trace) for trace in drawn):
        return "bars"
    return ""


def add_chart(slide: Any, figure: go.Figure, place: Sequence[Any], theme: Theme) -> None:
    """Add the figure to the slide as a chart at `place` (left, top, width, height); requires a `chart_kind`."""
    from pptx.chart.data import CategoryChartData, XyChartData
    from pptx.enum.chart import XL_CHART_TYPE

    drawn = _drawn(figure)
    if chart_kind(figure) == "bars":
        data: Any = CategoryChartData()
        data.categories = [_plain(name) for name in values(drawn[0].x)]
        for trace in drawn:
            data.add_series(_plain(trace.name or "values"), [_number(value) for value in values(trace.y)])
        stacked = figure.layout.barmode in ("stack", "relative")
        kind = XL_CHART_TYPE.COLUMN_STACKED if stacked else XL_CHART_TYPE.COLUMN_CLUSTERED
    else:
        data = XyChartData()
        for trace in drawn:
            series = data.add_series(_plain(trace.name or "values"))
            for x, y in zip(_places(trace), values(trace.y), strict=False):
                if (known := _number(y)) is not None:
                    series.add_data_point(float(x), known)
        kind = XL_CHART_TYPE.XY_SCATTER_LINES_NO_MARKERS
    chart = slide.shapes.add_chart(kind, *place, data).chart
    _look(chart, figure, len(drawn), theme)
    for series, trace in zip(chart.plots[0].series, drawn, strict=True):
        _series_look(series, trace, theme)


def _look(chart: Any, figure: go.Figure, count: int, theme: Theme) -> None:
    from pptx.enum.chart import XL_LEGEND_POSITION
    from pptx.util import Pt

    chart.font.size = Pt(14)
    chart.font.color.rgb = _rgb(INK[theme])
    chart.has_title = False
    chart.has_legend = count > 1
    if chart.has_legend:
        chart.legend.position = XL_LEGEND_POSITION.TOP
        chart.legend.include_in_layout = False
    for axis, told in ((chart.category_axis, figure.layout.xaxis), (chart.value_axis, figure.layout.yaxis)):
        axis.has_major_gridlines = axis is chart.value_axis
        axis.format.line.color.rgb = _rgb(QUIET[theme])
        if axis.has_major_gridlines:
            axis.major_gridlines.format.line.color.rgb = _rgb(mix(QUIET[theme], SURFACES[theme], 0.7))
        if told.title.text:
            axis.has_title = True
            axis.axis_title.text_frame.text = _plain(told.title.text)
            axis.axis_title.text_frame.paragraphs[0].font.size = Pt(14)
        if told.range and told.type != "log" and None not in told.range and chart_kind(figure) == "lines":
            axis.minimum_scale, axis.maximum_scale = sorted(map(float, told.range))
        if told.type == "log":
            _logarithmic(axis)
        if (kind := str(told.tickformat or "")[-1:]) in ("%", "p"):  # d3's whole and exact percentages
            axis.tick_labels.number_format = "0%" if kind == "%" else "0.0%"
            axis.tick_labels.number_format_is_linked = False


def _logarithmic(axis: Any) -> None:
    """Set a log scale, which python-pptx does not support: `c:logBase` must come first in the axis's scaling."""
    from pptx.oxml import parse_xml

    scaling = axis._element.find(f"{{{SPACES}}}scaling")
    scaling.insert(0, parse_xml(f'<c:logBase xmlns:c="{SPACES}" val="10"/>'))


def _series_look(series: Any, trace: Any, theme: Theme) -> None:
    from pptx.enum.dml import MSO_LINE
    from pptx.util import Pt

    if trace.type == "bar":
        series.format.fill.solid()
        series.format.fill.fore_color.rgb = _rgb(_colour(trace.marker.color, theme))
        return
    series.smooth = False
    line = series.format.line
    pale = 1 - (trace.opacity if trace.opacity is not None else 1.0)
    line.color.rgb = _rgb(mix(_colour(trace.line.color, theme), SURFACES[theme], pale))
    line.width = Pt(2.25)
    if trace.line.dash in DASHES:
        line.dash_style = getattr(MSO_LINE, DASHES[trace.line.dash])


def _drawn(figure: go.Figure) -> list[Any]:
    """The visible traces, without empty points that only add a legend entry."""
    shown = [trace for trace in figure.data if trace.visible is not False]
    return [trace for trace in shown if values(getattr(trace, "x", None)) != [None]]


def values(vector: Any) -> list[Any]:
    """Values of a trace, which JSON may store as packed bytes."""
    if vector is None:
        return []
    if isinstance(vector, dict):
        return np.frombuffer(base64.b64decode(vector["bdata"]), vector["dtype"]).tolist()
    return list(vector)


def _places(trace: Any) -> list[Any]:
    return values(trace.x) if trace.x is not None else list(range(len(values(trace.y))))


def _is_line(trace: Any) -> bool:
    filled = trace.fill not in (None, "none") or trace.stackgroup
    if filled or trace.error_y.array is not None or trace.yaxis not in (None, "y"):
        return False
    one_size = trace.mode == "lines+markers" and not isinstance(trace.marker.size, (list, tuple))
    numbers = all(_number(value) is not None for value in _places(trace))
    return bool((trace.mode == "lines" or one_size) and numbers and _is_one_colour(trace.line.color))


def _is_bar(trace: Any) -> bool:
    odd = any(one is not None for one in (trace.base, trace.error_y.array, trace.width))
    if odd or trace.orientation == "h" or trace.marker.pattern.shape:
        return False
    return trace.x is not None and _is_one_colour(trace.marker.color)


def _is_one_colour(colour: Any) -> bool:
    return colour is None or (isinstance(colour, str) and bool(re.fullmatch("#[0-9A-Fa-f]{6}", colour)))


def _colour(colour: Any, theme: Theme) -> str:
    return colour if isinstance(colour, str) else INK[theme]


def _number(value: Any) -> float | None:
    try:
        known = float(value)
    except (TypeError, ValueError):
        return None
    return known if math.isfinite(known) else None


def _plain(text: Any) -> str:
    """Text without plotly's tags."""
    return re.sub(r"<[^>]*>", " ", str(text)).strip()


def _rgb(colour: str) -> Any:
    from pptx.dml.color import RGBColor

    return RGBColor.from_string(colour.lstrip("#"))
