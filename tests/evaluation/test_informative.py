"""Tasks that the full cache cannot do are named and left out of ranks."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path

import pandas as pd
import pytest
from typer.testing import CliRunner

from kvlab.cli import commands
from kvlab.common.intervals import wilson
from kvlab.core.plugins.load import Registry
from kvlab.results.informative import abilities, informative, task_notes
from kvlab.results.quality_tables import ALL_TASKS, ranks
from kvlab.tasks import registry
from kvlab.tasks.registry import TASKS


def rows_of(full: dict[str, list[float]], other: dict[str, list[float]]) -> pd.DataFrame:
    """Evaluation rows of the full cache and of h2o at 20 %."""
    lines = []
    for method, scores in (("full", full), ("h2o", other)):
        for task, values in scores.items():
            for index, score in enumerate(values):
                lines.append(
                    {
                        "key": f"{method}-{task}-{index}", "task": task, "difficulty": "{}", "length": 1024,
                        "depth": None, "index": index, "seed": 0, "content": "", "method": method,
                        "hyper_parameters": "{}", "settings": "{}", "variant": "",
                        "budget": 1.0 if method == "full" else 0.2, "budget_unit": "fraction", "question_aware": True,
                        "model": "mini", "model_digest": "0", "prefill_chunk": None,
                        "metric": "kl" if task == "next_token_kl" else "whole_match_all", "score": score, "slots": 10.0,
                        "logical_tokens": 10.0, "live_bytes": 10.0, "allocated_bytes": 10.0, "seconds": 1.0,
                        "prompt_seconds": 1.0, "bits_per_byte": None, "kl": None, "top1_agreement": None,
                    }
                )  # fmt: skip
    return pd.DataFrame(lines)


def test_a_task_is_informative_if_the_full_cache_answers_half() -> None:
    rows = rows_of({"needle": [1, 1, 0, 0], "copy": [0, 1, 0, 0], "next_token_kl": [0, 0]}, {"needle": [1, 0, 0, 0]})
    found = abilities(rows).set_index("task")
    assert found["informative"].to_dict() == {"needle": True, "copy": False, "next_token_kl": True}
    assert found["prompts"].to_dict() == {"needle": 4, "copy": 4, "next_token_kl": 2}
    assert found.loc["needle", "score"] == 0.5
    assert found.loc["needle", "score_low"] < 0.5 < found.loc["needle", "score_high"]


def test_ranks_leave_out_what_the_model_cannot_do() -> None:
    full = {"needle": [1, 1], "key_value": [1, 1], "copy": [0, 0]}
    rows = rows_of(full, {"needle": [1, 1], "key_value": [0, 1], "copy": [0, 0]})
    told, sentence = informative(rows)
    assert set(told["task"]) == {"needle", "key_value"} and "copy" in sentence and sentence.endswith(".")
    assert set(ranks(told, "20 %")["task"]) == {"needle", "key_value", ALL_TASKS}
    everything, none = informative(rows[rows["task"] != "copy"])
    assert none == "" and len(everything) == 8


def test_a_task_that_fails_at_one_length_is_named_with_it() -> None:
    rows = pd.concat(
        [rows_of({"needle": [1, 1]}, {"needle": [1, 1]}), rows_of({"needle": [0]}, {"needle": [0]}).assign(length=4096)]
    )
    left, sentence = informative(rows)
    assert set(left["length"]) == {1024} and "needle at 4,096 tokens" in sentence


def test_where_no_task_is_informative_all_stay_and_it_is_said() -> None:
    rows = rows_of({"copy": [0, 0]}, {"copy": [0, 0]})
    told, sentence = informative(rows)
    assert len(told) == 4 and sentence.startswith("No task is informative")


def _know_only(names: Iterable[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit the registry to these tasks; modules that bind it at import are imported before and keep all."""
    for name in ("kvlab.evaluation.request_parser", "kvlab.jobs.size_check", "kvlab.extend"):
        import_module(name)
    monkeypatch.setattr(registry, "TASKS", Registry("task", {name: TASKS[name] for name in names}))


def test_the_command_measures_the_full_cache_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = ("needle", "copy", "next_token_kl")  # a test below has every task, on a smaller model
    _know_only(asked, monkeypatch)
    words = ["tasks", "--model", "mini", "--samples", "1", "--out", str(tmp_path / "out"), "--json"]
    done = CliRunner().invoke(commands, words)
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout[done.stdout.index("[") :])
    assert [line["task"] for line in found] == list(asked)
    assert all(line["prompts"] == 1 for line in found)


def test_a_short_window_takes_shorter_tasks_and_names_those_it_cannot_hold(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each task is there once: measured within 256 tokens, its length said, or with what it would need."""
    few = {name: task for name, task in TASKS.items() if not name.startswith("ruler_") or name == "ruler_qa_1"}
    _know_only(few, monkeypatch)
    folder = shutil.copytree(tiny_folder, tmp_path / "short")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 256}))
    words = ["tasks", "--model", str(folder), "--samples", "1", "--out", str(tmp_path / "out")]
    done = CliRunner().invoke(commands, [*words, "--json"])
    assert done.exit_code == 0, done.output
    found = {line["task"]: line for line in json.loads(done.stdout[done.stdout.index("[") :])}
    assert set(found) == set(few)
    needle, pairs = found["needle"], found["key_value"]
    assert needle["prompts"] == 1 and needle["length"] < 256 and "fit the window of 256" in needle["note"]
    assert pairs["prompts"] == 0 and re.match(r"not measurable: \d+ tokens cannot hold this task: ask", pairs["note"])
    table = CliRunner().invoke(commands, words)
    assert table.exit_code == 0 and "not measurable" in table.stdout and "short" in table.stdout


def test_a_task_note_counts_the_right_prompts_of_the_lengths_asked_for() -> None:
    rows = rows_of({"needle": [1, 1], "copy": [0, 1, 0, 0], "common_words": [0.25, 0.5]}, {"needle": [0, 0]})
    unaware = rows.assign(question_aware=False, key="unaware-" + rows["key"])  # the full cache answers the same
    both = pd.concat([rows, unaware, rows.assign(model="other", score=0.0)])
    asked = dict.fromkeys(("needle", "copy", "common_words", "few_shot"), "{}")
    notes = task_notes(both, "mini", asked)
    assert notes["needle"] == "" and "few_shot" not in notes
    low, high = wilson(1, 4)[1:]
    right = f"right in 1 of 4 prompts of 1,024 tokens: 0.25 ({low:.3g} to {high:.3g}, 95 % interval)"
    assert notes["copy"] == f"copy: full cache {right}."
    assert "scored on 2 prompts of 1,024 tokens: 0.375 (" in notes["common_words"]
    assert task_notes(both, "mini", asked, [1024]) == notes
    assert task_notes(both, "mini", asked, [512]) == {}
    assert task_notes(both, "mini", {"copy": '{"style":"chat"}'}) == {} == task_notes(pd.DataFrame(), "mini", asked)
