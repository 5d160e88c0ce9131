"""A ratio is the ratio of what was measured, however small, and not defined over nothing: no divisor has a floor."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from kvlab.core.methods.eviction.gvote import _inside, _overlaps
from kvlab.engine.recording.events import relative_error
from kvlab.engine.recording.shadow import Shadow
from kvlab.papers.attention_rows import LAST, Rows, concentration, prediction_errors
from kvlab.papers.keepkv import merge_effects
from kvlab.papers.keepkv.attention import locality, variance_ratios
from kvlab.papers.keepkv.merge_effects import LEAST_MASS, find_merge
from kvlab.papers.keepkv.merging import slot_before_and_after
from kvlab.papers.kvmerger.compression import weight_ratio
from kvlab.papers.pyramid_pool import pyramid
from kvlab.papers.pyramid_pool.recordings import attention_map
from kvlab.views import lineage as influence
from kvlab.views.base.provenance import Provenance
from kvlab.views.bound import persistence_error
from kvlab.views.merges import caption_mass_balance
from tests.synthetic.hidden_states import hidden_statistics

PLACE = {"layer": 0, "head": 0}


def merge(step: int, target: int, source: int, mass: float, lost: float) -> dict[str, Any]:
    """An event whose two parts have `mass` each, of which the slot keeps all but the share `lost`."""
    return PLACE | {
        "step": step, "kind": "merge", "source": source, "target": target, "mass_source": mass, "mass_target": mass,
        "mass_after": 2 * mass * (1 - lost), "votes_target": 1, "votes_source": 1, "votes_after": 2,
        "perturbation": 0.0, "similarity": 0.5, "value_weight": 0.5,
    }  # fmt: skip


def run_of(*events: dict[str, Any]) -> Any:
    table = pd.DataFrame(events)
    return SimpleNamespace(select=lambda name, *_, columns=None: table if columns is None else table[columns])


@pytest.mark.parametrize("mass", [0.2, 1e-6, 2e-14, 1e-30])
def test_the_change_of_a_merge_does_not_depend_on_how_much_attention_it_has(mass: float):
    run = run_of(merge(0, 5, 9, mass, 0.25))
    assert merge_effects.merge_groups(run)["sag"].tolist() == pytest.approx([0.25])
    one = find_merge(run, 0, 0, least=LEAST_MASS)
    assert one is not None
    drawn = slot_before_and_after([("x", "zsmerge", one)], Provenance(), None, "light")
    assert "in the only run" in drawn.caption
    bars = {bar.name: bar.x[0] for bar in drawn.figure.data}
    assert bars["the slot before"] + bars["what was merged into it"] == pytest.approx(1)
    assert bars["the merged slot after"] == pytest.approx(0.75)


def test_a_merge_of_nothing_has_no_change():
    run = run_of(merge(0, 5, 9, 0.0, 0.0))
    assert merge_effects.merge_groups(run)["sag"].isna().all()
    one = find_merge(run, 0, 0, least=LEAST_MASS)
    assert one is not None
    drawn = slot_before_and_after([("x", "zsmerge", one)], Provenance(), None, "light")
    assert drawn.caption == "The merged slots had no attention that could be lost."


def test_a_slot_with_next_to_no_attention_gives_way_to_one_with_some_and_that_is_said():
    events = (merge(2, 5, 9, 2e-14, 0.5), merge(7, 6, 10, 0.1, -0.1), merge(8, 5, 11, 0.05, 0.1))
    one = find_merge(run_of(*events), 0, 0, 2, least=LEAST_MASS)
    assert one is not None and (one.step, one.target) == (7, 6)
    found = slot_before_and_after([("x", "zsmerge", one)], Provenance(), None, "light").frame
    assert found["lost"].tolist() == pytest.approx([-0.1]) and found["step"].tolist() == [7]
    requested = find_merge(run_of(*events), 0, 0, 2, token=9, least=LEAST_MASS)
    assert requested is not None and requested.step == 2
    alone = find_merge(run_of(events[0]), 0, 0, 2, least=LEAST_MASS)
    assert alone is not None
    drawn = slot_before_and_after([("x", "zsmerge", alone)], Provenance(), None, "light")
    assert drawn.frame["lost"].tolist() == pytest.approx([0.5])


@pytest.mark.parametrize("scale", [1.0, 1e-14])
def test_expecting_the_same_again_is_off_by_the_same_share_at_any_scale(scale: float):
    mass = scale * np.array([[0.5, 0.5], [0.25, 0.75]], np.float32)
    assert persistence_error(mass)[1] == pytest.approx(0.5, rel=1e-3)
    assert np.isnan(persistence_error(np.array([[0.5], [0.0]], np.float32))[1])


@pytest.mark.parametrize("scale", [1.0, 1e-14])
def test_a_prediction_is_off_by_the_same_share_at_any_scale(scale: float):
    rows = Rows(scale * np.array([[1, 3, 0], [2, 2, 0]], np.float32), 0, 2)
    errors = prediction_errors(rows)
    assert errors[errors["predictor"] == LAST]["error"].tolist() == pytest.approx([0.5])
    nothing = prediction_errors(Rows(np.zeros((2, 3), np.float32), 0, 2))
    assert nothing["error"].isna().all()


def test_what_looks_at_sinks_alone_has_no_distance():
    mass = np.zeros((2, 8), np.float32)
    mass[0, 0] = 1
    mass[1, [0, 5]] = 1 - 1e-6, 1e-6
    found = pyramid.measures(mass, 7)
    assert found["distance"] == pytest.approx(2)  # query 7 looks at token 5; query 6 at a sink alone
    assert np.isnan(pyramid.measures(mass[:1], 7)["distance"])
    assert np.isnan(pyramid.measures(np.zeros((1, 8), np.float32), 7)["sink_mass"])


def test_a_row_without_attention_is_concentrated_nowhere():
    assert np.isnan(concentration(Rows(np.zeros((1, 4), np.float32), 0, 4))[0, 1:]).all()
    nothing = attention_map(pd.DataFrame(np.zeros((2, 4))), Provenance(), "light")
    assert nothing.caption == "There is no attention here."
    half = attention_map(pd.DataFrame([[0.0] * 4, [1.0, 0, 0, 0]]), Provenance(), "light")
    assert half.caption == "All of the attention is on the twentieth of the text that is read most."


def test_attention_that_never_varies_is_not_local():
    frame = pd.DataFrame({"variance": [0.0, 0.0], "window_variance": [0.0, 0.0], "shuffled": [0.0, 0.0]})
    assert np.isnan(variance_ratios(frame)).all()
    rows = pd.DataFrame({"prompt": ["a"], **PLACE, "recorded": [np.nan], "shuffled": [np.nan]})
    assert locality(rows).verdict == "not enough to say" and locality(rows).interval is None


def test_weights_are_compared_however_small():
    points = pd.DataFrame({"target": [1, 1], "others": [2, 2], "weight": [1e-4, 1e-9]})
    assert weight_ratio(points)["ratio"] == pytest.approx(1e5)


def test_a_share_that_falls_to_nothing_is_halved_at_once():
    decay = pd.DataFrame({"merges": [1, 5], "share": [0.8, 0.0]})
    assert influence.half_life(decay) == 1


def test_slots_are_infinitely_many_times_none():
    steps = pd.DataFrame({"step": 0, "layer": [0, 0, 1, 1], "head": [0, 1, 0, 1], "live_slots": [6, 2, 0, 0]})
    assert pyramid.spread_by_axis(steps, 0) == {"layers": float("inf"), "heads": 3.0}


def test_an_output_of_nothing_has_no_relative_error():
    true = torch.tensor([[3e-20, 4e-20], [0.0, 0.0], [1.0, 0.0], [0.0, 0.0]])
    given = torch.tensor([[3e-20, 0.0], [1.0, 0.0], [2.0, 0.0], [0.0, 0.0]])
    assert relative_error(given * 1e5, true * 1e5, 4)[[0, 2, 3]].tolist() == pytest.approx([0.8, 1.0, 0.0])
    found = relative_error(given * 1e5, true * 1e5, 4)
    assert torch.isnan(found[1])
    assert relative_error(given * 1e5, true * 1e5, 2).tolist() == pytest.approx([0.8, 0.5])  # the known of each group


def test_short_vectors_are_stored_with_length_one():
    states = torch.tensor([[[3e-15, 4e-15]], [[0.0, 0.0]]])
    shadow = SimpleNamespace(rows=2, keys=[states], absent=None, host=SimpleNamespace(settle=list))
    assert Shadow.stored(shadow, "keys", [0]).unit[0].tolist() == [pytest.approx([0.6, 0.8], abs=1e-3), [0, 0]]


def test_a_channel_that_does_not_vary_has_no_shape():
    random = torch.Generator().manual_seed(0)
    varying = torch.randn(400, 1, generator=random)
    states = torch.cat([varying, 1e-9 * varying, torch.full((400, 1), 0.3), torch.zeros(400, 1)], 1)
    found = hidden_statistics(states, 4)
    for name in ("skew", "kurtosis", "distance"):
        assert found[name][1] == pytest.approx(float(found[name][0]), abs=1e-2)
        assert torch.isnan(found[name][2:]).all()
    assert torch.isfinite(found["histogram"]).all() and torch.isfinite(found["quantiles"]).all()


def test_attention_without_a_mass_has_no_nucleus():
    mass = torch.zeros(1, 2, 1, 4)  # (H, G, S, T)
    mass[0, 0, 0] = torch.tensor([1.0, 3e-33, 1e-33, 0.0])
    mass[0, 1, 0] = torch.tensor([1.0, 0.0, 0.0, 0.0])
    inside = _inside(mass, torch.tensor([[False, True, True, True]]))
    assert inside[0, 0, 0].tolist() == pytest.approx([0, 0.75, 0.25, 0])
    found = _overlaps(inside[:, :, 0], inside, 0.7, "")
    assert found["overlap"].item() == pytest.approx(0.75) and found["usage"].item() == pytest.approx(0.25)
    nothing = _overlaps(inside[:, 1:, 0], inside[:, 1:], 0.7, "")
    assert all(torch.isnan(value).all() for value in nothing.values())


def test_the_sentence_on_merged_slots_is_over_all_of_them():
    """The chart draws the 2,000 largest changes; the shares are of all."""
    frame = pd.DataFrame({"mass_before": 1e-3, "sag": [5e-4] * 2000 + [0.0] * 6000})
    told = caption_mass_balance(frame)
    assert "less attention than their parts" in told
    assert "Showing 2,000 of 8,000 merged slots, the largest changes." in told
    nothing = caption_mass_balance(pd.DataFrame({"mass_before": [0.0], "sag": [0.0]}))
    assert "together" not in nothing
