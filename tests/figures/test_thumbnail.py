"""A thumbnail holds the marks of its figure, whatever the figure is, in a few kilobytes and without any text."""

from __future__ import annotations

import re
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import pytest

from kvlab.views.base.thumbnail import HEIGHT, WIDTH, blank, thumbnail

Drawn = tuple[str, Any, str, pd.DataFrame]


def marks(svg: str, tag: str) -> list[ElementTree.Element]:
    return list(ElementTree.fromstring(svg).iter(f"{{http://www.w3.org/2000/svg}}{tag}"))


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_figure_has_a_small_one(figures: list[Drawn], theme: str):
    for name, draw, _, _ in figures:
        svg = thumbnail(draw(theme), theme)
        assert len(svg) < 60_000, name
        assert ElementTree.fromstring(svg).attrib["viewBox"] == f"0 0 {WIDTH} {HEIGHT}"
        assert not marks(svg, "text"), name
        assert re.search("<(path|rect|circle|image) ", svg), name
        assert "nan" not in re.sub(r'href="data:[^"]*"', "", svg), name


def test_lines_rise_with_their_values():
    path = marks(thumbnail(go.Figure(go.Scatter(x=[0, 1], y=[1, 2], mode="lines"))), "path")[-1]
    heights = [float(number) for number in re.findall(r"[ML][\d.]+ ([\d.]+)", path.attrib["d"])]
    assert heights[0] > heights[1]  # SVG counts down


def test_bars_stand_on_zero_or_on_their_base():
    svg = thumbnail(go.Figure(go.Bar(x=["a", "b"], y=[1, 2])))
    first, second = (float(rect.attrib["height"]) for rect in marks(svg, "rect"))
    assert second == pytest.approx(2 * first, abs=0.3)
    lying = go.Bar(x=[10, 10], base=[0, 10], y=[0, 1], orientation="h")
    left, right = (float(rect.attrib["x"]) for rect in marks(thumbnail(go.Figure(lying)), "rect"))
    assert right - left == pytest.approx((WIDTH - 10) / 2, abs=0.3)


def test_a_gap_breaks_a_line_and_a_missing_value_has_no_dot():
    figure = go.Figure(go.Scatter(x=[0, 1, 2, 3], y=[1, 1, np.nan, 1], mode="lines+markers"))
    svg = thumbnail(figure)
    assert len(marks(svg, "circle")) == 3
    assert marks(svg, "path")[-1].attrib["d"].count("M") == 2


def test_what_stands_in_says_why():
    assert "not recorded" in blank("not recorded")
