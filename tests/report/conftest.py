"""Views of a small run that are no charts, for the tests of talks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kvlab.report.views import History, Text, history_of, state_classes
from kvlab.trace import open_run
from kvlab.trace.reader import Run
from kvlab.views.base.export import ImageWriter, find_browser
from kvlab.views.frames.lineage import Lineage, fold, states_at, token_texts
from tests.dashboard_speed.server import chromium
from tests.synthetic.runs import write_synthetic_run


@pytest.fixture(scope="session")
def keepkv(tmp_path_factory: pytest.TempPathFactory) -> Run:
    root = tmp_path_factory.mktemp("views")
    write_synthetic_run(root, method="keepkv", comparison_id="views", layers=1, heads=1, prompt_tokens=40, steps=8)
    return open_run(next(Path(root).glob("views*")))


@pytest.fixture(scope="session")
def lineage(keepkv: Run) -> Lineage:
    return fold(keepkv.select("events", 0, 0), keepkv.select("steps", 0, 0))


@pytest.fixture(scope="session")
def history(keepkv: Run, lineage: Lineage) -> History:
    return history_of(lineage, token_texts(keepkv.tokens, lineage.tokens), int(lineage.steps[-1]))


@pytest.fixture(scope="session")
def text(history: History, lineage: Lineage) -> Text:
    codes = states_at(lineage, history.step).tolist()
    return Text(texts=history.texts, codes=tuple(codes), classes=state_classes(), chosen=(3, 4))


@pytest.fixture(scope="package")
def open_browser() -> Iterator[Any]:
    """One Chromium for all tests of this folder; each opens a page of its own."""
    with chromium() as browser:
        yield browser


@pytest.fixture
def page(open_browser: Any) -> Iterator[Any]:
    """A page without a network."""
    page = open_browser.new_page(viewport={"width": 1280, "height": 720}, offline=True)
    yield page
    page.close()


@pytest.fixture(scope="session")
def writer() -> Iterator[ImageWriter]:
    if find_browser() is None:
        pytest.skip("needs Chromium")
    made = ImageWriter()
    yield made
    made.close()
