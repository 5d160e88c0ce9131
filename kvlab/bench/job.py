"""Benchmarks as a job of the queue: each part is measured whole, written, and not measured again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from kvlab.bench.harness import run_requests
from kvlab.bench.request import BenchJob, BenchRequest
from kvlab.bench.rows import ResultFile, Row, read_rows
from kvlab.requests import Progress

FOLDER = "bench"
BANDWIDTH = "copy bandwidth"


def run_bench(
    job: BenchJob,
    root: Path,
    *,
    comparison_id: str,
    progress: Callable[[Progress], None],
    cancelled: Callable[[], bool],
) -> Path:
    """Measure into `<root>/bench/<name>.parquet` and return the file; a part that a stop interrupts leaves no row.

    Raises as `kvlab.bench.harness.run_requests`.
    """
    results = ResultFile(Path(root) / FOLDER / f"{job.name}.parquet")
    results.path.parent.mkdir(parents=True, exist_ok=True)
    if results.path.exists():
        results.rows.extend(read_rows(results.path))
    missing = [part for part in job.parts if not is_there(part, results.rows)]
    done = len(job.parts) - len(missing)
    waiting: list[Row] = []

    def listen(stage: str, index: int, total: int) -> None:
        """A part begins, so the one before it is whole."""
        keep()
        part = missing[index]
        words = (
            f"{done + index + 1} of {len(job.parts)} · {stage}, batch {part.batches[0]}, {part.contexts[0]:,} tokens"
        )
        progress(Progress(stage=words, done=done + index, total=len(job.parts)))

    def keep() -> None:
        if waiting:
            results.add(waiting)
            waiting.clear()

    for row in run_requests(missing, listener=listen):
        if cancelled():
            return results.path
        waiting.append(row)
    keep()
    progress(Progress(stage="measured", done=len(job.parts), total=len(job.parts)))
    return results.path


def is_there(part: BenchRequest, rows: list[Row]) -> bool:
    """Whether the rows of this part were measured before."""
    wanted = (part.mode, part.contexts[0], part.batches[0], part.compress_every)
    return any(
        (row.mode, row.asked_context, row.batch, row.compress_every) == wanted
        for row in rows
        if row.figure != BANDWIDTH
    )
