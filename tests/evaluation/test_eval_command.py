"""`kvlab eval` as a person runs it, and its progress."""

from __future__ import annotations

import io
import json
import math
import time

import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner

from kvlab.cli.eval import evaluate
from kvlab.evaluation.job import Pace, shown_progress
from kvlab.requests.compare import Progress

app = typer.Typer()
app.command()(evaluate)


@pytest.fixture(scope="module")
def command(tiny_folder, tmp_path_factory):
    out = tmp_path_factory.mktemp("out")
    return [
        *(
            "--model",
            str(tiny_folder),
            "--tasks",
            "needle,copy:words=4",
            "--methods",
            "h2o,full",
            "--budgets",
            "0.2,16",
        ),
        *("--lengths", "200", "--depths", "0,1", "--samples", "2", "--out", str(out), "--question-aware", "no"),
    ]


def test_the_table_and_the_json_tell_the_same(command):
    table = CliRunner().invoke(app, command, env={"COLUMNS": "160"})
    assert table.exit_code == 0, table.output
    told = CliRunner().invoke(app, [*command, "--json"])
    assert told.exit_code == 0, told.output
    summary = json.loads(told.stdout)["summary"]
    assert [(line["task"], line["method"], line["samples"]) for line in summary] == [
        *(("needle", method, 2) for depth in (0, 1) for method in ("full", "h2o", "h2o")),
        *(("copy", method, 2) for method in ("full", "h2o", "h2o")),
    ]
    assert not any(line["question_aware"] for line in summary)
    for line in summary:
        assert f"{line['score']:.3f} [{line['score_low']:.3f}, {line['score_high']:.3f}]" in table.stdout
    assert [line["depth"] for line in summary] == [0, 0, 0, 1, 1, 1, None, None, None]
    assert all(text in table.stdout for text in ("compressed without the question", "depth 0 ", "depth 1 "))


def test_progress_goes_to_standard_error_and_counts_what_is_on_disk(command):
    CliRunner().invoke(app, command)
    again = CliRunner().invoke(app, [*command, "--json"])
    assert "18 measurements, 18 of them already on disk" in again.stderr
    json.loads(again.stdout)


def test_an_unknown_option_exits_with_2(command):
    assert CliRunner().invoke(app, [*command, "--colour", "red"]).exit_code == 2


def test_time_left_counts_only_what_was_measured(monkeypatch: pytest.MonkeyPatch):
    """A pass of 5 seconds gives ten rows at once: its first says nothing of the speed yet, fifty rows are on disk."""
    clock = iter([0.0, 0.0, 0.0, *[5.0] * 10, 10.0])
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    pace = Pace()
    left = [
        pace.seconds_left(Progress(stage="start" if done == 50 else "x", done=done, total=100))
        for done in range(50, 62)
    ]
    assert left[:2] == [math.inf, math.inf]
    assert left[-1] == pytest.approx(5 / 10 * 39)


@pytest.mark.parametrize("terminal", [True, False])
def test_progress_is_shown_in_terminals_and_logs(terminal):
    told = io.StringIO()
    with shown_progress(Console(file=told, force_terminal=terminal, width=100)) as listener:
        for done in (2, 3, 4):
            listener(Progress(stage="start" if done == 2 else "needle: h2o 20 %", done=done, total=4))
    assert "4/4" in told.getvalue() if terminal else "4/4, about 0 s left (needle: h2o 20 %)" in told.getvalue()
