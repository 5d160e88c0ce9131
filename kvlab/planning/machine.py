"""Free memory of this machine, without torch."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

import psutil

WORKER = "kvlab.jobs.worker"  # a worker frees its memory before it loads another model
SHARE = 0.95  # of free memory: allocators lose some between tensors
CGROUP = Path("/sys/fs/cgroup")
SMI = ("nvidia-smi", "--query-gpu=name,memory.total,memory.free", "--format=csv,noheader,nounits")
MEGABYTE = 2**20


@dataclass(frozen=True)
class Machine:
    """A device (cpu, cuda or mps) by name, and the bytes of each memory that a comparison may use."""

    device: str
    name: str
    device_bytes: int
    host_bytes: int
    devices: int = 1  # of this kind, assumed equal

    @property
    def shared(self) -> bool:
        """Whether the device uses the host's memory."""
        return self.device != "cuda"


def this_machine(device: str = "auto", memory: int | None = None, devices: int | None = None) -> Machine:
    """The machine as it is now; `memory` bytes and `devices` replace what is found, so the device need not exist."""
    kind = device.partition(":")[0]
    gpus = cards() if kind in ("auto", "cuda") else []
    kind = ("cuda" if gpus else "cpu") if kind == "auto" else kind
    host = int(SHARE * _host_bytes())
    if kind != "cuda":
        return Machine(kind, kind, memory or host, memory or host)
    number = int(device.partition(":")[2] or 0)
    name, total, free = gpus[number] if number < len(gpus) else ("a GPU that is not here", 0, 0)
    room = total if _workers() else free
    return Machine("cuda", name, memory or int(SHARE * room), host, devices or max(1, len(gpus)))


def _host_bytes() -> int:
    """Free memory of the host or container, including what idle kvlab workers hold."""
    free = psutil.virtual_memory().available
    try:
        most = (CGROUP / "memory.max").read_text().strip()
        if most.isdigit():
            free = min(free, int(most) - int((CGROUP / "memory.current").read_text()))
    except (OSError, ValueError):
        pass
    return free + sum(worker.memory_info().rss for worker in _workers())


def _workers() -> list[psutil.Process]:
    workers = []
    for process in psutil.process_iter(["cmdline"]):
        if WORKER in (process.info["cmdline"] or []):
            workers.append(process)
    return workers


def cards() -> list[tuple[str, int, int]]:
    """(name, bytes, free bytes) of every NVIDIA card; none without `nvidia-smi`."""
    try:
        output = subprocess.run(SMI, capture_output=True, text=True, timeout=10, check=True).stdout
        rows = [line.rsplit(",", 2) for line in output.splitlines() if line.strip()]
        gpus = [(name.strip(), int(total) * MEGABYTE, int(free) * MEGABYTE) for name, total, free in rows]
        chosen = os.environ.get("CUDA_VISIBLE_DEVICES", "")  # nvidia-smi ignores it
        numbers = [int(word) for word in chosen.split(",") if word.strip().isdigit()]
        return [gpus[number] for number in numbers if number < len(gpus)] if numbers else gpus
    except (OSError, subprocess.SubprocessError, ValueError):
        return []


def visible_gpus() -> list[str]:
    """The driver's ids of the NVIDIA cards this process may use, in the order of requests' device numbers."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        return [word.strip() for word in chosen.split(",") if word.strip()]
    return [str(number) for number in range(len(cards()))]
