"""docs/writing-a-view.md: its file is a page, a slide of a talk, a table, and a view of the command."""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd
import pytest
from streamlit.testing.v1 import AppTest

from app.figures.add_slide import slide_of
from kvlab.core.plugins import load
from kvlab.core.plugins.load import FILES
from kvlab.core.plugins.origin import Registrations, undo
from kvlab.report.deck import deck
from kvlab.trace import open_run
from kvlab.trace.stories import Story, View
from kvlab.views.base.view import VIEWS, find_view
from tests.cli.running import kvlab
from tests.synthetic.runs import write_synthetic_run

GUIDE = (Path(__file__).resolve().parents[2] / "docs" / "writing-a-view.md").read_text()
CODE = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)[0]
NAME = "gone_early"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A recorded run; the file of the guide is a plug-in."""
    file = tmp_path / f"{NAME}.py"
    file.write_text(CODE)
    monkeypatch.setenv(FILES, str(file))
    monkeypatch.setenv("KVLAB_RUNS", str(tmp_path / "runs"))
    yield write_synthetic_run(tmp_path / "runs", method="keepkv")
    origin = VIEWS.origin(NAME)
    assert origin.name == NAME and Registrations.every
    undo(origin)
    for key in [key for key, plugin in load._loaded.items() if plugin.origin.name == NAME]:
        del load._loaded[key]


def draw_page() -> None:
    from app.entries.attention import plugin_view_page

    plugin_view_page("gone_early")


def test_it_is_a_page_a_slide_and_a_table(folder: Path, tmp_path: Path) -> None:
    assert CODE.count("\n") <= 60
    page = AppTest.from_function(draw_page, default_timeout=60).run()
    assert not page.exception
    told = "\n".join(str(element.value) for element in [*page.title, *page.markdown, *page.caption])
    assert (
        "Slots lost with the prompt" in told and "Which layers decide at once?" in told and "Of the slots that" in told
    )
    drawn = find_view(NAME).draw(open_run(folder), "dark")
    slide = slide_of(drawn.title, drawn.figure, drawn.caption, drawn.provenance, {}, "dark")
    talk = deck(Story(name="A talk", views=(View(page="", slide=slide),))).decode()
    assert "Slots lost with the prompt" in talk and "Of the slots that layers lose" in talk
    file = tmp_path / "table.csv"
    kvlab("view", str(folder), NAME, "--to", str(file))
    assert list(pd.read_csv(file).columns) == ["layer", "share"]
