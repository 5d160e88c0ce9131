"""What a device was measured to do: once, by one, and anew when that no longer holds."""

from __future__ import annotations

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from kvlab.planning import Machine, find_model, seconds
from kvlab.planning.footprint import Footprint
from kvlab.planning.seconds import duration
from kvlab.planning.workload import Workload

GB = 10**9


@pytest.fixture(autouse=True)
def nothing_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a process that has measured nothing yet."""
    monkeypatch.setattr(seconds, "_measured", {})


def test_without_earlier_runs_the_device_is_measured_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here, work = Machine("cpu", "cpu", GB, GB, GB), Workload(find_model("mini"), 500, 8, 4, 1, "light")
    first = duration(work, [Footprint()] * 2, here, tmp_path)
    monkeypatch.setattr(seconds, "_host_speed", lambda: pytest.fail("measured again"))
    assert duration(work, [Footprint()] * 2, here, tmp_path) == first
    assert first is not None and "no run of this model" in first.basis
    assert duration(work, [Footprint()] * 2, Machine("cuda", "some GPU", GB, GB, GB), tmp_path) is None
    assert duration(work, [Footprint()] * 2, here, tmp_path / "another folder") == first
    three = duration(work, [Footprint()] * 2, here, tmp_path, 3)
    assert three is not None and (three.low, three.high) == pytest.approx((3 * first.low, 3 * first.high))


def test_a_measurement_says_when_it_was_and_is_made_again_when_it_no_longer_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, work, measured = Machine("cpu", "cpu", GB, GB, GB), Workload(find_model("mini"), 500, 8, 4, 1, "light"), []

    def measure() -> seconds.Speed:
        measured.append(1)
        return seconds.Speed(operations=1e10, bytes=1e9)

    def basis() -> str:
        found = duration(work, [Footprint()], here, tmp_path)
        assert found is not None
        return found.basis

    def noted(**changes: object) -> None:
        """As if it had been noted otherwise; None: as before it was noted at all."""
        (name, known), *_ = json.loads((tmp_path / seconds.FILE).read_text()).items()
        kept = {field: value for field, value in (known | changes).items() if value is not None}
        (tmp_path / seconds.FILE).write_text(json.dumps({name: kept}))

    monkeypatch.setattr(seconds, "_host_speed", measure)
    today = datetime.now(UTC)
    assert f"measured on this device on {today:%Y-%m-%d}," in basis()
    noted(measured=(today - timedelta(days=6)).isoformat())
    assert f"on this device on {today - timedelta(days=6):%Y-%m-%d}," in basis() and len(measured) == 1
    stale = ({"measured": day.isoformat()} for day in (today - timedelta(days=8), today + timedelta(days=1)))
    for number, changes in enumerate([*stale, {"measured": None, "by": None}, {"by": "torch 1.0"}], 2):
        noted(**changes)
        assert f"on {today:%Y-%m-%d}," in basis() and len(measured) == number
    monkeypatch.setenv("OMP_NUM_THREADS", "77")
    basis()
    monkeypatch.undo()
    monkeypatch.setattr(seconds, "_host_speed", lambda: pytest.fail("measured again"))
    assert len(measured) == 6 and basis() == basis()


def test_a_device_is_measured_by_one_while_others_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it cannot be written down too."""
    here, measured, all_there = Machine("cpu", "cpu", GB, GB, GB), [], threading.Barrier(8)

    def measure() -> seconds.Speed:
        measured.append(1)
        time.sleep(0.05)
        return seconds.Speed(operations=1, bytes=1)

    def ask(_: int) -> seconds.Speed | None:
        all_there.wait()
        return seconds.known_speed(here, tmp_path / "no folder")

    monkeypatch.setattr(seconds, "_host_speed", measure)
    with ThreadPoolExecutor(8) as askers:
        assert len(set(map(str, askers.map(ask, range(8))))) == 1
    assert len(measured) == 1
