"""Energy counters: fake RAPL files that wrap around, a fake NVML, and what has no counter says why."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kvlab.engine.energy import EnergyCounter, NoCounter, WrappingCounter, describe_energy, energy_counter, joule_meter

CPU, LARGEST = torch.device("cpu"), 2**18


def package(powercap: Path, number: str, name: str, microjoules: int) -> Path:
    folder = powercap / f"intel-rapl:{number}"
    folder.mkdir(parents=True)
    (folder / "name").write_text(f"{name}\n")
    (folder / "max_energy_range_uj").write_text(f"{LARGEST}\n")
    (folder / "energy_uj").write_text(f"{microjoules}\n")
    return folder / "energy_uj"


@given(st.lists(st.integers(0, LARGEST), max_size=20), st.integers(0, LARGEST))
def test_what_is_counted_does_not_depend_on_wrap_arounds(spent: list[int], start: int) -> None:
    place = [start]
    counter = WrappingCounter([(lambda: place[0], LARGEST)])
    for total, more in zip([sum(spent[: at + 1]) for at in range(len(spent))], spent, strict=True):
        place[0] = (place[0] + more) % (LARGEST + 1)
        assert counter.joules() == pytest.approx(total / 1e6)


def test_packages_are_summed_and_their_parts_and_the_platform_are_not(tmp_path: Path) -> None:
    first = package(tmp_path, "0", "package-0", LARGEST - 1000)
    second = package(tmp_path, "1", "package-1", 5)
    core = package(tmp_path, "0:0", "core", 0)
    platform = package(tmp_path, "2", "psys", 0)
    found = energy_counter.__wrapped__(CPU, tmp_path)
    assert isinstance(found, EnergyCounter) and found.name == "RAPL, package-0, package-1"
    meter = joule_meter(found)
    first.write_text("999")  # 2,000 uJ further, over the end
    second.write_text("3005")
    core.write_text("77777")
    platform.write_text("77777")
    assert meter() == pytest.approx(5000e-6)


def test_a_machine_without_a_counter_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nowhere = energy_counter.__wrapped__(CPU, tmp_path / "nowhere")
    assert describe_energy(nowhere) == f"not measured: this machine has no {tmp_path / 'nowhere'}"
    assert joule_meter(nowhere)() is None
    assert "no counter of a processor package" in describe_energy(energy_counter.__wrapped__(CPU, tmp_path))
    locked = package(tmp_path, "0", "package-0", 0)
    locked.unlink()  # as unreadable as a file of the administrator is, for a test that may run as one
    assert "energy_uj cannot be read" in describe_energy(energy_counter.__wrapped__(CPU, tmp_path))
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert "pynvml" in describe_energy(energy_counter.__wrapped__(torch.device("cuda", 0)))
    assert isinstance(energy_counter.__wrapped__(torch.device("mps")), NoCounter)


def test_nvml_counts_millijoules_of_the_gpu_with_the_devices_uuid(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = {b"GPU-one": 10_000}
    fake = SimpleNamespace(
        NVMLError=KeyError,
        nvmlInit=lambda: None,
        nvmlDeviceGetHandleByUUID=lambda uuid: uuid if uuid in counted else counted[uuid],
        nvmlDeviceGetTotalEnergyConsumption=counted.__getitem__,
    )
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    uuids = ["one", "two"]
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid=uuids[device.index or 0])
    )
    found = energy_counter.__wrapped__(torch.device("cuda", 0))
    meter = joule_meter(found)
    counted[b"GPU-one"] += 2500
    assert describe_energy(found) == "NVML" and meter() == 2.5
    assert "no energy counter for this GPU" in describe_energy(energy_counter.__wrapped__(torch.device("cuda", 1)))
