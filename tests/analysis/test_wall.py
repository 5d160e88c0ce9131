"""The wall agrees with the history of every single head, at every step."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from kvlab.core.errors import UserError
from kvlab.trace.reader import open_run
from kvlab.views.frames.lineage import State, fold, states_at
from kvlab.views.frames.wall import Fate, wall_of
from kvlab.views.wall import wall as shares_by_head
from tests.synthetic.runs import write_synthetic_run

OF_STATE = {
    State.SINK: Fate.KEPT, State.RECENT: Fate.KEPT, State.KEPT: Fate.KEPT, State.PIVOT: Fate.HOLDS,
    State.ABSORBED: Fate.ABSORBED, State.EVICTED: Fate.DROPPED,
}  # fmt: skip


@pytest.mark.parametrize("method", ["keepkv", "h2o", "full"])
def test_every_fate_is_that_of_the_head_s_own_lineage(tmp_path: Path, method: str) -> None:
    run = open_run(write_synthetic_run(tmp_path, layers=3, heads=2, prompt_tokens=50, steps=20, method=method))
    wall = wall_of(run)
    for row in range(6):
        layer, head = wall.layers[row // 2], row % 2
        lineage = fold(run.head_events(layer, head), run.select("steps", layer, head))
        for step in wall.steps.tolist():
            states = states_at(lineage, step)
            expected = [OF_STATE[State(state)] for state in states if state != State.UNSEEN]
            assert wall.fates(step)[row].tolist() == expected, (layer, head, step)


def test_a_wall_changes_step_by_step_into_its_last_picture(tmp_path: Path) -> None:
    """Replaying the changes one by one, as the browser does, gives `fates` at every step."""
    wall = wall_of(open_run(write_synthetic_run(tmp_path, prompt_tokens=40, steps=16)))
    cells, done = wall.first.copy().reshape(-1), 0
    assert (np.diff(wall.change_step) >= 0).all()
    assert len(wall.change_step) > 0
    for index, step in enumerate(wall.steps.tolist()):
        while done < len(wall.change_step) and wall.change_step[done] <= index:
            cells[wall.change_cell[done]] = wall.change_fate[done]
            done += 1
        read = int((wall.birth <= index).sum())
        assert np.array_equal(cells.reshape(wall.first.shape)[:, :read], wall.fates(step))
    assert done == len(wall.change_step)


def test_shares_of_a_head_add_up_to_one(tmp_path: Path) -> None:
    table = shares_by_head(open_run(write_synthetic_run(tmp_path, layers=2, heads=3)))
    assert len(table) == 6
    assert np.allclose(table[[fate.name.lower() for fate in Fate]].sum(axis=1), 1.0)
    assert table["dropped"].between(0, 1).all()
    assert table["kept"].max() < 1


def test_a_run_without_events_has_no_wall(tmp_path: Path) -> None:
    run = open_run(write_synthetic_run(tmp_path, level="light"))
    with pytest.raises(UserError, match="recorded at level light, without events"):
        wall_of(run)
