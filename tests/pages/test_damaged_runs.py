"""Runs that lost a table or their list of parts: every page says so and shows what is left."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.pages.conftest import PAGES
from tests.pages.test_views import Open, texts
from tests.synthetic.runs import write_synthetic_run

WITHOUT_A_RUN = {"glossary", "live", "new_run", "quality", "runs", "safe_budget", "speed", "start", "story"}


DAMAGES = ("steps", "tokens events memory parts.json")
CASES = [  # a page without a run sees one of them, by turns
    (damage, name)
    for at, damage in enumerate(DAMAGES)
    for place, name in enumerate(PAGES)
    if name not in WITHOUT_A_RUN or place % 2 == at
]


@pytest.fixture(scope="module")
def damaged(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The last of two runs that lost these; the pages only look."""
    root = tmp_path_factory.mktemp("damaged")
    for method in ("full", "keepkv"):
        path = write_synthetic_run(root, method=method, prompt_tokens=40, steps=4)
        for what in request.param.split():
            file = path / what if what.endswith(".json") else path / what / "part-00000.parquet"
            if file.exists():
                file.write_bytes(random.Random(0).randbytes(500))
    return path


@pytest.mark.parametrize(("damaged", "name"), CASES, indirect=["damaged"])
def test_garbage_is_told_and_the_rest_is_shown(
    damaged: Path, open_page: Open, monkeypatch: pytest.MonkeyPatch, name: str
):
    monkeypatch.setenv("KVLAB_RUNS", str(damaged.parent))
    page = open_page(name, run=damaged.name, search="keepkv")  # of the papers, the cards of one
    assert not page.exception
    if name not in WITHOUT_A_RUN:
        assert "cut off or damaged" in texts(page)
