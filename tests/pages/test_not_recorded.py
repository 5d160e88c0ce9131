"""Every page opens on a run that recorded some layers, heads and steps only, and says what is missing where it is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from kvlab.core.choice import MethodChoice
from kvlab.engine import compare
from kvlab.models.load import load_model
from kvlab.requests.compare import CompareRequest
from kvlab.requests.recording import Recording

PAGES = (
    "timeline", "regret", "sag", "merges", "lineage", "heads", "similarity", "memory", "autopsy", "wall", "spans",
    "compare", "papers",
)  # fmt: skip
PROMPT = "The harbour lamp was lit at seven, and the old captain counted the boats as they came in."


@pytest.fixture(scope="module")
def recorded(tiny_model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Layer 2 and KV head 1 only, rows of every third step."""
    request = CompareRequest(
        prompt=PROMPT,
        choices=(MethodChoice(method="zsmerge", budget=0.3),),
        max_new_tokens=8,
        record=Recording.parse("layers=2,heads=1,every=3"),
    )
    return compare(request, tmp_path_factory.mktemp("runs"), loaded=load_model(str(tiny_model_folder), "cpu"))[0]


@pytest.fixture
def run(recorded: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """In the folder that the pages look at and write nothing to."""
    monkeypatch.setenv("KVLAB_RUNS", str(recorded.parent))
    return recorded.name


def said(page: AppTest) -> str:
    assert not page.exception, page.exception[0].value
    shown = (element.value for kind in (page.info, page.error, page.caption, page.markdown) for element in kind)
    return " ".join(shown).replace("\\", "")


# Every page at a head of which nothing was recorded, half of them at the one that was.
PLACES = [(name, "0", "0") for name in PAGES] + [(name, "2", "1") for name in PAGES[::2]]


@pytest.mark.parametrize(("name", "layer", "head"), PLACES)
def test_every_page_opens(name: str, layer: str, head: str, run: str, open_page: Callable[..., AppTest]) -> None:
    said(open_page(name, run=run, layer=layer, head=head, step="4"))


@pytest.mark.parametrize("name", ["timeline", "regret"])
def test_what_is_missing_is_said_where_it_is_missing(name: str, run: str, open_page: Callable[..., AppTest]) -> None:
    assert "Nothing was recorded of KV head 0" in said(open_page(name, run=run, layer="2", head="0", step="3"))
    assert "Nothing was recorded of layer 1" in said(open_page(name, run=run, layer="1", head="1", step="3"))
    assert "every 3 steps only: choose step 3" in said(open_page(name, run=run, layer="2", head="1", step="5"))
    assert "every 3 steps" not in said(open_page(name, run=run, layer="2", head="1", step="3"))
