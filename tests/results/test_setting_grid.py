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


def test_rows_without_two_settings_that_vary_say_what_to_evaluate() -> None:
    rows = grid(2)
    with pytest.raises(UserError, match="no two settings that vary: evaluate a method with several values"):
        find_view("setting_grid").read(rows[rows["method"].isin(["full", "h2o"])])
