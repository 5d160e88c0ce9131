"""Difference, autopsy, fingerprints and clusters follow from their definitions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from kvlab.core.errors import UserError
from kvlab.trace import Run
from kvlab.trace.schema import SpeedReading
from kvlab.views import autopsy as autopsies
from kvlab.views import board as boards
from kvlab.views import difference, similarity
from kvlab.views import heads as fingerprints
from kvlab.views import memory as costs
from kvlab.views.frames import autopsy
from kvlab.views.frames.facts import FATES, fact_fates
from kvlab.views.frames.lineage import State, states_at, step_labels, steps_with_events
from kvlab.views.memory import instrument_cost_frame, memory_stack_frame
from kvlab.views.similarity import consecutive_sets, set_count
from tests.analysis.conftest import METHODS, head

NUMBERS = st.floats(-3, 3, width=32)


# difference


def test_kept_tokens_are_the_slots_of_the_fold(runs: dict[str, Run]):
    for run in runs.values():
        kept = difference.kept_at(run, 6)
        lineage, _ = head(run)
        assert (kept.alive[1, 0] == lineage.alive(6)[: kept.tokens_seen]).all()


def test_difference_is_symmetric_and_none_with_itself(runs: dict[str, Run]):
    a, b = (difference.kept_at(runs[method], 6) for method in ("h2o", "keepkv"))
    first, second = (runs[method] for method in ("h2o", "keepkv"))
    pairs = ((first, second), (second, first), (first, first))
    there, back, own = (difference.difference(pair, 6) for pair in pairs)
    assert (there["jaccard"] == back["jaccard"]).all() and (there["only_a"] == back["only_b"]).all()
    assert (own["jaccard"] == 1).all()
    assert there["jaccard"].between(0, 1).all()
    codes = difference.classes(a, b, 1, 0, 92)
    row = there.query("layer == 1 and head == 0").iloc[0]
    counted = np.array([(codes == code).sum() for code in range(3)])
    np.testing.assert_allclose(counted / a.tokens_seen, row[["both", "only_a", "only_b"]].astype(float))
    assert (codes[a.tokens_seen :] == difference.UNREAD).all()


def test_two_runs_that_write_the_same_never_part(runs: dict[str, Run]):
    assert difference.divergences(runs["h2o"], runs["h2o"])["each_other"] is None
    other = difference.divergences(runs["full"], runs["h2o"])
    assert other["a"] is None and other["each_other"] == other["b"]


# autopsy


@pytest.mark.parametrize("step", [0, 5, None])
@pytest.mark.parametrize("method", METHODS)
def test_fates_are_the_states_after_the_step(runs: dict[str, Run], method: str, step: int | None):
    """A pivot's own token shares its slot, so it is merged as those that went into it are."""
    run = runs[method]
    table = autopsy.autopsy(run, (10, 29), step)
    assert len(table) == 20 * 2 * 2
    names = {State.ABSORBED: "merged", State.PIVOT: "merged", State.EVICTED: "dropped"}
    for layer in (0, 1):
        lineage, _ = head(run, layer, 1)
        last = int(lineage.steps[-1])
        states = states_at(lineage, last if step is None else step)[10:30]
        own = table.query("layer == @layer and head == 1")
        assert own["fate"].tolist() == [names.get(State(code), "kept") for code in states]
        assert own["slot"].tolist() == lineage.owners(last)[10:30].tolist()
    over = autopsies.fates_of_span_over_steps(run, (10, 29)).iloc[-1 if step is None else step]
    shares = table["fate"].value_counts(normalize=True)
    assert [over[fate] for fate in autopsy.FATES] == pytest.approx([shares.get(fate, 0.0) for fate in autopsy.FATES])


@pytest.mark.parametrize("method", METHODS)
def test_compare_and_autopsy_tell_the_same_of_the_same_tokens(runs: dict[str, Run], method: str):
    for step in (0, 3, 12):
        there = fact_fates(runs[method], range(10, 30), step)
        here = autopsy.autopsy(runs[method], (10, 29), step)
        pd.testing.assert_frame_equal(here[["layer", "head", "token", "fate"]], there)
    assert tuple(FATES) == autopsy.FATES == tuple(boards.FATES)


@settings(deadline=None)
@given(st.lists(st.text("aAb ßİ", min_size=1, max_size=3), min_size=1, max_size=12), st.data())
def test_words_are_found_where_they_stand(texts: list[str], data: st.DataObject):
    whole = "".join(texts)
    start = data.draw(st.integers(0, len(whole) - 1))
    words = whole[start : data.draw(st.integers(start + 1, len(whole)))].strip()
    if not words:
        return
    spans = autopsy.find_span(texts, words)
    for first, last in spans:
        assert words.casefold() in "".join(texts[first : last + 1]).casefold()
    with pytest.raises(UserError):
        autopsy.find_span(texts, "zzz")


def test_attention_on_the_tokens_is_theirs_in_the_full_cache(runs: dict[str, Run]):
    masses = autopsies.attention_to_span(runs["full"], 0, 1, (5, 6))
    np.testing.assert_allclose(masses["received"], masses["true"], atol=2e-3)


# fingerprints


def test_alike_heads_are_one_group_whatever_their_order():
    random = np.random.default_rng(0)
    centres = np.array([[0, 0, 0, 0], [5, 0, 0, 5], [0, 5, 5, 0]])
    true = np.repeat([0, 1, 2], 10)
    values = centres[true] + random.normal(0, 0.1, (30, 4))
    table = pd.DataFrame(values, columns=list(fingerprints.FEATURES)).assign(layer=0, head=range(30), output_error=0.1)
    for order in (np.arange(30), random.permutation(30)):
        group = fingerprints.cluster(table.iloc[order], 3)
        assert len(set(zip(group, true[order], strict=True))) == 3
    assert len(fingerprints.describe(table, fingerprints.cluster(table, 3))) == 3


def test_the_plane_keeps_what_varies_and_heads_that_do_not_differ_are_one_group(runs: dict[str, Run]):
    table = fingerprints.fingerprints(runs["keepkv"], (0, 1))
    places, directions, shares = fingerprints.plane(table)
    assert places.shape == (4, 2) and directions.shape == (4, 2)
    assert 0 < shares.sum() <= 1 + 1e-9
    assert table["sink"].between(0, 1.01).all() and table["local"].between(0, 1.01).all()
    same = pd.concat([table.iloc[:1]] * 3)
    assert (fingerprints.cluster(same, 3) == 0).all()


# clusters, steps, cost


@settings(deadline=None)
@given(arrays(np.float32, (30, 3), elements=NUMBERS), st.floats(-1, 1))
def test_outlined_sets_are_the_sets_of_more_than_one_token(vectors: np.ndarray, threshold: float):
    unit = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-6)
    anchor = consecutive_sets(unit, threshold)
    sets = similarity.as_outlines(anchor, (0, 30))
    assert 30 - (sets["votes"] - 1).sum() == set_count(anchor)
    for row in sets.itertuples():
        assert (anchor[row.start : row.stop] == row.stop - 1).all()
    assert (sets["start"] == sets["pivot_start"]).all()


def test_a_looser_threshold_never_reports_fewer_tokens_than_there_are(runs: dict[str, Run]):
    unit = runs["keepkv"].keys(0, 0)[0]
    slots = [set_count(consecutive_sets(unit, threshold)) for threshold in (0.5, 0.95)]
    assert slots[0] <= slots[1] <= 92


def test_steps_know_their_events_and_words(runs: dict[str, Run]):
    run = runs["h2o"]
    steps, events = steps_with_events(run.steps)
    assert steps == list(range(13)) and set(events) == set(run.events["step"]) - {0}
    words = step_labels(run.tokens, run.record.prompt_tokens, steps)
    assert words[0] == "the prompt was read" and len(words) == 13
    assert steps_with_events(runs["full"].steps)[1] == []


def test_the_stack_of_bytes_is_the_peak(runs: dict[str, Run]):
    table = memory_stack_frame(runs["h2o"].memory, runs["h2o"].record)
    np.testing.assert_allclose(table["live"] + table["slack"] + table["transient"], table["peak_bytes"])


@pytest.mark.parametrize("method", METHODS)
def test_free_bytes_are_room_within_a_block_and_padding(runs: dict[str, Run], method: str):
    memory = runs[method].memory.assign(allocated_bytes=lambda table: table["allocated_bytes"] + 40_000)
    table = memory_stack_frame(memory, runs[method].record)
    for step, rows in memory.groupby("step"):
        block = room = padding = 0.0
        for row in rows.itertuples():
            free, most = row.allocated_bytes - row.live_bytes, 64 * row.live_bytes / row.live_slots
            block, room, padding = block + most, room + min(free, most), padding + max(free - most, 0)
        told = table[table["step"] == step].iloc[0]
        assert [told["block"], told["room"], told["padding"]] == pytest.approx([block, room, padding])
        assert told["room"] + told["padding"] == pytest.approx(told["slack"])


def test_a_cache_larger_than_the_text_is_not_freed_by_less_than_nothing(runs: dict[str, Run]):
    memory = runs["full"].memory.assign(allocated_bytes=lambda table: 2 * table["allocated_bytes"])
    said = costs.caption_memory_stack(memory_stack_frame(memory, runs["full"].record))
    assert said == "At the end, the cache takes more memory than the full cache."


def test_the_cost_of_recording_is_told_where_several_readings_agree(runs: dict[str, Run]):
    run = runs["h2o"]
    timed = {"recorded_tokens_per_second": 11.0, "decode_tokens_per_second": 55.0}

    def with_readings(*rates: float) -> Run:
        readings = tuple(SpeedReading(way="eager", rate=rate) for rate in rates)
        return Run(run.path, run.record.model_copy(update=timed | {"speed_readings": readings}))

    table = instrument_cost_frame([with_readings(), with_readings(54.0, 56.0), with_readings(5.0)])
    assert table["doubt"].tolist() == ["one reading", "", "busy machine"]
    assert table[["off_low", "off", "off_high"]].iloc[1].tolist() == [54.0, 55.0, 56.0]
    figure = costs.instrument_cost(table)
    assert list(figure.data[0].marker.pattern.shape) == ["x", "", "x"]
    assert "slows down the only well-timed run" in costs.caption_instrument_cost(table)
    assert "cannot be said from these timings" in costs.caption_instrument_cost(table.head(1))


def test_overhead_is_bare_over_recorded_speed(runs: dict[str, Run], tmp_path: Path):
    run = runs["h2o"]
    timed = Run(run.path, run.record.model_copy(update={"recorded_tokens_per_second": 11.0}))
    table = instrument_cost_frame([timed, run])
    assert table["overhead"].iloc[0] == pytest.approx(5.0)
    assert np.isnan(table["overhead"].iloc[1])
