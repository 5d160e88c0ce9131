"""A plug-in's view is a page like the others, its failures are sentences, and no other page needs it."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import plotly.graph_objects as go
import pytest
from streamlit.testing.v1 import AppTest

from app.base.text import plain
from kvlab.core.errors import UserError
from kvlab.core.plugins.origin import Origin, registering, undo
from kvlab.views.base.view import VIEWS, FigureView, register_view
from tests.synthetic.runs import write_synthetic_run

STRANGER = Origin("stranger", place="stranger.py")


def draw_held() -> None:
    """The page of the view that the test registered; AppTest runs these lines as a script."""
    from app.entries.attention import plugin_view_page

    plugin_view_page("held")


@pytest.fixture
def frame_error():
    """What the view's frame raises; none to start with."""
    return []


@pytest.fixture(autouse=True)
def held(frame_error: list[Exception]):
    def frame(run) -> pd.DataFrame:
        for error in frame_error:
            raise error
        return run.steps.groupby("layer", as_index=False)["live_slots"].mean()

    def figure(table: pd.DataFrame, theme) -> go.Figure:
        return go.Figure(go.Bar(x=table["layer"], y=table["live_slots"]))

    with registering(STRANGER):
        register_view(
            FigureView("held", "Slots held", "By layer.", frame, figure, lambda table: f"{len(table)} layers.")
        )
    yield
    undo(STRANGER)


def test_it_is_drawn_with_its_caption_and_names_its_run_and_its_origin(runs_root: Path) -> None:
    write_synthetic_run(runs_root, method="unheard")
    page = AppTest.from_function(draw_held, default_timeout=60).run()
    assert not page.exception
    said = "\n".join(str(element.value) for element in [*page.title, *page.markdown, *page.caption])
    assert "Slots held" in said and plain("From the plug-in stranger.") in said and "2 layers" in said
    assert "unheard" in said, "the method of a run needs no registry"


def test_a_view_may_pass_its_caption_by_its_former_name() -> None:
    held = VIEWS["held"]
    old = FigureView(
        "old", "Old", "", held.read, lambda table, theme: go.Figure(), reading=lambda table: f"{len(table)} rows."
    )
    assert old.describe(pd.DataFrame({"x": [1, 2]}), []) == "2 rows."


@pytest.mark.parametrize("error", [UserError("This run has no such table."), ZeroDivisionError("by nought\nadvice")])
def test_what_goes_wrong_is_one_sentence(runs_root: Path, frame_error: list[Exception], error: Exception) -> None:
    write_synthetic_run(runs_root)
    frame_error.append(error)
    page = AppTest.from_function(draw_held, default_timeout=60).run()
    assert not page.exception
    said = "\n".join(str(element.value) for element in [*page.info, *page.error])
    assert plain(str(error).splitlines()[0]) in said and "advice" not in said


def write_the_menu() -> None:
    import streamlit as st

    from app.navigation.menu import menu

    st.text(", ".join(page.title for page in menu().pages if page.url_path.startswith("view_")))


def test_the_menu_has_it_only_while_it_is_registered() -> None:
    assert AppTest.from_function(write_the_menu).run().text[0].value == "Slots held"
    undo(STRANGER)
    assert AppTest.from_function(write_the_menu).run().text[0].value == "" and "held" not in VIEWS
