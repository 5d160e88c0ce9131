"""A folder with three comparisons of synthetic runs, an evaluation and a benchmark."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from tests.synthetic.runs import write_synthetic_run

METHODS = ("full", "h2o", "keepkv")


def comparison(root: Path, name: str, title: str = "", **given: object) -> None:
    for method in METHODS:
        write_synthetic_run(
            root, method=method, comparison_id=name, title=title, layers=1, heads=1, steps=4, prompt_tokens=24,
            level="light", **given,
        )  # fmt: skip


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    root = tmp_path / "runs"
    for name in ("one", "two"):
        comparison(root, name, f"the {name} with a harbour")
    (root / "eval" / "needles").mkdir(parents=True)
    (root / "bench").mkdir()
    rows = {"method": ["full", "h2o"], "model": "mini", "budget": [1.0, 0.2], "budget_unit": "fraction"}
    pd.DataFrame(rows | {"score": [1.0, 0.25]}).to_parquet(root / "eval" / "needles" / "part-000000.parquet")
    pd.DataFrame(rows).to_parquet(root / "bench" / "speed.parquet")
    return root
