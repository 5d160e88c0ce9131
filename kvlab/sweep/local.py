"""Worker processes on this machine, one per GPU if there are any."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from kvlab.evaluate.request import EvalRequest
from kvlab.sweep.leases import LEASE_SECONDS
from kvlab.sweep.shards import CONTROL, read_plan
from kvlab.sweep.status import Follower, Say

POLL_SECONDS = 0.5
MAX_RESTARTS = 8
STOP_SECONDS = 20.0


def run_local(folder: Path, workers: int | None, say: Say, seconds: float = LEASE_SECONDS) -> None:
    """Start workers and wait for them; a lost worker is restarted while shards are left.

    Raises UserError if shards are left when all workers have ended.
    """
    devices = _devices(read_plan(folder).requests)
    count = max(1, len(devices)) if workers is None else workers
    running = [_start(folder, number, count, devices, seconds) for number in range(count)]
    follower, restarts = Follower(folder, say), 0
    try:
        while running:
            time.sleep(POLL_SECONDS)
            left = follower.look().left
            for number, process in enumerate(list(running)):
                if process.poll() is None:
                    continue
                running.remove(process)
                if process.returncode < 0 and left:
                    say(f"Worker {process.pid} was lost (signal {-process.returncode}): others take its shard.")
                    if restarts < MAX_RESTARTS:
                        restarts += 1
                        running.append(_start(folder, number, count, devices, seconds))
    finally:
        _stop(running)
    follower.check_finished(f"The workers ended; {folder / CONTROL / 'logs'} says why.")


def _start(folder: Path, number: int, count: int, devices: Sequence[str], seconds: float) -> subprocess.Popen[bytes]:
    logs = folder / CONTROL / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    environment = dict(os.environ)
    if devices:
        environment["CUDA_VISIBLE_DEVICES"] = devices[number % len(devices)]
    else:
        environment.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // count)))
    command = [sys.executable, "-m", "kvlab", "sweep", "work", str(folder), "--lease-seconds", str(seconds)]
    with (logs / f"worker-{number}.log").open("ab") as log:
        return subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)


def _devices(requests: Sequence[EvalRequest]) -> list[str]:
    """GPUs as named by CUDA_VISIBLE_DEVICES; empty if a request sets its own device or placement."""
    import torch

    if any(request.device not in ("auto", "cuda") or request.placement != "single" for request in requests):
        return []
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    count = torch.cuda.device_count()
    return visible.split(",")[:count] if visible else [str(number) for number in range(count)]


def _stop(running: Sequence[subprocess.Popen[bytes]]) -> None:
    for process in running:
        process.terminate()
    for process in running:
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
