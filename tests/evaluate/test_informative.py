"""Tasks that the full cache cannot do are named and left out of ranks."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
from typer.testing import CliRunner

from kvlab.cli import commands
from kvlab.results.quality_tables import ALL_TASKS, abilities, informative, ranks


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


def test_where_no_task_is_informative_all_stay_and_it_is_said() -> None:
    rows = rows_of({"copy": [0, 0]}, {"copy": [0, 0]})
    told, sentence = informative(rows)
    assert len(told) == 4 and sentence.startswith("No task is informative")


def test_the_command_measures_the_full_cache_alone(tmp_path: Path) -> None:
    words = ["tasks", "--model", "mini", "--samples", "1", "--out", str(tmp_path / "out"), "--json"]
    done = CliRunner().invoke(commands, words)
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout[done.stdout.index("[") :])
    assert {line["task"] for line in found} >= {"needle", "copy", "next_token_kl"}
    assert all(line["prompts"] == 1 for line in found)
