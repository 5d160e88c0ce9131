"""A page about recorded runs says once, in its bar, that its numbers are of one prompt."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from kvlab.atlas.registry import PAPERS
from tests.pages.conftest import ROOT

Open = Callable[..., AppTest]
# Pages that show no number of a run by themselves; exhibits say what they rest on one by one.
OTHERS = {
    "start",
    "new_run",
    "story",
    "quality",
    "runs",
    "admin",
    "speed",
    "atlas",
    *(paper.replace("-", "_") for paper in PAPERS),
}
RECORDED = sorted({script.stem for script in (ROOT / "pages").glob("*.py")} - OTHERS)


def captions(page: AppTest) -> list[str]:
    return [str(caption.value).replace("\\", "") for caption in page.caption]


@pytest.mark.parametrize("name", RECORDED)
def test_every_page_about_runs_says_that_it_is_one_prompt(shared_runs: Path, open_page: Open, name: str):
    page = open_page(name, comparison="newer", layer="1", head="1", words="the")
    assert not page.exception
    said = [text for text in captions(page) if text.startswith("One prompt (")]
    assert len(said) == 1
    assert said[0].replace("\u00a0", " ").startswith("One prompt (the newer one, 64 tokens) · synthetic · ")


def test_the_ranking_of_runs_says_over_how_many_tokens_of_one_prompt(shared_runs: Path, open_page: Open):
    page = open_page("compare", comparison="newer")
    ranks = next(str(line.value) for line in page.markdown if str(line.value).startswith("Closest to the full cache"))
    assert "(one prompt; mean KL over 16 tokens of its continuation, nats per token)" in ranks


def test_exhibits_of_the_atlas_say_it_with_their_claim(shared_runs: Path, open_page: Open):
    page = open_page("keepkv", comparison="newer", exhibit="fig-2a")
    assert not page.exception
    found = [str(line.value) for line in page.markdown if str(line.value).startswith("**Here:**")]
    assert found and all("One prompt" in line for line in found)
    assert any("one prompt of 64 tokens" in text for text in captions(page))
