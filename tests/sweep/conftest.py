"""A small sweep of the tiny model: three tasks, three methods, shards of two prompts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from kvlab.evaluate.harness import evaluate
from kvlab.evaluate.request import EvalRequest
from kvlab.evaluate.request_parser import parse_request
from kvlab.sweep.plan import SweepPlan
from kvlab.sweep.planning import make_sweep
from kvlab.sweep.shards import write_plan
from tests.evaluate.test_harness import SETTINGS

TIMED = ["seconds", "prompt_seconds"]


def asked(model: Path, **changes: Any) -> EvalRequest:
    settings = SETTINGS | {"model": str(model), "device": "cpu", "samples": 3, "budgets": "0.2"} | changes
    return parse_request(**settings)


def planned(folder: Path, *requests: EvalRequest, block: int = 2) -> SweepPlan:
    plan, _ = make_sweep(requests, block)
    write_plan(folder, plan)
    return plan


def untimed(rows: pd.DataFrame) -> pd.DataFrame:
    """What must not depend on who measured it."""
    return rows.drop(columns=TIMED)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "eval" / "sweep"


@pytest.fixture(scope="session")
def serial(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> pd.DataFrame:
    """Rows of the whole sweep, measured in one process."""
    return evaluate(asked(tiny_folder), tmp_path_factory.mktemp("serial")).rows
