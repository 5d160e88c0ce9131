"""Names of runs in view: distinct, of what differs between them, and of nothing else."""

from __future__ import annotations

import re
from collections.abc import Sequence
from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st

from kvlab.core.choice import MethodChoice
from kvlab.views.frames.labels import LabelParts, differing_parts, distinct_names, parse_label

CHOICES = st.builds(
    MethodChoice,
    method=st.sampled_from(["h2o", "keepkv", "snapkv"]),
    budget=st.sampled_from([0.1, 0.3, 128]),
    hyper_parameters=st.dictionaries(
        st.sampled_from(["preset", "rule", "sinks"]), st.sampled_from(["paper", "votes", "[1, 2]"]), max_size=3
    ),
    force_keep=st.sampled_from([(), (3, 4)]),
)


def amount(choice: MethodChoice) -> str:
    return f"{choice.budget} slots" if isinstance(choice.budget, int) else f"{choice.budget:.0%}".replace("%", " %")


def settings(choice: MethodChoice) -> dict[str, str]:
    """Everything of a choice but method and budget, as a plain dictionary."""
    return {name: str(value) for name, value in choice.hyper_parameters.items()} | {"kept": str(choice.force_keep)}


@given(st.lists(CHOICES, min_size=2, max_size=6, unique_by=lambda choice: choice.label))
def test_names_are_distinct_and_no_word_of_them_is_shared_by_all(choices: Sequence[MethodChoice]):
    names = distinct_names(choices)
    assert len(set(names)) == len(choices)
    assert not any("#" in name for name in names), "what differs is told in words"
    if len({choice.method for choice in choices}) > 1:
        assert all(name.startswith(choice.method) for name, choice in zip(names, choices, strict=True))
    budgets = {amount(choice) for choice in choices}
    for name, choice in zip(names, choices, strict=True):
        assert (amount(choice) in name) == (len(budgets) > 1)


@given(st.lists(CHOICES, min_size=2, max_size=6, unique_by=lambda choice: choice.label))
def test_a_setting_is_named_only_where_runs_of_one_method_differ_in_it(choices: Sequence[MethodChoice]):
    for name, choice in zip(distinct_names(choices), choices, strict=True):
        alike = [settings(other) for other in choices if other.method == choice.method]
        for setting, value in choice.hyper_parameters.items():
            shared = len({own.get(setting) for own in alike}) == 1
            word = str(value) if setting == "preset" else f"{setting}={value}"
            assert shared == (re.search(rf"(^| ){re.escape(word)}($| )", name) is None)
        if len({own["kept"] for own in alike}) == 1:
            assert "keeping" not in name


@given(st.lists(CHOICES, min_size=1, max_size=5))
def test_the_same_run_twice_is_numbered_and_a_lone_run_has_a_whole_name(choices: Sequence[MethodChoice]):
    assert len(set(distinct_names([*choices, *choices]))) == 2 * len(choices)
    first = choices[0]
    assert distinct_names([first]) == [f"{first.method} {amount(first)}"]


def test_what_was_given_back_tells_a_rerun_from_its_run():
    label = "keepkv 30 % (paper)"
    record = lambda label: SimpleNamespace(method="keepkv", budget=0.3, label=label)  # noqa: E731
    given = record(f"{label} + tokens 738-742")
    assert distinct_names([record(label), given]) == ["default", "+ tokens 738-742"]
    other = SimpleNamespace(method="h2o", budget=0.3, label="h2o 30 %")
    assert distinct_names([other, record(label), given]) == ["h2o", "keepkv default", "keepkv + tokens 738-742"]


def test_the_full_cache_has_no_budget_to_be_named():
    full, h2o = MethodChoice(method="full", budget=1.0), MethodChoice(method="h2o", budget=0.2)
    assert distinct_names([full, h2o]) == ["full", "h2o"]


def test_rows_of_a_table_of_budgets_leave_them_out():
    runs = [MethodChoice(method=method, budget=budget) for method in ("h2o", "keepkv") for budget in (0.1, 0.3)]
    assert differing_parts(runs, budget=False) == ["h2o", "h2o", "keepkv", "keepkv"]


def test_a_label_comes_apart_into_what_it_was_made_of():
    choice = MethodChoice(
        method="keepkv", budget=64, hyper_parameters={"preset": "paper", "b": [1, 2], "a": "x, y"}, force_keep=(1, 2)
    )
    found = parse_label(choice)
    assert (found.method, found.budget, found.preset) == ("keepkv", "64 slots", "paper")
    assert dict(found.settings) == {"a": "x, y", "b": "[1, 2]"}
    assert found.rest == "keeping tokens 1-2"


def test_the_full_cache_has_a_method_and_nothing_else():
    run = SimpleNamespace(method="full", budget=1.0, label="full cache")
    assert parse_label(run) == LabelParts("full", "")
