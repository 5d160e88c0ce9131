"""What the forms of evaluations and benchmarks cannot send is one sentence, and there is no button that would."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from tests.pages.forms import refused

SENDS = {"quality": "evaluate", "speed": "measure"}  # the key of the button of each page's form


@pytest.mark.parametrize(
    ("page", "field", "value", "sentence"),
    [
        ("quality", "lengths", "many", "Lengths are numbers with commas between them"),
        ("quality", "lengths", "0", "at least 1"),
        ("quality", "depths", "2", "Depths are shares of the prompt from 0 to 1"),
        ("quality", "budgets", "0", "The budget 0 cannot be used"),
        ("quality", "eval_model", "no such model", "There is no model"),
        ("quality", "eval_name", "../up", "Results cannot be called"),
        ("speed", "contexts", "", "Give at least one number of tokens"),
        ("speed", "batches", "x", "Batches are numbers"),
        ("speed", "bench_model", "nowhere at all", "There is no model"),
        ("speed", "bench_name", "a/b", "Results cannot be called"),
    ],
)
def test_what_cannot_be_sent_is_one_sentence(
    runs_root: Path, open_page: Callable[..., AppTest], page: str, field: str, value: str, sentence: str
):
    shown = refused(open_page(page, methods="H2O"), field, value, sentence)
    assert SENDS[page] not in {button.key for button in shown.button}
