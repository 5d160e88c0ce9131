"""Runs of several comparisons stand side by side where they can be held together, else a sentence says why not."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvlab.core.errors import UserError
from kvlab.library import items
from kvlab.trace.catalogue import list_comparisons


def test_runs_over_one_prompt_stand_side_by_side_with_one_full_cache(kept: Path):
    together = items.join_comparisons(kept, "one/two", list_comparisons(kept))
    assert [run.method for run in together.runs] == ["full", "h2o", "keepkv", "h2o", "keepkv"]
    assert {run.comparison_id for run in together.runs} == {"one", "two"}
    assert items.split_joint_id(together.comparison_id) == ["one", "two"]


@pytest.mark.parametrize(
    ("given", "why"), [({"seed": 5}, "another prompt"), ({"steps": 3}, "another continuation"), ({}, "no comparison")]
)
def test_what_cannot_be_held_together_is_said(kept: Path, given: dict, why: str):
    if given:
        size = {"layers": 1, "heads": 1, "steps": 4, "prompt_tokens": 24, "level": "light"} | given
        from tests.synthetic.runs import write_synthetic_run

        for method in ("full", "h2o"):
            write_synthetic_run(kept, method=method, comparison_id="other", **size)
    with pytest.raises(UserError, match=why):
        items.join_comparisons(kept, "one/other", list_comparisons(kept))


def test_an_address_of_one_comparison_is_none_of_several():
    assert items.split_joint_id("one") == []
