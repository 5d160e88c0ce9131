"""The outcome of a comparison in one sentence names the runs that got the answer, or the closest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from kvlab.requests.repeats import Planting, Repeat
from kvlab.trace import open_run
from kvlab.trace.reader import Run
from kvlab.trace.user_labels import Labels
from kvlab.views.frames.outcome import batch_outcome, outcome
from kvlab.views.frames.repeats import build_batch, repeat_table
from tests.synthetic.runs import write_synthetic_run

METHODS = ("full", "h2o", "keepkv")


def made(root: Path, comparison: str = "c", **how: Any) -> list[Run]:
    small = {"prompt_tokens": 16, "steps": 6, "layers": 1, "heads": 1}
    return [
        open_run(write_synthetic_run(root, method=name, comparison_id=comparison, **small, **how)) for name in METHODS
    ]


def test_runs_that_generate_the_answer_are_named(tmp_path: Path):
    runs = made(tmp_path)
    word = runs[1].record.free_text.split()[0]
    right = [run for run in runs[1:] if word in run.record.free_text.split()]
    told = outcome(runs, Labels(answer=word))
    assert told.startswith(f"{len(right)} of 2 compressed runs generate") and f"“{word}”" in told
    assert all(run.record.method in told for run in right)
    none = outcome(runs, Labels(answer="no such words"))
    assert none.startswith("None of 2 compressed runs generates the expected answer “no such words”.")


def test_without_an_answer_the_closest_comes_first(tmp_path: Path):
    runs = made(tmp_path)
    closeness = {run.record.method: run.tokens.loc[run.tokens["phase"] == "forced", "kl"].mean() for run in runs[1:]}
    first, second = sorted(closeness, key=closeness.__getitem__)
    told = outcome(runs)
    assert told.startswith("Closest to the full cache (mean KL, nats per token): ")
    assert told.index(first) < told.index(second)
    assert outcome(runs[:1]) == ""


@pytest.mark.parametrize("asked", [True, False])
def test_a_batch_tells_how_often_or_how_close(tmp_path: Path, asked: bool):
    tables: list[pd.DataFrame] = []
    for number in (1, 2):
        repeat = Repeat(batch="b", number=number, of=2, planting=Planting())
        runs = made(tmp_path, f"b-{number}", repeat=repeat, answer="no such words" if asked else None)
        tables.append(repeat_table(runs))
    told = batch_outcome(build_batch(tables))
    if asked:
        assert (
            told.startswith("Over 2 prompts, right: ") and told.count("0 of 2") == 3 and "the full cache 0 of 2" in told
        )
    else:
        assert told.startswith("Over 2 prompts, closest to the full cache (mean KL, nats per token): ")
