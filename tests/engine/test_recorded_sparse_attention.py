"""A recorded run has the bytes that each step read and the attention that it left out; evaluations have the bytes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from kvlab.core.methods.spec import parse_choices
from kvlab.engine.compare import compare
from kvlab.evaluation.results.summary import with_measures
from kvlab.requests.compare import CompareRequest
from kvlab.trace import Run, open_run
from kvlab.views.autopsy import fates_at, fates_of_span_over_steps
from kvlab.views.base.view import find_view
from kvlab.views.frames import autopsy
from kvlab.views.frames.compare import headline
from kvlab.views.frames.memory import over_steps
from kvlab.views.frames.trade_off import READ, reads_less, run_points
from kvlab.views.trade_off import caption_quality_against_bytes, quality_against_bytes
from kvlab.views.unread import caption_reading_map, steps_read, unread_tokens

METHODS = "full:read=oracle-topk:read_share=0.2,snapkv:window=4:kernel=3:read=random,snapkv:window=4:kernel=3"
PROMPT = "The harbour lamp was lit at seven, and the old captain counted the boats as they came in."


@pytest.fixture(scope="module")
def runs(tiny_model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    request = CompareRequest(
        prompt=PROMPT, model=str(tiny_model_folder), choices=parse_choices(METHODS, "0.5"), max_new_tokens=5
    )
    return [open_run(path) for path in compare(request, tmp_path_factory.mktemp("runs"))]


def test_the_mass_that_was_not_read_is_that_of_the_slots_left_out(runs: list[Run]) -> None:
    """Slots that were held and not read got no attention, so the attention rows say which they are."""
    for run in runs[1:3]:
        left_out = 0.0
        for (layer, head), steps in run.steps.groupby(["layer", "head"]):
            true, given = (rows.astype(np.float64) for rows in run.attention(int(layer), int(head)))
            for step in steps.itertuples():
                if step.step == 0:
                    assert np.isnan(step.unread_mass), "a prompt reads everything"
                    continue
                unread = true[step.step][given[step.step] == 0].sum() - step.regret
                assert step.unread_mass == pytest.approx(unread, abs=5e-3)
                left_out += step.unread_mass
        assert left_out > 0.1
    for run in (runs[0], runs[3]):
        assert run.steps["unread_mass"].isna().all()


def test_what_was_held_and_not_read_is_a_fate_and_a_map(runs: list[Run]) -> None:
    """Attention rows say which slots were read: those with mass. Both views are theirs."""
    both = runs[2]
    assert not runs[0].sparse_layers and runs[1].sparse_layers == both.sparse_layers == (0, 1, 2)
    table = autopsy.autopsy(both, (0, 15))
    unread = unread_tokens(both, table)
    assert unread is not None and not unread[0].any() and unread_tokens(runs[3], table) is None
    for place, row in table.iterrows():
        given = both.attention(row["layer"], row["head"])[1][:, row["token"]]
        held = (row["left"] > np.arange(len(given))) if pd.notna(row["left"]) else np.full(len(given), True)
        assert (unread[1:, place] == ((given == 0) & held)[1:]).all()
    fates = fates_at(both, (0, 15))["fate"]
    assert set(fates) == {"kept", "dropped", "not read"}
    assert ((fates == "dropped") == (table["fate"] == "dropped")).all()
    over = fates_of_span_over_steps(both, (0, 15))
    assert np.allclose(over.drop(columns="step").sum(1), 1)
    assert np.allclose(over.iloc[-1][[*autopsy.FATES, autopsy.UNREAD]].astype(float),
                       [(fates == fate).mean() for fate in (*autopsy.FATES, autopsy.UNREAD)])  # fmt: skip
    steps = both.select("steps", 1, 0)
    blocks = steps_read(both, 1, 0)
    missed = blocks.groupby("step")[["missed", "held"]].sum()
    assert missed["missed"].to_numpy() == pytest.approx(steps["unread_mass"].iloc[1:].to_numpy(), abs=2e-3)
    assert (missed["held"].to_numpy() == steps["live_slots"].to_numpy()[:-1] + 1).all(), "and the step's own token"
    assert "misses" in caption_reading_map(blocks)
    drawn = find_view("steps_read").draw(both, layer=1, head=0)
    assert drawn.frame.equals(blocks) and drawn.caption == caption_reading_map(blocks)
    assert find_view("steps_read").frame(runs[0], layer=1, head=0).empty, "of a run that reads everything"


def test_bytes_read_are_recorded_by_step_and_older_runs_read_what_they_hold(runs: list[Run]) -> None:
    full, sparse, both, _ = runs
    slot = full.memory["live_bytes"] / full.memory["live_slots"]
    decoded = sparse.memory[sparse.memory["step"] > 0]
    chosen = np.ceil(0.2 * decoded["live_slots"].to_numpy() - 1e-6)
    assert np.allclose(decoded["bytes_read"], chosen * slot.iloc[0])
    assert sparse.memory.loc[sparse.memory["step"] == 0, "bytes_read"].isna().all()
    table = headline(runs).set_index("label")
    assert table["bytes_read"].iloc[1] == pytest.approx(decoded.groupby("step")["bytes_read"].sum().mean())
    assert table["bytes_read"].iloc[2] < 0.3 * table["bytes_read"].iloc[3], "random slots of half of them"
    assert table["reading"].tolist() == ["", "oracle-topk", "random", ""]
    older = over_steps(full.memory.drop(columns="bytes_read"), full.record)
    assert (older["bytes_read"] == older["live_bytes"]).all()
    assert (both.memory["bytes_read"].dropna() < both.memory["live_bytes"].max()).all()


def test_a_figure_compares_by_bytes_read_where_a_run_reads_less(runs: list[Run]) -> None:
    table = headline(runs)
    points = run_points(table, [(label, "50 %") for label in table["label"]])
    assert reads_less(points) and not reads_less(points[points["method"].isin(["full"])])
    assert not reads_less(points.iloc[[0, 3]]), "a cache that only grows"
    figure = quality_against_bytes(points, axis=READ)
    assert "bytes read by a decode step" in figure.layout.xaxis.title.text
    drawn = {trace.name: trace.x[0] for trace in figure.data if trace.name != "Pareto frontier"}
    assert drawn[table["label"][2]] == min(drawn.values())
    assert "live bytes" in quality_against_bytes(points).layout.xaxis.title.text
    assert "Equal bytes" not in caption_quality_against_bytes(points, axis=READ)


def test_rows_of_older_evaluations_read_what_they_hold() -> None:
    common = {
        "task": "t", "difficulty": "{}", "content": "", "length": 1, "depth": None, "index": 0, "seed": 0,
        "question_aware": True, "model": "m", "model_digest": "d", "score": 1.0, "slots": 1.0, "logical_tokens": 1,
    }  # fmt: skip
    older = pd.DataFrame([{**common, "method": "full", "live_bytes": 10}, {**common, "method": "h2o", "live_bytes": 5}])
    assert with_measures(older)["bytes_read"].tolist() == [10, 5]
    assert with_measures(older.assign(bytes_read=[None, 2]))["bytes_read"].tolist() == [10, 2]
