"""A ranking and an exhibit say that they are of one prompt; that the bar of a page does is in test_context_bar.py."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from streamlit.testing.v1 import AppTest

Open = Callable[..., AppTest]


def captions(page: AppTest) -> list[str]:
    return [str(caption.value).replace("\\", "") for caption in page.caption]


def test_the_ranking_of_runs_says_over_how_many_tokens_of_one_prompt(shared_runs: Path, open_page: Open):
    page = open_page("compare", comparison="newer")
    ranks = [str(line.value) for line in page.markdown if str(line.value).startswith("Closest to the full cache")]
    assert any("(one prompt; mean KL over 16 tokens of its continuation, nats per token)" in line for line in ranks)


def test_exhibits_of_the_atlas_say_it_with_their_claim(shared_runs: Path, open_page: Open):
    page = open_page("papers", paper="keepkv", comparison="newer", exhibit="fig-2a")
    assert not page.exception
    verdicts = [str(line.value).replace("\u00a0", " ") for line in page.markdown]
    assert any("Not enough to say on synthetic" in line and "n = 1 prompt" in line for line in verdicts)
    assert any(text.startswith("One prompt") for text in captions(page))
    assert any("one prompt of 64 tokens" in text for text in captions(page))
