"""What a run says of itself where its settings alone do not tell."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from kvlab.cli import commands
from kvlab.core.choice import MethodChoice
from kvlab.core.methods import make_method, registered
from kvlab.engine import compare
from kvlab.requests.compare import CompareRequest
from kvlab.trace import open_run

TEXT = "below its window this keeps what a local window keeps, above it not. " * 3


@pytest.mark.parametrize("name", ["snapkv", "pyramidkv", "adakv"])
def test_a_budget_within_the_window_is_named_a_local_window(name: str) -> None:
    method = make_method(name, window=16)
    for budget in (1, 15, 16):
        (note,) = method.notes(budget, 100)
        assert f"{budget} slot" in note and "16" in note and "local window" in note
    assert not method.notes(17, 100)
    assert not method.notes(16, 16), "nothing is dropped at all"


def test_pyramidinfer_says_when_its_recent_region_takes_the_budget() -> None:
    theirs = make_method("pyramidinfer", region="prompt")
    (note,) = theirs.notes(21, 100)
    assert "21 slots" in note and "recent region of 21" in note and "local window" in note
    assert not theirs.notes(22, 100)
    assert not make_method("pyramidinfer").notes(21, 100)
    assert not make_method("pyramidinfer", preset="code").notes(21, 100), "no budget is asked for"


def test_less_says_what_its_evictor_says_and_most_methods_nothing() -> None:
    assert make_method("less", evictor="snapkv").notes(10, 100) == make_method("snapkv").notes(10, 100) != []
    assert all(make_method(name).notes(10, 100) == [] for name in registered() if name in ("h2o", "cam", "full"))


def test_a_run_keeps_its_notes_and_the_command_prints_them(tiny_model_folder: Path, tmp_path: Path) -> None:
    choices = (MethodChoice(method="snapkv", budget=8), MethodChoice(method="snapkv", budget=40))
    request = CompareRequest(model=str(tiny_model_folder), prompt=TEXT, choices=choices, max_new_tokens=3)
    _, small, large = (open_run(path).record for path in compare(request, tmp_path))
    assert small.notes == tuple(make_method("snapkv").notes(8, small.prompt_tokens)) != ()
    assert large.notes == ()
    options = ["--prompt", TEXT, "--model", str(tiny_model_folder), "--new-tokens", "3", "--out", str(tmp_path)]
    for budget, said in (("8", True), ("40", False)):
        printed = CliRunner().invoke(
            commands, ["compare", "--methods", "snapkv", "--budgets", budget, *options], catch_exceptions=False
        )
        assert ("as a local window does" in " ".join(printed.output.split())) is said
