"""Energy counters: NVIDIA's total energy counter (NVML) of a GPU, or Intel's and AMD's RAPL counters of the CPUs.

A counter counts all that its device does, other programs and idle time included. RAPL counts processor packages alone:
no memory modules, disks or power supply.
"""

import importlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import torch

POWERCAP = Path("/sys/class/powercap")
_PACKAGE = re.compile(r"intel-rapl:\d+")


@dataclass(frozen=True)
class EnergyCounter:
    """A counter by name; `joules` reads those counted since some fixed time."""

    name: str
    joules: Callable[[], float]


@dataclass(frozen=True)
class NoCounter:
    """Why energy cannot be measured here."""

    reason: str


Energy = EnergyCounter | NoCounter


class WrappingCounter:
    """Sum of microjoule counters that start again at zero behind their largest value.

    It must be read at least once between two such jumps (RAPL: after `max_energy_range_uj`).
    """

    def __init__(self, counters: Sequence[tuple[Callable[[], int], int]]) -> None:
        self._counters = counters  # (what reads it, its largest value)
        self._last = [read() for read, _ in counters]
        self._microjoules = 0

    def joules(self) -> float:
        """Joules since this object was made."""
        for place, (read, largest) in enumerate(self._counters):
            now = read()
            self._microjoules += (now - self._last[place]) % (largest + 1)
            self._last[place] = now
        return self._microjoules / 1e6


@lru_cache
def energy_counter(device: torch.device, powercap: Path = POWERCAP) -> Energy:
    """The counter of a device of this machine, or why it has none; found once."""
    if device.type == "cuda":
        try:
            nvml: Any = importlib.import_module("pynvml")
        except ImportError:
            return NoCounter("the package nvidia-ml-py (pynvml) is not installed")
        try:
            nvml.nvmlInit()
            uuid = f"GPU-{torch.cuda.get_device_properties(device).uuid}"
            handle = nvml.nvmlDeviceGetHandleByUUID(uuid.encode())
            nvml.nvmlDeviceGetTotalEnergyConsumption(handle)
        except (nvml.NVMLError, AttributeError, RuntimeError) as error:
            return NoCounter(f"NVML has no energy counter for this GPU ({error})")
        return EnergyCounter("NVML", lambda: nvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1e3)
    if device.type != "cpu":
        return NoCounter(f"no energy counter is known for {device.type}")
    # RAPL, of all processor packages.
    if not powercap.is_dir():
        return NoCounter(f"this machine has no {powercap}")
    packages = [
        path
        for path in sorted(powercap.glob("intel-rapl:*"))
        if _PACKAGE.fullmatch(path.name) and _text(path / "name").startswith("package")
    ]
    if not packages:
        return NoCounter(f"{powercap} has no counter of a processor package")
    counters: list[tuple[Callable[[], int], int]] = []
    for path in packages:
        file = path / "energy_uj"
        try:
            _number(file)
            counters.append((partial(_number, file), _number(path / "max_energy_range_uj")))
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else "not a number"
            return NoCounter(f"{file} cannot be read ({why}): an administrator can allow it")
    return EnergyCounter(
        f"RAPL, {', '.join(_text(path / 'name') for path in packages)}", WrappingCounter(counters).joules
    )


def describe_energy(found: Energy) -> str:
    """The counter's name, or `not measured: ` and why."""
    return found.name if isinstance(found, EnergyCounter) else f"not measured: {found.reason}"


def joule_meter(found: Energy) -> Callable[[], float | None]:
    """A function that reads the joules that the device has taken since now; None without a counter."""
    if isinstance(found, NoCounter):
        return lambda: None
    begun = found.joules()
    return lambda: found.joules() - begun


def _number(file: Path) -> int:
    return int(file.read_text())


def _text(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:
        return ""
