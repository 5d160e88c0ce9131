"""Every view of a story has a picture in the list, whatever it shows and whatever became of it."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import numpy as np
import plotly.graph_objects as go
import pytest

from kvlab.report.deck import view_thumbnail
from kvlab.report.views import History, Passages, Shown, Table, Text, kind_of
from kvlab.trace.stories import Slide, View
from kvlab.views.base.palette import SURFACES
from kvlab.views.base.thumbnail import HEIGHT, WIDTH
from kvlab.views.frames.textdiff import Segment
from tests.report.test_views import HOSTILE, SVG

TABLE = Table(columns=("method", HOSTILE), rows=tuple((f"row {row}", HOSTILE * 20) for row in range(30)))


def view_of(shown: Shown | go.Figure, theme: str = "light") -> View:
    is_figure = isinstance(shown, go.Figure)
    content = shown.to_json() if isinstance(shown, go.Figure) else shown.model_dump_json()
    kind = "figure" if is_figure else kind_of(shown)
    return View(page="sag", slide=Slide(title="A", figure=content, kind=kind, theme=theme))


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_figures_have_a_small_picture_tables_and_texts_a_placeholder(text: Text, history: History, theme: str):
    passages = Passages(passages=(("a", (Segment("same", f"It was {HOSTILE} " * 400),)),))
    heat = go.Figure(go.Heatmap(z=np.arange(12.0).reshape(3, 4)))  # whose arrays are packed as text
    box = go.Figure(go.Box(x=[1, 1, 2], y=[1, 3, 2]))  # in stories of before
    for shown in (
        go.Figure(go.Scatter(y=[1, 3, 2])),
        heat,
        box,
        TABLE,
        text,
        history,
        passages,
        Table(columns=(), rows=()),
    ):
        svg = view_thumbnail(view_of(shown, theme))
        root = ElementTree.fromstring(svg)
        if isinstance(shown, go.Figure):
            assert svg.index(SURFACES[theme]) < 250  # what is below all marks
        else:
            assert ("a table" if isinstance(shown, Table) else "a text") in svg
        assert root.get("viewBox") == f"0 0 {WIDTH} {HEIGHT}" and len(svg) < 20_000
        assert not root.findall(f".//{SVG}script")


def test_a_page_without_a_slide_and_a_damaged_slide_say_so():
    assert "a page" in view_thumbnail(View(page="sag"))
    for kind in ("figure", "table"):
        slide = Slide(title="A", figure="{]", kind=kind)
        assert "damaged" in view_thumbnail(View(page="sag", slide=slide))
