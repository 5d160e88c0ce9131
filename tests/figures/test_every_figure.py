"""Properties of every figure: small enough, named axes, both themes, something to see, a caption."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import plotly.graph_objects as go
import pytest

from kvlab.views.base.template import same_lines

Drawn = tuple[str, Any, str, Any]  # name, how to draw it in a theme, caption, frame
MAX_BYTES = 2_000_000
MAX_CELLS = 768


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_figure_is_small_named_and_not_empty(figures: list[Drawn], theme: str):
    for name, draw, _, _ in figures:
        figure = draw(theme)
        assert len(figure.to_json()) < MAX_BYTES, name
        assert figure.layout.title.text, name
        assert figure.layout.uirevision, name
        shown = [trace for trace in figure.data if trace.hoverinfo != "skip"]
        assert shown, name
        for trace in shown:
            if trace.type == "heatmap":
                assert max(trace.z.shape) <= MAX_CELLS, name
                assert is_finite(trace.z), name
            elif trace.type == "image":
                assert trace.source.startswith("data:image/png"), name
            elif trace.type != "sankey":
                assert is_finite(trace.y), (name, trace.name)


def test_every_axis_says_what_it_shows(figures: list[Drawn]):
    for name, draw, _, _ in figures:
        figure = draw("light")
        if name == "river":  # a river has no axes
            continue
        assert figure.layout.xaxis.title.text, name
        assert figure.layout.yaxis.title.text, name


def test_light_and_dark_differ_in_colours_only(figures: list[Drawn]):
    def without_colours(figure: object) -> object:
        text = re.sub(r'"(#[0-9A-Fa-f]{6}|data:image[^"]*|rgb\([\d, ]+\))"', '"#"', figure.to_json())
        return json.loads(text)

    for name, draw, _, _ in figures:
        light, dark = draw("light"), draw("dark")
        assert light.layout.font.color != dark.layout.font.color, name
        assert without_colours(light) == without_colours(dark), name


def test_every_caption_is_one_line(figures: list[Drawn]):
    for name, _, caption, frame in figures:
        assert "\n" not in caption, name
        assert "nan" not in caption, (name, caption)
        assert len(frame), name


def is_finite(values: Any) -> bool:
    """Whether there is anything to see in a trace's values."""
    try:
        return bool(np.isfinite(np.asarray(values, float)).any())
    except (TypeError, ValueError):
        return len(values) > 0


def test_the_maps_of_a_wall_are_square_however_wide_the_page(figures: list[Drawn]):
    drawn = {name: draw("light") for name, draw, _, _ in figures}
    wall = drawn["wall"]
    assert wall.layout.yaxis.scaleanchor == "x"
    assert wall.layout.xaxis.constrain == wall.layout.yaxis.constrain == "domain"


def test_layers_lie_across_above_heads_and_run_down_beside_anything_else(figures: list[Drawn]):
    across = down = 0
    for name, draw, _, _ in figures:
        figure = draw("light")
        if "layer" in (figure.layout.xaxis.title.text or ""):
            assert figure.layout.yaxis.title.text == "KV head", name
            assert figure.layout.yaxis.scaleanchor == "x", f"{name}: its cells are square"
            across += 1
        if figure.layout.yaxis.title.text in ("layer", "KV head"):
            first, last = figure.layout.yaxis.range
            assert first > last, f"{name}: the first is on top"
            down += figure.layout.yaxis.title.text == "layer"
    assert across > 12 and down >= 3


def test_a_cell_of_every_heat_map_says_where_a_click_on_it_leads(figures: list[Drawn]):
    for name, draw, _, _ in figures:
        figure = draw("light")
        if any(trace.type == "heatmap" for trace in figure.data):
            leads = (figure.layout.meta or {}).get("go", {})
            assert leads and set(leads.values()) <= {"layer", "head", "step", "token"}, name


def test_a_chart_whose_lines_are_all_the_same_is_known():
    line = {"x": [1, 2], "y": [3.0, float("nan")], "mode": "lines"}
    same = go.Figure([go.Scatter(line), go.Scatter(line), go.Scatter(line)])
    assert same_lines(same) == 3
    rounded = go.Figure([go.Scatter(line), go.Scatter(line | {"y": [1.00001 * float(y) for y in line["y"]]})])
    assert same_lines(rounded) == 2, "nobody sees such a difference"
    assert same_lines(go.Figure([go.Scatter(line)])) == 0, "one line is a chart"
    assert same_lines(go.Figure([go.Scatter(line), go.Scatter(line | {"y": [3.0, 4.0]})])) == 0
    assert same_lines(go.Figure([go.Scatter(line), go.Scatter(line), go.Bar(x=[1], y=[2])])) == 0
