"""Bound, influence and regret follow from their definitions."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from kvlab.trace import Run
from kvlab.views import bound, regret
from kvlab.views import lineage as influence
from kvlab.views.frames.lineage import State, states_at, token_texts
from tests.analysis.conftest import METHODS, head

NUMBERS = st.floats(-3, 3, width=32)


@given(st.floats(0, 0.99), st.floats(0.001, 100))
def test_the_bound_is_zero_without_error_and_grows_with_it(epsilon: float, gamma: float):
    assert bound.keepkv_bound(np.array([0.0]), gamma)[0] == 0
    here, more = bound.keepkv_bound(np.array([epsilon, epsilon + 0.005]), gamma)
    assert more > here
    assert here == pytest.approx(2 * epsilon * (1 + epsilon) * gamma / (1 - epsilon) ** 2)


@given(st.floats(1, 1e6))
def test_from_an_error_of_one_on_there_is_no_bound(epsilon: float):
    assert np.isnan(bound.keepkv_bound(np.array([epsilon]), 1.0)[0])


@settings(deadline=None)
@given(arrays(np.float32, (9, 4), elements=NUMBERS), st.lists(st.integers(0, 8), min_size=1, unique=True))
def test_value_spread_is_the_largest_distance_and_its_shortcut_never_less(values: np.ndarray, merged: list[int]):
    every = np.linalg.norm(values[merged][:, None] - values[None], axis=2).max()
    norm = np.linalg.norm(values, axis=1)
    parts = values / np.maximum(norm, 1e-12)[:, None], norm, np.array(merged), values.mean(0)
    assert bound.value_spread(*parts) == pytest.approx(float(every), abs=2e-3)
    most, bound.MOST_PAIRS = bound.MOST_PAIRS, 1
    try:
        assert bound.value_spread(*parts) >= every - 1e-4
    finally:
        bound.MOST_PAIRS = most


@given(arrays(np.float32, (11, 4), elements=NUMBERS))
def test_distances_to_the_mean_are_those_of_the_values(values: np.ndarray):
    norm = np.linalg.norm(values, axis=1)
    unit = values / np.maximum(norm, 1e-12)[:, None]
    expected = np.linalg.norm(values - values.mean(0), axis=1)
    np.testing.assert_allclose(bound.distance_to_mean(unit, norm, values.mean(0)), expected, atol=5e-3)


def test_expecting_the_same_again_is_right_where_nothing_changes():
    mass = np.array([[0.5, 0.5, 0.0], [0.5, 0.5, 0.0], [0.25, 0.5, 0.25]])
    error = bound.persistence_error(mass)
    assert np.isnan(error[0]) and error[1] == 0
    assert error[2] == pytest.approx(0.25 / 0.75)


def test_a_step_is_flagged_just_where_the_output_changed_by_more(runs: dict[str, Run]):
    for run in runs.values():
        table = bound.bound_by_head_frame(run, (0, 1))
        above = table["bound"].notna() & (table[["perturbation", "output_error"]].max(axis=1) > table["bound"])
        assert ((table["flag"] != "") == above).all()
        dropped = table.groupby(["layer", "head"])["regret"].cummax() > 0
        assert (table.loc[above & dropped, "flag"] == "above, tokens dropped").all()


def test_the_bound_needs_merges_and_says_none_without(runs: dict[str, Run]):
    for method in ("full", "h2o"):
        assert bound.bound_by_head_frame(runs[method], (0,))["bound"].isna().all()
    assert bound.bound_by_head_frame(runs["keepkv"], (0,))["bound"].notna().any()


def test_a_bound_does_not_depend_on_the_scale_of_the_values(runs: dict[str, Run]):
    run = runs["keepkv"]
    steps, events = run.select("steps", 0, 0), run.select("events", 0, 0)
    found = bound.HeadArrays(*run.values(0, 0), *run.attention(0, 0))
    once = bound.bound_over_steps(steps, events, found)["bound"]
    twice = bound.bound_over_steps(steps, events, found._replace(norm=2 * found.norm))["bound"]
    np.testing.assert_allclose(once, twice, rtol=1e-4)


# influence


@pytest.mark.parametrize("method", METHODS)
def test_shares_of_a_slot_add_up_to_one(runs: dict[str, Run], method: str):
    lineage, _ = head(runs[method])
    shares, merges = influence.influence(runs[method], 1, 0)
    for row, step in enumerate(lineage.steps.tolist()):
        owner = lineage.owners(step)
        read, held = lineage.birth <= step, owner >= 0
        assert (shares[row][read & ~held] == 0).all()
        total = np.bincount(owner[held], weights=shares[row][held], minlength=lineage.tokens)
        np.testing.assert_allclose(total[lineage.alive(step)], 1, atol=1e-5)
        assert (merges[row][held & (owner == np.arange(lineage.tokens)) & (lineage.votes(step) == 1)] == 0).all()


def test_shares_never_grow(runs: dict[str, Run]):
    shares, _ = influence.influence(runs["keepkv"], 1, 0)
    assert (np.diff(np.nan_to_num(shares, nan=1.0), axis=0) <= 1e-9).all()


@given(st.floats(0.05, 0.95))
def test_half_life_of_a_steady_decay(kept: float):
    merges = np.arange(1, 60)
    decay = pd.DataFrame({"merges": merges, "share": kept**merges})
    expected = np.log(0.5) / np.log(kept)
    found = influence.half_life(decay)
    assert found == pytest.approx(expected, rel=1e-6) if kept**59 <= 0.5 else np.isinf(found)


# regret


def test_dropped_tokens_are_those_gone_and_their_mass_is_the_regret(runs: dict[str, Run]):
    run = runs["h2o"]
    lineage, _ = head(run)
    texts, true = token_texts(run.tokens, lineage.tokens), run.attention(1, 0)[0]
    for step in (0, 7):
        table = regret.dropped_tokens(lineage, true[step], texts, step)
        states = states_at(lineage, step)
        assert (states[table["position"]] == State.EVICTED).all()
        assert table["true mass"].is_monotonic_decreasing
        recorded = run.select("steps", 1, 0).query("step == @step")["regret"].iloc[0]
        assert true[step][states == State.EVICTED].astype(float).sum() == pytest.approx(recorded, abs=2e-2)


def test_the_map_has_the_mean_of_every_layer_and_step(runs: dict[str, Run]):
    steps = runs["h2o"].steps
    table = regret.regret_by_layer(runs["h2o"])
    assert table.loc[1, 5] == pytest.approx(steps.query("layer == 1 and step == 5")["regret"].mean(), rel=1e-5)
    over_steps = regret.regret_over_steps_frame(steps, runs["h2o"].tokens)
    assert over_steps.loc[over_steps["mean"].idxmax(), "step"] == table.mean().idxmax()


@given(st.lists(st.integers(0, 9), min_size=3, max_size=12))
def test_rank_correlation_is_one_with_itself_and_turns_with_the_sign(values: list[int]):
    series = pd.Series(values, dtype=float)
    found = regret.rank_correlation(series, series)
    assert np.isnan(found) if series.nunique() < 2 else found == pytest.approx(1)
    assert np.isnan(found) or regret.rank_correlation(series, -series) == pytest.approx(-1)
