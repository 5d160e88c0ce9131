"""Going on with a comparison: its finished runs stay, the others are made (again)."""

from __future__ import annotations

import shutil
from pathlib import Path

from kvlab.common.errors import UserError
from kvlab.common.liveness import is_written
from kvlab.requests.compare import CompareRequest
from kvlab.trace.record import read_record
from kvlab.trace.schema import RunRecord


def run_id_of(request: CompareRequest, comparison_id: str, index: int) -> str:
    """What the `index`-th run of a comparison is called."""
    return f"{comparison_id}-{index:02d}-{request.runs[index].method}"


def finished(request: CompareRequest, root: Path, comparison_id: str) -> dict[int, Path]:
    """The folders of the complete runs of a comparison, by their place in the request.

    Raises:
        UserError: another process writes one of its runs, or they were made of another request.
    """
    found = {}
    for index, choice in enumerate(request.runs):
        path = root / run_id_of(request, comparison_id, index)
        record = _record(path)
        if record is None:
            continue
        if record.status == "running" and is_written(path, record.worker_pid, record.created):
            raise UserError(f"{path.name} is still being written: wait until it ends, or stop it.")
        same = record.prompt == request.prompt and record.budget == choice.budget and record.level == request.level
        if not same:
            raise UserError(f"{path.name} was made of another request: ask for a comparison of its own.")
        if record.status == "complete":
            found[index] = path
    return found


def make_way(path: Path) -> None:
    """Remove what an interrupted run left where the same run is about to be made again."""
    shutil.rmtree(path, ignore_errors=True)


def _record(path: Path) -> RunRecord | None:
    try:
        return read_record(path)
    except UserError:  # killed before its record was written, or damaged: it is made again
        return None
