"""Every file and folder that belongs to a kept thing, relative to the folder of runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kvlab.common.errors import UserError
from kvlab.library.entries import result_path, result_paths
from kvlab.trace import restore_results
from kvlab.trace.catalogue import ComparisonEntry, list_comparisons
from kvlab.trace.labels import Kind, label_path


def paths_of(root: Path, kind: Kind, names: Sequence[str]) -> list[Path]:
    """What there is of these comparisons, evaluations or benchmarks: recordings, results, labels.

    Raises:
        UserError: there is no such thing, or a comparison of them still runs.
    """
    return [path for name in names for path in _of_one(Path(root), kind, name)]


def _of_one(root: Path, kind: Kind, name: str) -> list[Path]:
    if kind == "comparison":
        found = comparison(root, name)
        if found.status == "running":
            raise UserError(f"{found.title[:60]} is still running: wait for its end, or cancel it first.")
        name = found.comparison_id
        made = [Path(run.run_id) for run in found.runs] + [Path(restore_results.FOLDER) / name]
    else:
        made = [path.relative_to(root) for path in result_paths(root, kind) if path == result_path(root, kind, name)]
        if not made:
            raise UserError(f"There is no {kind} {name[:80]!r} in {root}: `kvlab runs ls` names what is there.")
    labels = label_path(root, name, kind).relative_to(root)
    return [path for path in (*made, labels) if (root / path).exists()]


def comparison(root: Path, name: str) -> ComparisonEntry:
    """The comparison of this id, or that a run of this id belongs to; raises UserError where there is none."""
    for entry in list_comparisons(root):
        if name == entry.comparison_id or any(run.run_id == name for run in entry.runs):
            return entry
    raise UserError(f"There is no comparison {name[:80]!r} in {root}: `kvlab runs ls` names what is there.")
