"""Run benchmarks as a job of the queue; complete parts are saved and not measured again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from kvlab.bench.harness import run_requests
from kvlab.bench.presets import find_preset, preset_requests
from kvlab.bench.request import BenchJob, BenchRequest, parts_of
from kvlab.bench.rows import ResultFile, Row, read_rows
from kvlab.requests.compare import Progress

FOLDER = "bench"
BANDWIDTH, NOT_RUN = "copy bandwidth", "not run"  # figures that are not about a cache


def run_bench(
    job: BenchJob, root: Path, *, progress: Callable[[Progress], None], cancelled: Callable[[], bool]
) -> Path:
    """Measure into `<root>/bench/<name>.parquet` and return the file; an interrupted part leaves no row.

    Raises as `kvlab.bench.harness.run_requests`.
    """
    results = ResultFile(Path(root) / FOLDER / f"{job.name}.parquet")
    results.path.parent.mkdir(parents=True, exist_ok=True)
    if results.path.exists():
        results.rows.extend(read_rows(results.path))
    requests = preset_requests(job.preset, **job.changes) if job.preset else job.requests
    seconds = find_preset(job.preset).seconds if job.preset else None
    parts = parts_of(requests)
    missing = [part for part in parts if not is_measured(part, results.rows)]
    done = len(parts) - len(missing)
    waiting: list[Row] = []

    def listen(stage: str, index: int, total: int) -> None:
        """A part starts, so the previous one is complete."""
        keep()
        part = missing[index]
        words = f"{done + index + 1} of {len(parts)} · {stage}, batch {part.batches[0]}, {part.contexts[0]:,} tokens"
        progress(Progress(stage=words, done=done + index, total=len(parts)))

    def keep() -> None:
        if waiting:
            results.add(waiting)
            waiting.clear()

    for row in run_requests(missing, seconds=seconds, listener=listen):
        if cancelled():
            return results.path
        waiting.append(row)
    keep()
    progress(Progress(stage="measured", done=len(parts), total=len(parts)))
    return results.path


def is_measured(part: BenchRequest, rows: list[Row]) -> bool:
    """Whether the rows hold every method of this part of a request."""
    wanted = (part.mode, part.model, part.contexts[0], part.new_tokens, part.compress_every)
    measured = {
        row.method.partition(":")[0]
        for row in rows
        if (row.mode, row.model, row.asked_context, row.asked_new_tokens, row.compress_every) == wanted
        and row.batch in part.batches
        and row.figure not in (BANDWIDTH, NOT_RUN)
    }
    return bool(measured) and {choice.method for choice in part.choices} - {"full"} <= measured
