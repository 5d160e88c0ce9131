"""Claims of evaluations and benchmarks, from frames made by hand."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from kvlab.common.intervals import Interval
from kvlab.papers import benchmarks
from kvlab.papers.evaluations import NOT_BEHIND, contest
from kvlab.papers.gvote import scores as budgets
from kvlab.papers.kvmerger import needle
from kvlab.results.verdict import FAILS, HOLDS, OPEN

PROMPTS = 10


def between(low: float, high: float, n: int = 20) -> Interval:
    return Interval((low + high) / 2, low, high, n)


def test_a_contest_shows_the_gap_that_decides_and_how_to_settle_it():
    won = contest("a beats b", {"20 %": between(0.1, 0.2), "40 %": between(0.05, 0.3)}, "so", "kvlab eval")
    assert (won.verdict, won.settle, won.basis.prompts) == (HOLDS, None, 20)
    lost = contest("a beats b", {"20 %": between(0.1, 0.2), "40 %": between(-0.3, -0.1)}, "so", "kvlab eval")
    assert lost.verdict == FAILS
    assert lost.interval is not None and lost.interval.high == -0.1
    open_still = contest("a beats b", {"20 %": between(0.1, 0.2), "40 %": between(-0.1, 0.1)}, "so", "kvlab eval")
    assert (open_still.verdict, open_still.settle) == (OPEN, "kvlab eval")
    assert contest("a beats b", {"20 %": between(0.1, 0.2, n=4)}, "so").verdict == OPEN
    assert contest("a beats b", {"20 %": None}, "so").verdict == OPEN


def test_competitive_is_no_more_than_five_points_behind():
    for low, high, verdict in ((-0.04, 0.0, HOLDS), (-0.3, -0.1, FAILS), (-0.1, 0.1, OPEN)):
        assert contest("competitive", {"gap": between(low, high)}, "so", "", NOT_BEHIND).verdict == verdict


def of_gvote(kept: float, prompts: int = PROMPTS, off: float = 0.0) -> tuple[pd.DataFrame, pd.DataFrame]:
    """GVote scores 0.3 with `kept`; a fixed budget scores what it keeps, so that 0.3 takes 30 %."""
    cells = [("gvote", "gvote", "all", 0.3, kept), ("full", "full", "all", 1.0, 1.0)]
    cells += [("h2o", "h2o", f"{budget}", budget, budget) for budget in (0.1, 0.5)]
    table = pd.DataFrame(
        [
            {
                "task": task, "prompt": f"{task}{prompt}", "method": method, "arm": arm, "asked": asked,
                "score": score + (off * (-1) ** prompt if method == "gvote" else 0), "kept": share,
            }
            for task in ("needle", "list")
            for prompt in range(prompts)
            for method, arm, asked, score, share in cells
        ]
    )  # fmt: skip
    means = table.groupby(["method", "arm", "asked"], sort=False)[["score", "kept"]].mean().reset_index()
    bounds = {f"{name}_{end}": means[name] for name in ("score", "kept") for end in ("low", "high")}
    return means.assign(**bounds, prompts=2 * prompts), table


@pytest.mark.parametrize(("kept", "verdict"), [(0.1, HOLDS), (0.3, FAILS)])
def test_half_the_memory_is_measured_at_the_same_score(kept: float, verdict: str):
    claim = budgets.memory_claim(*of_gvote(kept))
    assert claim.verdict == verdict
    assert claim.interval is not None
    assert claim.interval.mean == pytest.approx(0.3 / kept)
    assert claim.basis.prompts == 2 * PROMPTS


def test_memory_saved_is_open_on_few_prompts_or_wide_intervals():
    assert budgets.memory_claim(*of_gvote(0.1, prompts=2)).verdict == OPEN
    assert budgets.memory_claim(*of_gvote(0.145, off=0.25)).verdict == OPEN
    means, table = of_gvote(0.1)
    assert budgets.memory_claim(means[means["method"] != "full"], table).verdict == OPEN


def test_a_rival_that_never_reaches_the_score_needs_the_whole_cache():
    _, table = of_gvote(0.1)
    table.loc[table["method"] == "gvote", "score"] = 0.9
    found = budgets.times_the_memory(table)
    assert found is not None and found.mean == pytest.approx(1 / 0.1)


def test_needed_usage_lies_on_the_line():
    line = np.array([0.1, 0.3, 0.5]), np.array([0.2, 0.4, 0.9])
    assert budgets.needed_usage(*line, 0.1) == 0.1
    assert budgets.needed_usage(*line, 0.3) == pytest.approx(0.2)
    assert budgets.needed_usage(*line, 0.9) == pytest.approx(0.5)
    assert budgets.needed_usage(*line, 0.95) == float("inf")


def test_budgets_follow_the_task_only_where_tasks_differ_clearly():
    noise = np.random.default_rng(0).normal(0, 0.01, 20)
    tables = {
        HOLDS: pd.DataFrame({"task": ["a"] * 10 + ["b"] * 10, "kept": np.repeat([0.1, 0.3], 10) + noise}),
        FAILS: pd.DataFrame({"task": ["a"] * 10 + ["b"] * 10, "kept": 0.2 + noise}),
        OPEN: pd.DataFrame({"task": ["a"] * 20, "kept": 0.2 + noise}),
    }
    for verdict, table in tables.items():
        means = table.groupby("task", sort=False)["kept"].agg(kept="mean", prompts="size").reset_index()
        means = means.assign(kept_low=means["kept"] - 0.01, kept_high=means["kept"] + 0.01)
        assert budgets.budget_claim(table, means).verdict == verdict


def test_an_advantage_across_models_takes_two_of_them_and_is_judged_on_one():
    good, bad = (budgets.memory_claim(*of_gvote(kept)) for kept in (0.1, 0.3))
    assert budgets.everywhere({"mini": good}, "mini").verdict == OPEN
    for here, verdict in (("mini", HOLDS), ("other", FAILS)):
        both = budgets.everywhere({"mini": good, "other": bad}, here)
        assert (both.paper, both.verdict) == (budgets.EVERYWHERE, verdict)
    assert (
        "On the other models: does not hold on other."
        in budgets.everywhere({"mini": good, "other": bad}, "mini").finding
    )


def answers(gap: float, prompts: int = 8) -> pd.DataFrame:
    """Two answers a prompt, one with the needle and one without; prompts differ more than the two do."""
    rows = []
    for prompt in range(prompts):
        base = 0.5 * (prompt % 2)
        rows += [{"prompt": prompt, "score": base + gap, "held": 1.0}, {"prompt": prompt, "score": base, "held": 0.0}]
    return pd.DataFrame(rows)


def test_the_fate_of_a_needle_is_compared_on_the_same_prompt():
    assert needle.fate(answers(0.4)).verdict == HOLDS
    assert needle.fate(answers(0.0)).verdict == FAILS
    assert needle.fate(answers(0.4, prompts=3)).verdict == OPEN
    assert needle.fate(answers(0.4).assign(held=1.0)).verdict == OPEN


def lengths(rate: float, size: float) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "method": "zsmerge", "status": "ok", "context": [100, 100, 200, 200],
            "measure": ["rate", "bytes"] * 2, "value": [10.0, 1000.0, 10 * rate, 1000 * size],
        }
    )  # fmt: skip


def ratios(**values: float) -> pd.DataFrame:
    return pd.DataFrame({"method": list(values), "our_ratio": list(values.values())})


def test_claims_of_speed_are_judged_at_the_papers_own_size_only():
    assert benchmarks.steady(lengths(0.95, 1.0), small=False, repeats=5).verdict == HOLDS
    assert benchmarks.steady(lengths(0.5, 1.0), small=False).verdict == FAILS
    assert benchmarks.steady(lengths(0.95, 1.5), small=False).verdict == FAILS
    assert benchmarks.faster(ratios(zsmerge=1.5), small=False).verdict == HOLDS
    assert benchmarks.faster(ratios(zsmerge=0.9), small=False).verdict == FAILS
    assert benchmarks.twice(ratios(keepkv=2.2, d2o=2.0, h2o=2.5), small=False).verdict == HOLDS
    assert benchmarks.twice(ratios(keepkv=2.2, d2o=2.3, h2o=2.5), small=False).verdict == FAILS
    for claim in (
        benchmarks.steady(lengths(0.95, 1.0), True, 5, "kvlab bench"),
        benchmarks.faster(ratios(zsmerge=1.5), True, 5, "kvlab bench"),
        benchmarks.twice(ratios(keepkv=2.2, d2o=2.0, h2o=2.5), True, 5, "kvlab bench"),
        benchmarks.faster(ratios(h2o=1.5), False, 5, "kvlab bench"),
    ):
        assert (claim.verdict, claim.settle, claim.basis.repeats) == (OPEN, "kvlab bench", 5)


@pytest.mark.parametrize(("ours", "verdict"), [(0.5, HOLDS), (0.6, FAILS), (None, OPEN)])
def test_shares_of_memory_are_held_to_the_papers(ours: float | None, verdict: str):
    paper = float("nan") if ours is None else 0.51
    frame = pd.DataFrame({"row": ["7B 50 %"], "ours": [ours or 0.5], "paper": [paper]})
    assert benchmarks.shares(frame).verdict == verdict
