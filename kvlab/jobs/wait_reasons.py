"""Why a job waits or is slow, in words: its place in the queue, and the load of this machine."""

from __future__ import annotations

import os
from pathlib import Path

from kvlab.jobs.client import JobStatus, list_jobs


def place_words(root: Path, status: JobStatus) -> str:
    """`next in the queue, after the job that runs now` or `3 jobs before this one`; empty unless it is queued."""
    if status.state != "queued":
        return ""
    running = sum(job.state == "running" for job in list_jobs(root, open_only=True))
    now = {0: "", 1: ", after the job that runs now"}.get(running, f", after the {running} jobs that run now")
    ahead = (status.position or 1) - 1
    return f"next in the queue{now}" if ahead == 0 else f"{ahead} {'job' if ahead == 1 else 'jobs'} before this one"


def busy_words() -> str:
    """`machine busy: load 3 on 2 cores` if more processes want to compute than there are cores; else empty."""
    try:
        load = os.getloadavg()[0]
    except (AttributeError, OSError):  # not on every system
        return ""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return (
        "" if load <= cores + 0.5 else f"machine busy: load {load:.0f} on {cores} {'core' if cores == 1 else 'cores'}"
    )
