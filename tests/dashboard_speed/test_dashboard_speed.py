"""Dashboard timings: the synthetic runs are as large as said, its rows say whether a target was met."""

from __future__ import annotations

import shutil
from pathlib import Path

import psutil
import pytest

from kvlab.trace import open_run
from kvlab.trace.catalogue import list_runs
from tests.dashboard_speed import pages
from tests.dashboard_speed.clock import first_picture
from tests.dashboard_speed.plain import plain_chromium
from tests.dashboard_speed.server import BROWSERS
from tests.synthetic.large import HEADS, write_large_runs


def test_large_runs_have_the_events_asked_for_and_agree_with_one_another(tmp_path: Path):
    names = write_large_runs(tmp_path, layers=2, tokens=512, events=2 * HEADS * 60)
    opened = [open_run(tmp_path / name, strict=True) for name in names]
    assert [run.record.run_id for run in opened] == names and len(set(names)) == 3
    assert {entry.run_id for entry in list_runs(tmp_path)} == set(names)
    counts = {len(run.events) for run in opened}
    assert counts == {2 * HEADS * 60}
    assert opened[0].record.prompt_tokens == 512


@pytest.mark.parametrize(
    ("figure", "value", "verdict"),
    [
        ("first picture, timeline", 1999.0, "within 2,000 ms"),
        ("change of step, sag", 351.0, "above 350 ms"),
        ("zoom of the similarity map", 350.0, "within 350 ms"),
        ("memory", 1.2e9, "above 1 GB"),
    ],
)
def test_a_row_says_whether_its_target_was_met(figure: str, value: float, verdict: str):
    assert pages._verdict(figure, value) == verdict


@pytest.mark.skipif(not any(map(shutil.which, BROWSERS)), reason="needs Chromium")
def test_a_browser_that_nobody_watches_says_when_a_picture_is_there():
    pytest.importorskip("websockets")
    late = "data:text/html,<script>setTimeout(() => document.body.append(document.createElement('h1')), 400)</script>"
    with plain_chromium(pages.WIDTH, pages.HEIGHT) as room:
        for where in (room, room.never_here()):
            sight = first_picture(where, late, "h1", psutil.Process(room.process.pid))
            assert 400 <= sight.wall < 60_000
            assert sight.browser > 0
