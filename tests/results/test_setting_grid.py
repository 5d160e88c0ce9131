"""Scores over the values of two settings: means of the prompts that all methods answered, and paired gains."""

from __future__ import annotations

import itertools

import numpy as np
import pandas as pd
import pytest

from kvlab.core.errors import UserError
from kvlab.evaluation.results.rows import ROWS
from kvlab.views.base.view import find_view
from tests.papers.test_scores import row

VALUES = {"aggregate": ("mean", "max", "worst"), "decay": (1, 0.8, 0)}


def grid(prompts: int, seed: int = 0) -> pd.DataFrame:
    """Rows of two methods over a 3 x 3 grid, of the full cache, and of one whose settings do not vary."""
    generator = np.random.default_rng(seed)
    made = []
    for index in range(prompts):
        made += [row("needle", "full", 1.0, index), row("needle", "h2o", 0.0, index)]
        for method, *values in itertools.product(("snapkv", "adakv"), *VALUES.values()):
            score = float(generator.random() < (0.2 + 0.6 * (values[0] == "worst")))
            made.append(row("needle", method, score, index, **dict(zip(VALUES, values, strict=True))))
    return pd.DataFrame(made, columns=ROWS.names)


def test_cells_are_means_over_prompts_that_every_method_answered() -> None:
    rows = grid(12)
    incomplete = rows[(rows["index"] < 11) | (rows["method"] == "adakv")]
    frame = find_view("setting_grid").read(incomplete)
    assert frame.attrs["settings"] == ("aggregate", "decay") and (frame["prompts"] == 11).all()
    assert len(frame) == 2 * 3 * 3 and set(frame["arm"]) == {"snapkv", "adakv"}
    for line in frame.itertuples():
        text = f'{{"aggregate":"{line.first}","decay":{line.second}}}'
        same = (rows["hyper_parameters"] == text) & (rows["method"] == line.method) & (rows["index"] < 11)
        assert same.sum() == 11 and line.score == pytest.approx(rows[same]["score"].mean())
        assert line.score_low <= line.score <= line.score_high


def test_the_gain_of_a_setting_is_the_mean_of_differences_on_equal_prompts() -> None:
    rows = grid(20)
    frame = find_view("setting_grid").read(rows)
    first, second = frame.attrs["gains"]
    assert first["best"] == "worst" and first["mean"] > second["mean"] and first["n"] == 20
    varied = rows[rows["method"].isin(["snapkv", "adakv"])]
    aggregate = varied["hyper_parameters"].str.extract(r'"aggregate":"(\w+)"')[0]
    means = varied.groupby(aggregate)["score"].mean()
    assert first["mean"] == pytest.approx(means.max() - means.min())
    caption = find_view("setting_grid").draw(rows).caption
    assert caption.startswith("Over all methods and budgets, aggregate worst scores") and "(n = 20)" in caption


def test_where_less_is_better_the_lowest_is_best_and_darkest() -> None:
    rows = grid(20)
    rows = rows.assign(metric="kl", task="next_token_kl", score=rows["score"] * 3.0)
    drawn = find_view("setting_grid").draw(rows)
    first = drawn.frame.attrs["gains"][0]
    assert first["worst"] == "worst" and first["mean"] > 0  # this value scores highest
    (heat,) = [trace for trace in drawn.figure.data if trace.type == "heatmap"]
    darkness = [sum(int(colour[at : at + 2], 16) for at in (1, 3, 5)) for _, colour in heat.colorscale]
    assert heat.zmax == drawn.frame["score"].max() and darkness == sorted(darkness)
    assert "has a KL" in drawn.caption and "nats per token below that of worst" in drawn.caption
    both = pd.concat([grid(4), rows.assign(key=rows["key"] + "kl")])
    assert set(find_view("setting_grid").read(both)["task"]) == {"needle"}


def test_a_setting_that_was_left_at_its_default_counts_and_two_settings_vary_together() -> None:
    rows = grid(8)
    rows = rows.assign(settings=rows["hyper_parameters"].str.replace('"decay":1}', '"decay":1.0}', regex=False))
    short = rows["hyper_parameters"].str.replace('"aggregate":"mean",', "", regex=False)
    frame = find_view("setting_grid").read(rows.assign(hyper_parameters=short))
    assert len(frame) == 2 * 3 * 3 and (frame["prompts"] == 8).all()
    apart = pd.DataFrame(
        [row("needle", "full", 1.0, index) for index in (0, 1)]
        + [row("needle", "h2o", 1.0, index, recent=share) for index in (0, 1) for share in (0.1, 0.5)]
        + [row("needle", "tova", 0.0, index, sinks=count) for index in (0, 1) for count in (0, 4)],
        columns=ROWS.names,
    )
    with pytest.raises(UserError, match="no two settings that vary"):
        find_view("setting_grid").read(apart)


def test_budgets_in_tokens_and_in_bytes_of_one_number_are_cells_of_their_own() -> None:
    rows = grid(4)
    in_bytes = rows[rows["method"] != "full"].assign(budget_unit="share of bytes", score=1.0)
    frame = find_view("setting_grid").read(pd.concat([rows, in_bytes.assign(key=in_bytes["key"] + "B")]))
    assert frame["asked"].nunique() == 2 and len(frame) == 2 * 2 * 3 * 3
    assert find_view("setting_grid").draw_frame(frame, rows, source="made up").figure.data


def test_rows_without_two_settings_that_vary_say_what_to_evaluate() -> None:
    rows = grid(2)
    with pytest.raises(UserError, match="no two settings that vary: evaluate a method with several values"):
        find_view("setting_grid").read(rows[rows["method"].isin(["full", "h2o"])])
