"""Stands in for the engine in tests of owners: a run that is recorded for the person who acts, without a model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kvlab.requests.compare import CompareRequest
from tests.synthetic.runs import write_synthetic_run


def compare(request: CompareRequest, root: Path, comparison_id: str, **_: Any) -> list[Path]:
    run = write_synthetic_run(
        root, method="h2o", comparison_id=comparison_id, prompt=request.prompt, owner=request.owner,
        private=request.private, layers=1, heads=1, steps=2, level="light",
    )  # fmt: skip
    return [run]
