"""What is recorded of the prompt's decision is what the method decided by."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from kvlab.core.choice import MethodChoice
from kvlab.core.errors import UserError
from kvlab.engine import compare
from kvlab.requests.compare import CompareRequest
from kvlab.requests.recording import Recording, decision_that_fits
from kvlab.trace import Run, open_run
from kvlab.views.decision import by_rank, cutoff

PROMPT = "Alice was beginning to get very tired of sitting by her sister on the bank. " * 2
BUDGET = 40


def made(folder: Path, root: Path, *methods: str, **options) -> list[Run]:
    choices = tuple(MethodChoice(method=name, budget=BUDGET) for name in methods)
    asked = {"prompt": PROMPT, "model": str(folder), "choices": choices, "max_new_tokens": 4}
    return [open_run(path) for path in compare(CompareRequest(**asked | options), root)]


def test_scores_and_what_stayed_agree_with_the_events(tiny_model_folder: Path, tmp_path: Path):
    full, *runs = made(tiny_model_folder, tmp_path, "h2o", "snapkv", "keepkv", "d2o", "adakv")
    for run in runs:
        events = run.events[run.events["step"] == 0]
        for layer in range(run.record.model.num_hidden_layers):
            for head in range(run.record.model.num_key_value_heads):
                score, kept = run.decision(layer, head)
                assert len(score) == run.record.prompt_tokens and not np.isnan(score).any()
                left = events[(events["layer"] == layer) & (events["head"] == head)]["source"]
                assert set(np.flatnonzero(kept == 0)) == set(left)
    with pytest.raises(UserError, match="nothing had to be evicted"):
        full.decision(0, 0)


@pytest.mark.parametrize("method", ["h2o", "snapkv", "keepkv"])
def test_score_and_place_say_who_stays(tiny_model_folder: Path, tmp_path: Path, method: str):
    (run,) = made(tiny_model_folder, tmp_path, method)
    for head in range(run.record.model.num_key_value_heads):
        line = cutoff(by_rank(run, 1, head))
        assert line.by_score and line.placed > 0


def test_only_the_layers_and_heads_asked_for(tiny_model_folder: Path, tmp_path: Path):
    (run,) = made(tiny_model_folder, tmp_path, "h2o", record=Recording(layers=(1,), heads=(0,)))
    assert len(run.decision(1, 0)[0]) == run.record.prompt_tokens
    for layer, head in ((0, 0), (1, 1)):
        with pytest.raises(UserError, match="Nothing was recorded of"):
            run.decision(layer, head)


def test_what_does_not_fit_is_left_out_in_a_sentence():
    assert decision_that_fits(range(4), 2, 100, most=4000) == ([0, 1, 2, 3], "")
    kept, sentence = decision_that_fits(range(4), 2, 100, most=2500)
    assert kept == [0, 3] and sentence.startswith("The prompt's decision was recorded of layers 0, 3 only")
    kept, sentence = decision_that_fits(range(4), 2, 100, most=10)
    assert kept == [] and "was left out" in sentence
