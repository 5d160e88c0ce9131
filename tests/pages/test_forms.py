"""What the forms of evaluations and benchmarks cannot send is one sentence, and there is no button that would."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from tests.pages.forms import refused

SENDS = {"Many prompts": "evaluate", "Timing": "measure"}  # the key of the button of each question's form


@pytest.mark.parametrize(
    ("question", "field", "value", "sentence"),
    [
        ("Many prompts", "lengths", "many", "Lengths are numbers with commas between them"),
        ("Many prompts", "lengths", "0", "at least 1"),
        ("Many prompts", "depths", "2", "Depths are shares of the prompt from 0 to 1"),
        ("Many prompts", "budgets", "0", "The budget 0 cannot be used"),
        ("Many prompts", "model", "no such model", "There is no model"),
        ("Many prompts", "eval_name", "../up", "Results cannot be called"),
        ("Timing", "contexts", "", "Give at least one number of tokens"),
        ("Timing", "batches", "x", "Batches are numbers"),
        ("Timing", "model", "nowhere at all", "There is no model"),
        ("Timing", "bench_name", "a/b", "Results cannot be called"),
    ],
)
def test_what_cannot_be_sent_is_one_sentence(
    runs_root: Path, open_page: Callable[..., AppTest], question: str, field: str, value: str, sentence: str
):
    shown = refused(open_page("new_run", ask=question, methods="H2O"), field, value, sentence)
    assert SENDS[question] not in {button.key for button in shown.button}
