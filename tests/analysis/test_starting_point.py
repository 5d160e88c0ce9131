"""The run a page opens with is the one that has most to show of what the page is about."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from kvlab.trace.reader import Run, open_run
from kvlab.views.frames.starting_point import Contents, Prefer, suggest_run
from tests.synthetic.runs import write_synthetic_run


def opened(root: Path, method: str, **options: object) -> Run:
    return open_run(write_synthetic_run(root, method=method, prompt_tokens=32, steps=4, **options))


def contents(**parts: object) -> Contents:
    none = {"is_full": True, "merged": 0, "evicted": 0, "uneven": 0.0, "differs": False, "regret": 0.0, "bounded": 0.0}
    return Contents(**{**none, **parts})


WINDOW = contents(evicted=90, regret=0.3)
SCORED = contents(evicted=90, regret=0.1, differs=True)
BUDGETS = contents(evicted=90, regret=0.1, differs=True, uneven=0.4)
MERGING = contents(merged=90, differs=True)
BOUNDED = contents(merged=40, evicted=50, differs=True, bounded=0.7)


@pytest.mark.parametrize(
    ("prefer", "best"),
    [("any", BOUNDED), ("budgets", BUDGETS), ("merging", BOUNDED), ("bound", BOUNDED)],
)
def test_a_page_prefers_the_run_with_most_of_its_subject(prefer: Prefer, best: Contents):
    runs = [WINDOW, SCORED, MERGING, BUDGETS, BOUNDED]
    assert max(runs, key=lambda run: run.rank(prefer)) is best
    assert max(runs, key=lambda run: run.rank(prefer)) is not WINDOW


def test_a_run_without_single_events_comes_after_one_with_them():
    assert max([contents(is_full=False, merged=9, evicted=9), WINDOW], key=lambda run: run.rank("any")) is WINDOW


def test_the_reason_names_what_there_is_and_begins_with_the_subject():
    assert BUDGETS.words("budgets") == "heads with different budgets, 90 evictions, heads that keep different tokens"
    assert BOUNDED.words("bound").startswith("a bound at 70% of its steps, 40 merges")
    assert MERGING.words("merging") == "90 merges, heads that keep different tokens"
    assert contents(merged=1).words("any") == "1 merge"
    assert contents().words("any") == ""


def test_the_first_run_in_a_list_is_not_the_one_that_opens_if_another_shows_more(tmp_path: Path):
    runs = [opened(tmp_path, method) for method in ("full", "h2o", "keepkv")]
    for prefer in ("any", "merging", "bound"):
        ids, reason = suggest_run(runs, None, prefer)
        assert ids == (runs[2].record.run_id,)
        assert "merges" in reason
    ids, reason = suggest_run(runs[:2], None, "merging")
    assert ids == (runs[1].record.run_id,) and "evictions" in reason
    assert suggest_run(runs[:1], None, "any") == ((runs[0].record.run_id,), "the first compressed run")


def test_the_page_of_budgets_opens_a_run_whose_heads_differ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    even, uneven = (opened(tmp_path, "h2o", seed=seed) for seed in (0, 1))
    select = Run.select

    def with_budgets(run: Run, table: str, *place: int, **options: object) -> pd.DataFrame:
        frame = select(run, table, *place, **options)
        if run is uneven and table == "steps":
            frame["live_slots"] += np.arange(len(frame)) % 2
        return frame

    monkeypatch.setattr(Run, "select", with_budgets)
    ids, reason = suggest_run([even, uneven], None, "budgets")
    assert ids == (uneven.record.run_id,)
    assert "heads with different budgets" in reason
