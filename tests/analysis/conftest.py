"""Small synthetic runs, read by the tests of this folder."""

from __future__ import annotations

import pandas as pd
import pytest

from kvlab.trace import Run, open_run
from kvlab.views.frames.lineage import Lineage, fold
from tests.synthetic.runs import write_synthetic_run

METHODS = ("full", "h2o", "keepkv", "pool")


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    root = tmp_path_factory.mktemp("runs")
    paths = {method: write_synthetic_run(root, method=method, prompt_tokens=80, steps=12) for method in METHODS}
    return {method: open_run(path) for method, path in paths.items()}


def head(run: Run, layer: int = 1, head: int = 0) -> tuple[Lineage, pd.DataFrame]:
    events = run.select("events", layer, head)
    return fold(events, run.select("steps", layer, head)), events
