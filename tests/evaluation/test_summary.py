"""Intervals and paired differences."""

from __future__ import annotations

import io
import json
import random as plain_random
import re
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from kvlab.common import intervals
from kvlab.common.intervals import (
    mean_interval,
    mean_intervals,
    mean_over_groups,
    pairs_interval,
    share_interval,
)
from kvlab.evaluation.results.summary import mean_over_tasks, over_tasks, summarize, with_measures
from kvlab.evaluation.results.table import summary_json, summary_table


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=40))
def test_the_interval_holds_the_mean_and_stays_among_the_values(values):
    interval = mean_interval(values)
    assert interval.mean == pytest.approx(np.mean(values))
    assert min(values) - 1e-9 <= interval.low <= interval.mean + 1e-9
    assert interval.mean - 1e-9 <= interval.high <= max(values) + 1e-9
    assert mean_interval(values) == interval


def test_the_interval_covers_the_truth_about_as_often_as_it_says():
    random = np.random.default_rng(1)
    intervals = [mean_interval(random.binomial(1, 0.7, 60).tolist(), seed=i, resamples=500) for i in range(300)]
    covered = np.mean([interval.low <= 0.7 <= interval.high for interval in intervals])
    assert 0.88 <= covered <= 0.99


def wilson_by_hand(hits, count, z=1.959964):
    """The shares p for which the observed one is just z standard errors of p away, found by halving."""
    share = hits / count

    def away(p):
        return (share - p) ** 2 - z**2 * p * (1 - p) / count

    def edge(inside, outside):
        for _ in range(60):
            middle = (inside + outside) / 2
            inside, outside = (middle, outside) if away(middle) < 0 else (inside, middle)
        return inside

    return edge(share, 0.0) if hits else 0.0, edge(share, 1.0) if hits < count else 1.0


@pytest.mark.parametrize(("hits", "count"), [(1, 3), (7, 9), (20, 60), (2, 4)])
def test_a_share_has_wilsons_interval(hits, count):
    values = [1.0] * hits + [0.0] * (count - hits)
    found = mean_interval(values, kind="score")
    assert (found.low, found.high) == pytest.approx(wilson_by_hand(hits, count), abs=1e-6)
    assert (share_interval(hits, count).low, share_interval(hits, count).high) == (found.low, found.high)


@pytest.mark.parametrize("value", [0.0, 1.0])
@pytest.mark.parametrize("labels", [None, ["a", "a", "b", "b", "b"], list("abcde")])
def test_equal_scores_are_not_certain(value, labels):
    """Where all five answers are right (or wrong) the truth may still be another: the bootstrap says 1 to 1."""
    drawn = mean_over_groups([value] * 5, labels)
    assert drawn.low == drawn.high == value
    found = mean_over_groups([value] * 5, labels, kind="score")
    assert found.mean == value
    assert 0.25 < found.high - found.low < 0.75
    if labels != ["a", "a", "b", "b", "b"]:  # one sample, or tasks of one prompt, which are taken together
        assert found.high - found.low == pytest.approx(1.96**2 / (5 + 1.96**2), abs=1e-3)
    tied = mean_over_groups([0.0] * 5, labels, kind="difference")
    assert tied.low == -tied.high < 0 == tied.mean


def test_scores_between_and_other_numbers_are_drawn_as_before():
    for values, kind in (([0.5, 0.5, 1.0], "score"), ([0.0, 0.0, 0.0], "any"), ([0.2, -0.4, 1.0], "difference")):
        assert mean_interval(values, kind=kind) == mean_interval(values)


@pytest.mark.parametrize(("gain", "loss"), [(0.3, 0.1), (0.05, 0.05), (0.6, 0.0), (0.45, 0.45)])
def test_a_paired_difference_covers_the_truth_about_as_often_as_it_says(gain, loss):
    random = np.random.default_rng(7)
    drawn = random.choice([1.0, -1.0, 0.0], p=[gain, loss, 1 - gain - loss], size=(600, 25))
    found = [mean_interval(values.tolist(), kind="difference", resamples=2) for values in drawn]
    covered = np.mean([one.low <= gain - loss <= one.high for one in found])
    assert 0.92 <= covered <= 1.0
    if gain > 0.1:
        assert covered < 0.99, "wider than it says"


def test_a_mean_of_shares_over_tasks_covers_the_truth():
    random = np.random.default_rng(8)
    labels = ["a"] * 6 + ["b"] * 20
    found = [
        mean_over_groups(
            [*random.binomial(1, 0.95, 6), *random.binomial(1, 0.5, 20)], labels, resamples=2, kind="score"
        )
        for _ in range(600)
    ]
    assert 0.92 <= np.mean([one.low <= 0.725 <= one.high for one in found]) <= 0.99


def test_pairing_takes_out_what_both_have_in_common():
    random = np.random.default_rng(2)
    base = random.normal(size=50)
    values = base - 0.25 + random.normal(scale=0.01, size=50)
    gap = mean_interval((values - base).tolist())
    alone = mean_interval(values.tolist())
    assert -0.26 < gap.low < gap.mean < gap.high < -0.24
    assert gap.high - gap.low < 0.1 * (alone.high - alone.low)


def drawn_by_hand(groups, resamples=3000):
    """The same interval in plain Python: every group's values drawn again, the mean of the groups' means."""
    random, means = plain_random.Random(5), []
    for _ in range(resamples):
        again = [[random.choice(group) for _ in group] for group in groups]
        means.append(sum(sum(group) / len(group) for group in again) / len(groups))
    means.sort()
    return means[int(0.025 * resamples)], means[int(0.975 * resamples)]


def test_a_mean_over_tasks_is_drawn_within_tasks():
    """Tasks far apart make no wide interval, and a task with few prompts counts as much as one with many."""
    groups = [[0.0, 0.1, 0.2, 0.1], [1.0, 0.9, 0.8, 0.9, 1.0, 0.7, 0.8, 0.9, 1.0, 0.6]]
    labels = ["a"] * 4 + ["b"] * 10
    found = mean_over_groups(groups[0] + groups[1], labels)
    low, high = drawn_by_hand(groups)
    assert found.mean == pytest.approx((0.4 / 4 + 8.6 / 10) / 2)
    assert (found.low, found.high) == (pytest.approx(low, abs=0.012), pytest.approx(high, abs=0.012))
    assert found.n == 14
    assert found.high - found.low < 0.2 < mean_interval(groups[0] + groups[1]).high - found.high


def test_tasks_of_one_prompt_are_drawn_from_one_another():
    """Drawn within themselves they could not vary, and two prompts would pass for certainty."""
    found = mean_over_groups([0.0, 1.0], ["a", "b"])
    assert (found.mean, found.low, found.high, found.n) == (0.5, 0.0, 1.0, 2)
    mixed = mean_over_groups([0.5, 0.5, 0.0, 1.0], ["c", "c", "a", "b"])
    assert (mixed.mean, mixed.n) == (pytest.approx(0.5), 4)
    assert (mixed.low, mixed.high) == (pytest.approx(0.5 / 3), pytest.approx(2.5 / 3))


def test_columns_share_their_draws_and_leave_missing_numbers_out():
    random = np.random.default_rng(4)
    values = random.normal(size=30)
    holes = np.where(np.arange(30) < 10, np.nan, values)
    one, shifted, some, none = mean_intervals(np.column_stack([values, values + 7, holes, np.full(30, np.nan)]))
    assert (shifted.low - 7, shifted.high - 7) == (pytest.approx(one.low), pytest.approx(one.high))
    assert some.n == 20
    assert some.mean == pytest.approx(sum(values[10:]) / 20)
    assert none is None


def test_pairs_are_of_different_samples():
    table = np.array([[1, 0.9, 0.1, 0.5], [0.9, 1, 0.3, 0.7], [0.1, 0.3, 1, 0.2], [0.5, 0.7, 0.2, 1]])
    random, means = plain_random.Random(6), []
    for _ in range(3000):
        again = [random.randrange(4) for _ in range(4)]
        pairs = [table[i, j] for i in again for j in again if i != j]
        if pairs:
            means.append(sum(pairs) / len(pairs))
    means.sort()
    found = pairs_interval(table)
    assert found.mean == pytest.approx((0.9 + 0.1 + 0.5 + 0.3 + 0.7 + 0.2) / 6)
    assert found.low == pytest.approx(means[int(0.025 * len(means))], abs=0.03)
    assert found.high == pytest.approx(means[int(0.975 * len(means))], abs=0.03)
    assert found.n == 4


def rows(scores):
    """Result rows from {method: scores by prompt}."""
    made = []
    for method, values in scores.items():
        for index, value in enumerate(values):
            made.append(
                {
                    "task": "needle", "difficulty": "{}", "content": "", "length": 100, "depth": None,
                    "index": index, "seed": 0,
                    "method": method, "hyper_parameters": "{}", "budget": 1.0 if method == "full" else 0.2,
                    "budget_unit": "fraction", "question_aware": True, "model": "tiny", "model_digest": "0",
                    "metric": "whole_match_all", "score": value, "slots": 20.0, "logical_tokens": 100,
                    "live_bytes": 1000, "seconds": 0.5, "bits_per_byte": None, "kl": None, "top1_agreement": None,
                }
            )  # fmt: skip
    return pd.DataFrame(made)


def test_differences_are_taken_prompt_by_prompt_whatever_the_order():
    frame = rows({"full": [1, 1, 0, 1], "h2o": [1, 0, 0, 1]}).sample(frac=1, random_state=3)
    summary = summarize(frame).set_index("method")
    assert summary.loc["h2o", "score"] == 0.5
    assert summary.loc["h2o", "difference"] == -0.25
    assert summary.loc["full", "difference"] == 0
    assert summary.loc["h2o", "kept"] == pytest.approx(0.2)
    assert summary.loc["h2o", "samples"] == 4


def test_without_a_full_row_there_is_a_score_but_no_difference():
    summary = summarize(rows({"h2o": [1, 0]}))
    assert summary["score"].tolist() == [0.5]
    assert summary["difference"].isna().all()


def test_other_lengths_and_budgets_are_other_lines():
    frame = pd.concat([rows({"full": [1], "h2o": [0]}), rows({"full": [0], "h2o": [0]}).assign(length=200)])
    assert summarize(frame)["difference"].tolist() == [0, -1, 0, 0]
    assert summarize(frame, by=["task"])["difference"].tolist() == [0, -0.5]


def test_every_measure_has_its_interval():
    frame = rows({"full": [1, 1, 1, 1], "gvote": [1, 0, 0, 1]})
    frame.loc[frame["method"] == "gvote", "slots"] = [10.0, 30.0, 20.0, 40.0]
    line = summarize(frame).set_index("method").loc["gvote"]
    low, high = drawn_by_hand([[0.1, 0.3, 0.2, 0.4]])
    assert (line["kept"], line["kept_low"], line["kept_high"]) == pytest.approx((0.25, low, high), abs=0.02)
    assert line["seconds_low"] == line["seconds"] == line["seconds_high"] == 0.5
    assert pd.isna(line["kl"]) and pd.isna(line["kl_low"])


def test_a_prompt_under_several_budgets_is_one_sample():
    """Four prompts at ten budgets are no forty prompts: the interval is that of the four."""
    scores = [0.0, 1.0, 1.0, 0.0]
    many = pd.concat([rows({"h2o": scores}).assign(budget=budget / 10) for budget in range(1, 11)])
    found = mean_over_tasks(many, "score")
    assert (found.mean, found.n) == (0.5, 4)
    assert (found.low, found.high) == drawn_by_hand([scores])
    (line,) = over_tasks(with_measures(many), ["method"]).to_dict("records")
    assert (line["prompts"], line["tasks"]) == (4, 1)
    assert (line["score_low"], line["score_high"]) == pytest.approx(wilson_by_hand(2, 4), abs=1e-6)


def printed(summary, width=120):
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(summary_table(summary))
    return console.export_text()


def test_the_table_names_the_device_once():
    summary = summarize(rows({"full": [1, 1], "h2o": [0, 1]}))
    assert str(summary_table(summary, ["cpu: x86_64, 1 threads"] * 4).caption).endswith("; on cpu: x86_64, 1 threads")
    assert "; on" not in str(summary_table(summary).caption)


def test_the_table_gives_n_and_an_interval_with_every_mean():
    frame = rows({"full": [1, 1, 1], "h2o": [0, 1, 1], "gvote": [1, 1, 0]})
    frame.loc[frame["method"] == "gvote", "slots"] = [10.0, 20.0, 60.0]
    frame = frame[~((frame["method"] == "full") & (frame["index"] == 2))]
    for line in printed(summarize(frame)).splitlines():
        if "h2o 20 %" in line:
            assert " 3 " in line
            low, high = wilson_by_hand(2, 3)
            assert f"0.667 [{low:.3f}, {high:.3f}]" in line
            assert re.search(r"-0\.500 \[-0\.\d{3}, \+0\.\d{3}\], n 2", line), "the full cache was asked two"
        if "gvote" in line:
            assert "30 [10, 60] %" in line


def test_the_table_says_of_one_prompt_that_it_is_one():
    shown = printed(summarize(rows({"full": [1], "h2o": [0]})))
    assert "0.000, one prompt" in shown
    assert "-1.000, one prompt" in shown
    assert "[" not in shown


def test_table_and_json_show_every_line():
    summary = summarize(rows({"full": [1, 1], "h2o": [0, 1], "snapkv": [1, 1]}))
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(summary_table(summary))
    printed = console.export_text()
    for text in ("needle", "100 tokens", "whole_match_all", "h2o 20 %", "-0.500", "with the question visible"):
        assert text in printed
    told = json.loads(summary_json(summary, ["a note"], "out"))
    assert [line["method"] for line in told["summary"]] == ["full", "h2o", "snapkv"]
    assert told["notes"] == ["a note"]
    assert told["summary"][1]["kl"] is None


def test_results_are_read_without_the_model_stack():
    modules = "request, results.rows, results.summary, results.table, scoring.metrics"
    stack = "{'torch', 'transformers'} & set(sys.modules)"
    imports = "; ".join(f"import kvlab.evaluation.{name}" for name in modules.split(", "))
    code = f"import sys; {imports}; sys.exit(bool({stack}))"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


def test_an_interval_is_the_same_however_many_samples_are_drawn_at_once(monkeypatch: pytest.MonkeyPatch):
    """Drawn at once, some hundreds of rows take tens of megabytes of a server that many look at."""
    values = np.random.default_rng(3).normal(size=(37, 2))
    at_once = mean_intervals(values, resamples=200)
    monkeypatch.setattr(intervals, "MOST_PICKS", 100)
    for one, other in zip(mean_intervals(values, resamples=200), at_once, strict=True):
        assert one is not None and other is not None
        assert (one.low, one.high) == pytest.approx((other.low, other.high), rel=1e-12)
