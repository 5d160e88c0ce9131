"""Pages of recorded runs against the lineage of each head, and their level against what was recorded."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from kvlab.trace import Run, open_run
from kvlab.views.frames import run_pages
from kvlab.views.frames.lineage import fold
from kvlab.views.frames.wall import wall_of
from tests.synthetic.runs import write_synthetic_run

LAYERS, HEADS, PROMPT, PAGE = 2, 2, 90, 16


@pytest.fixture(scope="module", params=["h2o", "keepkv"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    root = tmp_path_factory.mktemp("runs")
    options = {"layers": LAYERS, "heads": HEADS, "prompt_tokens": PROMPT, "steps": 12}
    return open_run(write_synthetic_run(root, method=request.param, budget=0.2, **options))


def alive(run: Run, step: int) -> np.ndarray:
    """(layers, heads, tokens) from each head's own history."""
    heads = [
        fold(run.head_events(layer, head), run.select("steps", layer, head)).alive(step)
        for layer in range(LAYERS)
        for head in range(HEADS)
    ]
    return np.stack(heads).reshape(LAYERS, HEADS, -1)


@pytest.mark.parametrize("step", [0, 5, 12])
def test_pages_are_those_of_the_slots_that_live(run: Run, step: int) -> None:
    kept = alive(run, step)[..., : PROMPT + step]
    table = run_pages.pages_map(wall_of(run), PAGE, step).set_index(["layer", "page"])
    for layer in range(LAYERS):
        for page in range(-(-kept.shape[-1] // PAGE)):
            there = kept[layer, :, page * PAGE : (page + 1) * PAGE]
            assert tuple(table.loc[(layer, page), ["kept", "slots"]]) == (there.sum(), there.size)
    row = run_pages.pages_over_steps(wall_of(run), PAGE).query(f"step == {step} and sharing == 'layer'").iloc[0]
    held = table[table["kept"] > 0]["slots"].sum() / (LAYERS * HEADS)
    assert row["paged"] == pytest.approx(held) and row["slots"] == pytest.approx(kept.sum() / (LAYERS * HEADS))
    assert row["fragmentation"] == pytest.approx(1 - kept.sum() / (LAYERS * HEADS) / held)


def test_the_level_is_that_of_the_tables(run: Run) -> None:
    found = run_pages.run_servability(run, wall_of(run))
    kept = alive(run, 0)[..., :PROMPT]
    assert found.level == (4 if run.record.method == "keepkv" else 1)
    assert found.held.merged_keys == (run.record.method == "keepkv") and found.decodes
    assert found.kept == pytest.approx(kept.mean()) and found.held.apart
    free = [not kept[:, :, first : first + PAGE].any() for first in range(0, PROMPT, PAGE)]
    size = [min(PAGE, PROMPT - first) for first in range(0, PROMPT, PAGE)]
    assert found.freed[PAGE].model == pytest.approx(np.dot(free, size) / PROMPT)


def test_a_method_from_outside_has_the_level_that_its_run_shows(tmp_path: Path) -> None:
    run = open_run(write_synthetic_run(tmp_path, method="pool", budget=0.3, layers=1, heads=2, steps=4))
    found = run_pages.run_servability(run, wall_of(run))
    assert found.level == 4 and found.reads_prompt == () and found.method == "pool"
