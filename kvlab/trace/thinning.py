"""Remove the arrays of old recordings to free space; tables, texts and numbers stay, and the record notes it."""

import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from kvlab.core.errors import UserError
from kvlab.trace import catalogue
from kvlab.trace.record import read_record, write_record
from kvlab.trace.user_labels import all_labels

ARRAYS = "arrays"
DAY = 24 * 3600.0


@dataclass(frozen=True)
class Thinnable:
    """A run whose arrays may be removed, and their size."""

    run_id: str
    comparison_id: str
    title: str
    created: str
    bytes: int


def thinnable(root: Path, older_than: float, now: float | None = None) -> list[Thinnable]:
    """Finished, unstarred runs older than `older_than` seconds that have arrays, oldest first."""
    root = Path(root)
    now = time.time() if now is None else now
    starred = {name for (kind, name), labels in all_labels(root).items() if kind == "comparison" and labels.starred}
    found = []
    for run in reversed(catalogue.list_runs(root)):
        age = now - datetime.fromisoformat(run.created).timestamp()
        if run.status == "running" or age < older_than or run.comparison_id in starred:
            continue
        try:
            size = sum(file.lstat().st_size for file in (root / run.run_id / ARRAYS).iterdir())
        except OSError:
            continue  # it has no arrays
        if size:
            found.append(Thinnable(run.run_id, run.comparison_id, run.title or run.excerpt, run.created, size))
    return found


def thin(root: Path, runs: Sequence[Thinnable]) -> int:
    """Remove the arrays of these runs; returns the bytes freed.

    The record is written first, so that an interruption leaves a run that says what it lacks. Raises UserError if the
    folder is not writable; earlier runs stay thinned.
    """
    freed = 0
    for run in runs:
        path = Path(root) / run.run_id
        try:
            record = read_record(path)
        except UserError:
            continue  # damaged: leave it alone
        changes: dict[str, object] = {"thinned": f"{datetime.now(UTC):%Y-%m-%d}"}
        if sums := record.checksums:
            changes["checksums"] = {name: digest for name, digest in sums.items() if not name.startswith(f"{ARRAYS}/")}
        try:
            write_record(path, record.model_copy(update=changes))
            shutil.rmtree(path / ARRAYS)
        except OSError as error:
            raise UserError(f"{path} cannot be changed ({error.strerror or error}): is it read-only?") from error
        freed += run.bytes
    return freed
