"""Run a job in this process, as the worker would."""

from __future__ import annotations

import time
from pathlib import Path

from kvlab.bench.request import BenchJob
from kvlab.common.errors import UserError
from kvlab.evaluate.request import EvalJob
from kvlab.jobs.work import Work
from kvlab.jobs.worker import BENCH, COMPARE, EVALUATE, load_function
from kvlab.requests.compare import CompareRequest
from kvlab.trace.catalogue import list_comparisons


def run_inline(work: Work, root: Path, stop: float = float("inf")) -> str:
    """Run the job, skipping what the folder has; returns its title. An evaluation ends at `stop`, with its rows.

    Raises UserError as the job itself, or only the queue can run a job of this kind.
    """
    root.mkdir(parents=True, exist_ok=True)
    if isinstance(work, CompareRequest):
        return _compare(work, root)
    if not isinstance(work, EvalJob | BenchJob):
        raise UserError("Only the queue can run this: start it on its page.")
    run = load_function(EVALUATE if isinstance(work, EvalJob) else BENCH)
    run(work, root, progress=lambda progress: None, cancelled=lambda: time.monotonic() > stop)
    return work.title


def _compare(work: CompareRequest, root: Path) -> str:
    for entry in list_comparisons(root):
        if entry.title == work.title and entry.status == "complete" and len(entry.runs) == len(work.runs):
            return f"{work.title}, which was there"
    load_function(COMPARE)(work, root)
    return f"{work.title}: {len(work.runs)} runs"
