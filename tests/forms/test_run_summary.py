"""The sentence in the bar of New run: what would run, and whether it fits."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kvlab.core.choice import MethodChoice
from kvlab.forms.plan_preview import run_summary
from kvlab.requests.compare import CompareRequest, OnePrompt

H2O, KEEPKV, GVOTE = (
    MethodChoice(method="h2o", budget=0.2), MethodChoice(method="keepkv", budget=0.2),
    MethodChoice(method="gvote", budget=1.0),
)  # fmt: skip


def request(*choices: MethodChoice, **further: Any) -> CompareRequest:
    return CompareRequest(prompt="x", choices=choices, **further)


@pytest.mark.parametrize(
    ("choices", "sentence"),
    [
        ([H2O, KEEPKV], "2 methods at 20 % beside the full cache"),
        ([H2O, MethodChoice(method="h2o", budget=128)], "1 method at 20 % and 128 slots beside the full cache"),
        ([H2O, GVOTE], "1 method at 20 % and gvote at its own budget beside the full cache"),
        ([MethodChoice(method="full", budget=1.0)], "the full cache alone"),
        ([H2O], "1 method at 20 %"),
    ],
)
def test_methods_are_counted_at_the_budgets_that_they_get(choices: list[MethodChoice], sentence: str):
    assert run_summary(request(*choices)) == sentence


def test_the_fit_follows_from_the_plan():
    plan: Any = SimpleNamespace(fits=True)
    assert run_summary(request(H2O, KEEPKV), plan) == "2 methods at 20 % beside the full cache, fits"
    two = (OnePrompt(prompt="x"), OnePrompt(prompt="y"))
    plan = SimpleNamespace(fits=False)
    assert run_summary(request(H2O, prompts=two), plan) == "1 method at 20 % over 2 prompts, does not fit"
