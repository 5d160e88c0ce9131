"""A counterfactual run: chosen tokens have no event of leaving, and the record says which they were."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvlab.core.choice import MethodChoice
from kvlab.core.errors import UserError
from kvlab.engine import compare
from kvlab.requests.compare import CompareRequest
from kvlab.trace import open_run

PROMPT = "Alice was beginning to get very tired of sitting by her sister on the bank. " * 2


def ask(folder: Path, *choices: MethodChoice) -> CompareRequest:
    return CompareRequest(prompt=PROMPT, model=str(folder), choices=choices, max_new_tokens=6)


def test_kept_tokens_never_leave_and_others_do(tiny_model_folder: Path, tmp_path: Path):
    plain, kept = (MethodChoice(method="h2o", budget=0.2, force_keep=chosen) for chosen in ((), (20, 21, 22)))
    runs = [open_run(path) for path in compare(ask(tiny_model_folder, plain, kept), tmp_path)][1:]
    left = [set(run.events["source"]) & {20, 21, 22} for run in runs]
    assert left[0] and not left[1]
    assert len(runs[0].events) == len(runs[1].events), "the places are taken from the budget"
    assert runs[1].record.force_keep == (20, 21, 22)
    assert runs[1].record.label.endswith("keeping tokens 20-22")
    assert all(run.record.recorded_tokens_per_second > 0 for run in runs)


def test_a_position_outside_the_prompt_is_one_sentence(tiny_model_folder: Path, tmp_path: Path):
    with pytest.raises(UserError, match="Token 5000 cannot be kept: the prompt has 153 tokens"):
        compare(ask(tiny_model_folder, MethodChoice(method="h2o", force_keep=(5000,))), tmp_path)
    assert not list(tmp_path.iterdir())
