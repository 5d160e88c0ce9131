"""Folding events rebuilds the cache of every step: the same as replaying them one after another."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlab.trace import open_run
from kvlab.views.frames.lineage import (
    MAX_CELLS,
    NEVER,
    SINKS,
    State,
    check_slots,
    event_steps,
    events_with_texts,
    fold,
    lineage_tree,
    members,
    merged_count,
    merged_slots,
    mosaic,
    regions_at,
    slot_table,
    state_counts,
    states_at,
    token_texts,
)
from tests.synthetic.runs import write_synthetic_run


@st.composite
def histories(draw: st.DrawFn) -> tuple[pd.DataFrame, pd.DataFrame, list[dict[int, set[int]]]]:
    """Events and steps of one head, and the slots (pivot: its tokens) after each step, by plain replay."""
    prompt, decoded = draw(st.integers(1, 24)), draw(st.integers(0, 8))
    slots: dict[int, set[int]] = {position: {position} for position in range(prompt)}
    events, steps, states = [], [], []
    for step in range(decoded + 1):
        if step:
            slots[prompt + step - 1] = {prompt + step - 1}
        leaving = draw(st.lists(st.sampled_from(sorted(slots)), max_size=max(0, len(slots) - 1), unique=True))
        staying = sorted(set(slots) - set(leaving))
        for source in leaving:
            target = draw(st.sampled_from([-1, *staying]))
            kind = "evict" if target < 0 else draw(st.sampled_from(["merge", "pool"]))
            events.append((step, kind, source, target, 0.0 if target < 0 else 0.5, float(len(slots[source])), 0.9))
            carried = slots.pop(source)
            if target >= 0:
                slots[target] |= carried
        steps.append((step, prompt + step, len(slots)))
        states.append({pivot: set(tokens) for pivot, tokens in slots.items()})
    names = ["step", "kind", "source", "target", "value_weight", "votes_source", "similarity"]
    table = pd.DataFrame(events, columns=names).astype({"step": int, "source": int, "target": int})
    return table, pd.DataFrame(steps, columns=["step", "tokens_seen", "live_slots"]), states


@settings(max_examples=120, deadline=None)
@given(histories())
def test_every_step_equals_the_replay(history: tuple):
    events, steps, states = history
    lineage = fold(events, steps)
    for step, slots in enumerate(states):
        owner = lineage.owners(step)
        assert {pivot: set(np.flatnonzero(owner == pivot)) for pivot in np.flatnonzero(lineage.alive(step))} == slots
        assert lineage.votes(step).sum() == sum(len(tokens) for tokens in slots.values())
    assert check_slots(lineage, steps)["agree"].all()


@settings(max_examples=120, deadline=None)
@given(histories())
def test_a_token_is_in_exactly_one_state_that_fits_its_slot(history: tuple):
    events, steps, states = history
    lineage = fold(events, steps)
    counts = state_counts(lineage).set_index("step")
    for step, slots in enumerate(states):
        found, owner = states_at(lineage, step), lineage.owners(step)
        own = np.isin(found, [State.SINK, State.RECENT, State.KEPT, State.PIVOT])
        assert set(np.flatnonzero(own)) == set(slots)
        assert set(np.flatnonzero(found == State.PIVOT)) == {
            pivot for pivot, tokens in slots.items() if len(tokens) > 1
        }
        assert (owner[found == State.ABSORBED] != np.flatnonzero(found == State.ABSORBED)).all()
        assert (owner[found == State.EVICTED] == -1).all()
        assert (found == State.UNSEEN).sum() == lineage.tokens - steps["tokens_seen"][step]
        row = counts.loc[step]
        assert row.sum() == lineage.tokens
        assert row["pivot"] == (found == State.PIVOT).sum()
        assert row["absorbed"] == (found == State.ABSORBED).sum()
        assert row["evicted"] == (found == State.EVICTED).sum()


@settings(max_examples=60, deadline=None)
@given(histories())
def test_the_mosaic_of_single_tokens_is_the_states_of_every_step(history: tuple):
    events, steps, _ = history
    lineage = fold(events, steps)
    picture = mosaic(lineage)
    assert picture.shape == (lineage.tokens, len(steps))
    for step in steps["step"]:
        assert (picture[step].to_numpy() == states_at(lineage, step)).all()


@given(histories())
def test_regions_of_many_steps_are_those_of_each(history: tuple):
    events, steps, _ = history
    lineage = fold(events, steps)
    for asked in (lineage.steps, lineage.steps[::2], lineage.steps[1:2], lineage.steps[:0]):
        sinks, recent = regions_at(lineage, asked)
        for step, *found in zip(asked, sinks, recent, strict=True):
            left = np.flatnonzero(lineage.leave <= step)
            assert found == ([min(left[0], SINKS), left[-1] + 1] if len(left) else [0, lineage.tokens])


def synthetic(root: Path, **options: object) -> tuple:
    run = open_run(write_synthetic_run(root, **options))
    events, steps = run.select("events", 0, 0), run.select("steps", 0, 0)
    lineage = fold(events, steps)
    return run, events, steps, lineage, token_texts(run.tokens, lineage.tokens)


@pytest.mark.parametrize("method", ["full", "h2o", "keepkv", "zsmerge", "pool"])
def test_recorded_slots_and_votes_agree_with_the_fold(tmp_path: Path, method: str):
    _run, events, steps, lineage, _ = synthetic(tmp_path, method=method, prompt_tokens=60, steps=12)
    assert check_slots(lineage, steps)["agree"].all()
    if method in ("keepkv", "zsmerge"):
        last = events.drop_duplicates("target", keep="last").set_index("target")["votes_after"]
        votes = lineage.votes(int(lineage.steps[-1]))
        alive = [slot for slot in last.index if votes[slot]]
        assert alive
        assert np.allclose(votes[alive], last[alive])
        assert votes.sum() == lineage.tokens


def test_a_large_mosaic_is_cut_into_blocks_and_keeps_the_majority(tmp_path: Path):
    _, _, _, lineage, _ = synthetic(tmp_path, method="h2o", prompt_tokens=2000, steps=4, budget=0.05)
    picture = mosaic(lineage, max_cells=100)
    assert picture.shape[0] == 100
    assert mosaic(lineage).shape[0] <= MAX_CELLS
    exact = states_at(lineage, 4)
    starts = picture.index.to_numpy()
    assert (exact[: starts[1]] == State.SINK).any() and picture.iloc[0, -1] == State.SINK, "few, but always shown"
    for row, (start, stop) in enumerate(itertools.pairwise(starts)):
        evicted = (exact[start:stop] == State.EVICTED).mean()
        if evicted > 0.5 and row:
            assert picture.iloc[row, -1] == State.EVICTED


def test_tables_say_where_each_token_is(tmp_path: Path):
    run, events, steps, lineage, texts = synthetic(tmp_path, method="keepkv", prompt_tokens=80, steps=6)
    step = 4
    masses = tuple(mass[step] for mass in run.attention(0, 0))
    slots = slot_table(lineage, texts, step, masses)
    assert len(slots) == steps.set_index("step").loc[step, "live_slots"]
    assert slots["votes"].sum() == steps.set_index("step").loc[step, "tokens_seen"]
    assert slots["true mass"].sum() == pytest.approx(1, abs=0.01)
    assert slots["lost"].tolist() == pytest.approx((slots["true mass"] - slots["mass"]).tolist(), abs=1e-6)
    assert "sag" not in slots, "what a slot gains is no sag"
    for few in (1, 7, len(slots)):
        order = sorted(slots.to_dict("records"), key=lambda slot: (-slot["votes"], -slot["mass"], slot["position"]))
        shown = slot_table(lineage, texts, step, masses, few)
        assert shown.to_dict("records") == sorted(order[:few], key=lambda slot: slot["position"])
    absorbed = states_at(lineage, step) == State.ABSORBED
    assert (lineage.leave[absorbed] <= step).all()
    assert set(lineage.owners(step)[absorbed]) <= set(slots["position"])
    here = events[events["step"] == step]
    told = events_with_texts(here, texts)
    assert told["source"].tolist() == here["source"].tolist()
    assert told["source_text"].tolist() == [texts[source] for source in here["source"]]
    assert set(event_steps(lineage)) == set(events.loc[events["step"] > 0, "step"])


def test_the_tree_of_a_slot_holds_all_its_tokens(tmp_path: Path):
    _, events, _, lineage, texts = synthetic(tmp_path, method="keepkv", prompt_tokens=80, steps=20)
    step = int(lineage.steps[-1])
    slot = int(lineage.votes(step).argmax())
    tree = lineage_tree(lineage, events, texts, slot, step)
    inside = set(members(lineage, slot, step))
    assert len(inside) == lineage.votes(step)[slot]
    assert len(tree) == len(inside) - 1
    assert set(tree["source"]) <= inside
    assert set(tree["target"]) <= set(tree["source"]) | {slot}
    assert tree["similarity"].notna().all()
    merged = merged_slots(lineage, step)
    assert next(iter(merged)) == slot
    assert merged == {int(place): int(count) for place, count in enumerate(lineage.votes(step)) if count > 1}
    assert merged_count(lineage, step) == len(merged) and len(merged_slots(lineage, step, 1)) == 1


def test_a_slot_spread_over_several_follows_the_largest_share():
    events = pd.DataFrame(
        {"step": [0, 0], "kind": "merge", "source": [0, 0], "target": [1, 2], "value_weight": [0.2, 0.7]}
    )
    lineage = fold(events, pd.DataFrame({"step": [0], "tokens_seen": [3]}))
    assert lineage.owners(0).tolist() == [2, 1, 2]
    assert lineage.death.tolist() == [NEVER] * 3


def test_a_broken_circle_of_merges_does_not_hang():
    events = pd.DataFrame(
        {"step": 0, "kind": "merge", "source": [0, 1, 2], "target": [1, 2, 0], "value_weight": [0.5] * 3}
    )
    lineage = fold(events, pd.DataFrame({"step": [0], "tokens_seen": [3]}))
    assert len(lineage.owners(0)) == 3


def test_no_events_and_no_steps_are_an_empty_history():
    columns = ["step", "kind", "source", "target", "value_weight"]
    lineage = fold(pd.DataFrame(columns=columns), pd.DataFrame(columns=["step", "tokens_seen"]))
    assert lineage.tokens == 0
    assert lineage.owners(0).tolist() == []
