"""Frames behind ZSMerge's and PyramidPool's figures: they add up, and say what is known exactly where it is known."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kvlab.papers.pyramid_pool import pyramid, recordings
from kvlab.papers.pyramid_pool.calculator import GPT_3, PUBLISHED, Shape, cache_sizes
from kvlab.papers.pyramid_pool.pyramid import (
    LOCAL,
    SINKS,
    attention_map,
    by_layer,
    layer_budgets,
    layer_means,
    measures,
    spans,
    spread_by_axis,
    straight,
)
from kvlab.papers.pyramid_pool.tasks import evaluated_tasks
from kvlab.papers.zsmerge.contents import REGIONS, slots_by_step
from kvlab.papers.zsmerge.contents import region_counts as regions_over_steps
from kvlab.trace import Run, open_run
from kvlab.views.frames.lineage import Lineage, fold
from tests.synthetic.runs import write_synthetic_run


@pytest.fixture(scope="module")
def merging(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return open_run(write_synthetic_run(tmp_path_factory.mktemp("runs"), method="zsmerge", prompt_tokens=96))


@pytest.fixture(scope="module")
def head(merging: Run) -> Lineage:
    return fold(merging.select("events", 1, 1), merging.select("steps", 1, 1))


def test_regions_are_all_the_slots_there_are(head: Lineage):
    table = regions_over_steps(head)
    assert table["slots"].tolist() == head.live_slots().tolist()
    assert table["tokens"].tolist() == head.tokens_seen.tolist()
    assert (table[list(REGIONS)] >= 0).all(axis=None)


@pytest.mark.parametrize("step", [0, 5, 16, 99])
@pytest.mark.parametrize("most", [6, 28, 1000])
def test_shown_slots_are_alive_and_those_that_move_come_first(head: Lineage, step: int, most: int):
    table = slots_by_step(head, step, columns=6, most=most)
    assert table["step"].nunique() == 6
    assert table["position"].nunique() <= most
    for one, group in table.groupby("step"):
        assert head.alive(one)[group["position"]].all()
        assert (head.votes(one)[group["position"]] == group["votes"]).all()
    if most == 1000:
        first = table["step"].min()
        assert (table["step"] == first).sum() == head.alive(first).sum()


def test_only_merged_slots_are_residual(head: Lineage):
    table = slots_by_step(head, 16, most=1000)
    assert (table.loc[table["region"] == "residual", "votes"] > 1).all()
    assert (table.loc[table["region"] != "residual", "votes"] == 1).all()


def test_every_token_lies_in_one_span(head: Lineage):
    table = spans(head, 16, window=4)
    assert table["tokens"].sum() == (head.owners(16) >= 0).sum()
    assert (table["last"] - table["first"] + 1 >= table["tokens"]).all()
    assert set(table["position"]) == set(np.flatnonzero(head.alive(16)))


@pytest.mark.parametrize(("tokens", "rounds"), [(1, 0), (2, 1), (4, 1), (5, 2), (16, 2), (64, 3), (65, 4)])
def test_a_slot_of_many_tokens_was_pooled_at_least_so_often(tokens: int, rounds: int):
    zeros, never = np.zeros(tokens, np.int64), np.full(tokens, 2**31 - 1)
    leave, parent = never.copy(), np.zeros(tokens, np.int64)
    leave[1:], parent[0] = 0, -1
    one = Lineage(np.array([0]), np.array([tokens]), zeros, leave, zeros.astype(np.uint8), parent, zeros, never)
    table = spans(one, 0, window=4)
    assert table[["tokens", "generation"]].to_numpy().tolist() == [[tokens, rounds]]


def test_age_is_only_ranked_where_slots_differ(merging: Run, monkeypatch: pytest.MonkeyPatch):
    def trends(first: list[int], tokens: list[int]) -> list[float]:
        slots = pd.DataFrame({"first": first, "tokens": tokens})
        monkeypatch.setattr(pyramid, "spans", lambda *_: slots)
        return recordings.window_rows(merging)["trend"].tolist()

    assert all(map(math.isnan, trends([0, 1], [1, 1])))
    assert trends([0, 8, 12], [8, 4, 1]) == pytest.approx([1] * 4)


@given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=12))
@example([858.4018152117517] * 3)  # whose mean is off by rounding
def test_a_line_explains_between_nothing_and_all(values: list[float]):
    x, y = np.arange(len(values), dtype=float), np.array(values)
    line, explained = straight(x, y)
    assert line.shape == y.shape
    assert -1e-6 <= explained <= 1 + 1e-6
    assert straight(x, 3 * x + 1)[1] == pytest.approx(1)


def test_budgets_of_layers_are_those_of_the_steps(merging: Run):
    table = layer_budgets(merging.steps, 16)
    last = merging.steps[merging.steps["step"] == 16]
    assert table["live"].sum() * 2 == last["live_slots"].sum()
    assert table["asked"].sum() * 2 == last["budget_slots"].sum()
    assert layer_budgets(merging.steps, 999).equals(table)
    assert spread_by_axis(merging.steps, 16)["layers"] >= 1


def test_touched_sinks_are_counted_once(merging: Run):
    def with_sinks(count: int) -> tuple[int, int]:
        record = merging.record.model_copy(update={"hyper_parameters": {"sinks": count}})
        (line,) = recordings.layer_lines(Run(merging.path, record)).to_dict("records")
        return line["touched"], line["sinks"]

    touched, every = with_sinks(4)
    assert every == 16
    events = merging.events
    pairs = {
        (row.layer, row.head, name) for row in events.itertuples() for name in (row.source, row.target) if 0 <= name < 4
    }
    assert touched == len(pairs)
    assert with_sinks(0) == (0, 0)


def test_a_query_that_looks_at_one_place_has_its_distance():
    rows = np.zeros((3, 203), np.float32)
    rows[:, 99] = 1  # queries are the tokens 199, 200 and 201
    found = measures(rows, prompt_tokens=200)
    assert found["distance"] == pytest.approx((100 + 101 + 102) / 3)
    assert found["sink_mass"] == 0
    assert found["local_mass"] == 0
    rows[:] = 0
    rows[:, :SINKS], rows[:, 200 - LOCAL // 2] = 0.125, 0.5
    found = measures(rows, prompt_tokens=200)
    assert found["sink_mass"] == pytest.approx(0.5)
    assert found["local_mass"] == pytest.approx(0.5)


def test_layers_and_the_map_hold_all_the_attention(merging: Run):
    heads = by_layer(merging)
    assert len(heads) == 4
    layers = layer_means(heads)
    assert (layers["lowest"] <= layers["share"]).all() and (layers["share"] <= layers["highest"]).all()
    picture = attention_map(merging, 0, 1, columns=20)
    assert picture.shape[1] <= 20
    np.testing.assert_allclose(picture.sum(axis=1), merging.attention(0, 1)[0].astype(np.float32).sum(1), rtol=1e-3)


def test_bytes_of_a_cache_are_exact():
    llama = next(shape for shape in PUBLISHED if shape.name == "Llama 2 7B")
    assert llama.bytes_of(1, 1, 2) == 512 * 1024  # half a mebibyte a token in 16 bits, as is well known
    assert GPT_3.bytes_of(4096, 64, 2) == 2 * 96 * 96 * 128 * 2 * 4096 * 64
    table = cache_sizes((Shape("mine", 2, 3, 4, 100),), 0, 5, 1)
    assert table.iloc[0][["tokens", "bytes", "per_token"]].tolist() == [100, 2 * 2 * 3 * 4 * 100 * 5, 48]


def test_prompts_are_counted_once_whatever_ran_over_them():
    rows = pd.DataFrame(
        {
            "task": ["a", "a", "a", "b"], "difficulty": "{}", "content": "", "length": 9, "depth": np.nan,
            "index": [0, 0, 1, 0], "seed": 0, "metric": "f1", "prompt_tokens": [5, 5, 9, 7],
        }
    )  # fmt: skip
    table = evaluated_tasks(rows).set_index("task")
    assert table["prompts"].tolist() == [2, 1]
    assert table.loc["a", ["shortest", "mean", "longest"]].tolist() == [5, 7, 9]


def test_a_run_without_arrays_has_no_layers(tmp_path: Path):
    assert by_layer(open_run(write_synthetic_run(tmp_path, level="light"))).empty
