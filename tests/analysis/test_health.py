"""The health of caches over the steps: worst of all heads, counts added up, and what was not recorded stays unknown."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
import pytest

from kvlab.trace import Run, open_run
from kvlab.views import health
from kvlab.views.health import caption_growth_over_steps, growth_over_steps
from tests.synthetic.runs import write_synthetic_run

HEADS = pd.DataFrame({"layer": [0, 0, 1, 1], "head": [0, 1, 0, 1]})


class Told(Run):
    """A run whose steps are given: two layers of two KV heads, `values` by column and step."""

    def __init__(self, run: Run, values: dict[str, list[list[float | None]]]) -> None:
        super().__init__(run.path, run.record)
        steps = [HEADS.assign(step=step) for step in range(len(values["non_finite"]))]
        self.told = pd.concat(steps, ignore_index=True)
        for name, rows in values.items():
            self.told[name] = pd.array([value for row in rows for value in row], dtype="Float64").to_numpy(
                float, na_value=np.nan
            )

    def select(self, table: str, *_: object, columns: Sequence[str] | None = None, **__: object) -> pd.DataFrame:
        assert table == "steps"
        return self.told[list(columns or self.told.columns)]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    root = tmp_path_factory.mktemp("runs")
    paths = {
        method: write_synthetic_run(root, method=method, prompt_tokens=40, steps=4)
        for method in ("full", "h2o", "keepkv")
    }
    paths["light"] = write_synthetic_run(root, method="keepkv", level="light", seed=1, prompt_tokens=40, steps=4)
    paths["off"] = write_synthetic_run(root, method="keepkv", level="off", seed=2, prompt_tokens=40, steps=4)
    return {name: open_run(path) for name, path in paths.items()}


@pytest.fixture
def told(runs: dict[str, Run]) -> Run:
    values = {
        "key_growth": [[1, 1, 1, 1], [1, 1.5, 1, 1], [1, np.inf, 1, 1]],
        "value_growth": [[1, 3.25, 2, 1], [1, 1, 1, 1], [1, 1, 1, 1]],
        "non_finite": [[0, 0, 0, 0], [0, 0, 0, 0], [1, 2, 0, 0]],
        "guard_activations": [[4, 0, 0, 1], [0, 0, 0, 0], [0, 2, 0, 0]],
    }
    return Told(runs["keepkv"], values)


def test_a_step_is_as_healthy_as_its_worst_head(told: Run):
    table = health.over_steps([told])
    assert table["step"].tolist() == [0, 1, 2]
    assert table["key_growth"].tolist() == [1, 1.5, 1]  # growth without end is told by non_finite
    assert table["value_growth"].tolist() == [3.25, 1, 1]
    assert table["non_finite"].tolist() == [0, 0, 3]
    assert table["guard_activations"].tolist() == [5, 0, 2]


def test_it_is_said_what_was_lost_and_what_grew(told: Run, runs: dict[str, Run]):
    caption = caption_growth_over_steps(health.over_steps([runs["full"], runs["h2o"], told]))
    assert caption == "Some slots hold numbers that cannot be used any more."
    whole = health.over_steps([runs["full"], told]).assign(non_finite=0)
    assert caption_growth_over_steps(whole) == "Some merges made a key or value longer than all of its parts."


def test_the_full_cache_is_left_out_and_equal_labels_are_told_apart(runs: dict[str, Run]):
    table = health.over_steps([runs["full"], runs["keepkv"], runs["keepkv"]])
    assert table["label"].unique().tolist() == [f"keepkv #{place}" for place in (1, 2)]
    steps = runs["keepkv"].steps
    assert table["guard_activations"].sum() == 2 * steps["guard_activations"].sum()


def test_what_was_not_recorded_is_not_called_healthy(runs: dict[str, Run]):
    light = health.over_steps([runs["light"]])
    assert light[["non_finite", *health.GROWTHS]].isna().all(axis=None)
    assert "it needs level full" in caption_growth_over_steps(light)
    assert health.over_steps([runs["off"], runs["full"]]).empty
    assert health.over_steps([]).empty


def test_the_line_of_no_growth_is_in_both_panels_on_one_scale(told: Run, runs: dict[str, Run]):
    figure = growth_over_steps(health.over_steps([runs["h2o"], told]))
    assert [shape.y0 for shape in figure.layout.shapes] == [1, 1]
    low, high = figure.layout.yaxis.range
    assert low < 1 < 3.25 < high
    assert figure.layout.yaxis2.matches == "y"
    assert {trace.xaxis for trace in figure.data} == {"x", "x2"}


def test_runs_in_which_nothing_grew_are_named_instead_of_drawn(told: Run, runs: dict[str, Run]):
    table = health.over_steps([runs["h2o"], told])
    figure = growth_over_steps(table)
    assert {trace.name for trace in figure.data} == {"keepkv"}
    assert [note.text for note in figure.layout.annotations] == ["keepkv"]
    assert caption_growth_over_steps(table.assign(non_finite=0)).endswith("Not drawn, as nothing grew: h2o.")
    calm = table.assign(key_growth=1.0, value_growth=1.0005)
    drawn = growth_over_steps(calm)
    assert len({(trace.line.color, trace.line.dash, trace.marker.symbol) for trace in drawn.data}) == 2
    assert [note.text for note in drawn.layout.annotations] == ["h2o", "keepkv"]
    assert "Not drawn" not in caption_growth_over_steps(calm)


def test_a_large_growth_is_drawn_on_a_log_axis(runs: dict[str, Run]):
    rows: list[list[float | None]] = [[1.0, 400.0, 1.0, 1.0]]
    values = dict.fromkeys(("key_growth", "value_growth"), rows)
    calm: list[list[float | None]] = [[0, 0, 0, 0]]
    figure = growth_over_steps(
        health.over_steps([Told(runs["keepkv"], {**values, "non_finite": calm, "guard_activations": calm})])
    )
    assert figure.layout.yaxis.type == "log"
