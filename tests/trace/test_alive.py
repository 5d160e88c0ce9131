"""Whether a run is still written, seen from its own machine and from another."""

from __future__ import annotations

import os
import time
from pathlib import Path

from kvlab.common import liveness
from kvlab.trace.catalogue import KILLED, list_runs
from tests.synthetic.runs import write_synthetic_run

LONG_AGO = "2020-01-01T00:00:00+00:00"


def test_a_run_killed_in_a_container_is_seen_as_ended(tmp_path: Path):
    path = write_synthetic_run(tmp_path, prompt_tokens=16, steps=2, status="running")
    assert list_runs(tmp_path)[0].status == "running", "this process writes it"
    pulse = path / liveness.PULSE
    assert pulse.read_text() == liveness.host_id()
    # The same process id, which lives here too, but of another container.
    pulse.write_text("container boot pid:[1]")
    assert list_runs(tmp_path)[0].status == "running", "its heart was heard a moment ago"
    silent = time.time() - liveness.SILENT_SECONDS - 1
    os.utime(pulse, (silent, silent))
    ended = list_runs(tmp_path)[0]
    assert (ended.status, ended.message) == ("failed", KILLED)


def test_the_pulse_beats_while_a_run_is_written_and_goes_with_its_end(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(liveness, "BEAT_SECONDS", 0.01)
    end = liveness.beat(tmp_path)
    file = tmp_path / liveness.PULSE
    os.utime(file, (1, 1))
    deadline = time.monotonic() + 10
    while file.stat().st_mtime < 2:
        assert time.monotonic() < deadline
        time.sleep(0.005)
    end()
    assert not file.exists()
    assert liveness.is_being_written(tmp_path, os.getpid(), "2999-01-01T00:00:00+00:00"), (
        "without a pulse the id decides"
    )
    assert not liveness.is_being_written(tmp_path, None, LONG_AGO)
