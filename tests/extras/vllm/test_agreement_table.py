"""The measured table: a run replaces the one before, and what breaks is said below it."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from kvlab.core.errors import UserError
from kvlab.extras.vllm import agreement
from kvlab.extras.vllm.agreement import NATIVE, Agreement, Prompt, Trial
from kvlab.extras.vllm.agreement_table import BEGIN, read_agreements, ship_run, with_agreements

ROW = Agreement("mini", "h2o", "batch", 10, 10, 10, 1.0, "3 were preempted")
BROKEN = Agreement("mini", "h2o", "next turn", 10, 4, 7, 0.9, "6: pages are stale; 10 took pages from the prefix cache")


def test_a_run_replaces_all_rows_of_its_model(tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    assert read_agreements(file) == []
    other = replace(ROW, model="smollm2")
    ship_run([other], file)
    assert ship_run([ROW, BROKEN], file) == [other, ROW, BROKEN]
    better = replace(ROW, slots=9)
    assert ship_run([better], file) == [other, better] == read_agreements(file)


def test_a_situation_that_raises_is_a_row_and_the_rest_goes_on_in_a_new_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    def raising(trial: Trial, engine: str, name: str) -> Agreement:
        raise ValueError("no pages;\n none at all")

    def agreeing(trial: Trial, engine: str, name: str) -> Agreement:
        return Agreement("mini", trial.name, name, 3, 3, 3, 1.0, engine)

    engines = (nullcontext(f"engine {number}") for number in range(9))
    monkeypatch.setattr(agreement, "started_engine", lambda folder, shape: next(engines))
    monkeypatch.setattr(agreement, "SITUATIONS", {"few pages": {"batch": raising, "preempted": agreeing}})
    model = SimpleNamespace(name="mini")
    trials = [Trial(model, name, None, [Prompt("", [1], [2], 3)] * 3) for name in ("h2o", "snapkv")]
    rows = list(agreement.agreements(trials, "folder", ["batch", "preempted"]))
    assert [(row.method, row.situation, row.prompts) for row in rows] == [
        ("h2o", "batch", 0), ("h2o", "preempted", 3), ("snapkv", "batch", 0), ("snapkv", "preempted", 3),
    ]  # fmt: skip
    assert rows[1].note == "engine 1" and rows[3].note == "engine 2"
    made = with_agreements(f"{BEGIN}<!-- end -->", rows)
    assert "| h2o | error | 3 of 3 |" in made
    assert "- batch: ended with ValueError: no pages, none at all (h2o 3, snapkv 3)." in made


def test_the_document_has_cells_and_reasons() -> None:
    text = f"before\n{BEGIN}\nold\n<!-- end -->\nafter"
    native = replace(ROW, method="full", situation=NATIVE, slots=0)
    made = with_agreements(text, [native, ROW, BROKEN])
    assert made.startswith("before") and made.endswith("after") and "old" not in made
    assert "| h2o | 10 of 10 | 4 / 7 of 10 |" in made
    assert "- next turn: pages are stale (h2o 6)." in made
    assert "10 of 10 texts are those of kvlab's full cache" in made


def test_a_damaged_file_and_a_document_without_marks(tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    file.write_text("model,method\nmini,h2o\n")
    with pytest.raises(UserError, match="delete it and measure again"):
        read_agreements(file)
    with pytest.raises(UserError, match="has no lines"):
        with_agreements("no marks", [ROW])
