"""A comparison of made-up runs, of every method that an exhibit asks for."""

from __future__ import annotations

import pytest

from kvlab.results.sources import Sources
from kvlab.trace import open_run
from tests.papers.shipped_drawings import drawn_once as drawn_once
from tests.synthetic.runs import write_synthetic_run

METHODS = ("full", "h2o", "zsmerge", "pool", "kvmerger", "keepkv", "gvote", "pyramid-pool", "kvzip")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Sources:
    """The run in view is the first that merges."""
    root = tmp_path_factory.mktemp("runs")
    paths = [write_synthetic_run(root, method=method, comparison_id="all") for method in METHODS]
    runs = [open_run(path) for path in paths]
    return Sources(root, runs[2], runs)
