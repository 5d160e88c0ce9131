"""Results of runs (answer, closeness, bytes), computed once from their tables and cached in the index."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from kvlab.core.errors import UserError
from kvlab.trace import catalogue
from kvlab.trace.catalogue import ComparisonEntry, RunEntry
from kvlab.trace.reader import Run, open_run
from kvlab.trace.user_labels import Kind, Labels
from kvlab.views.frames import board, compare

MEASURES = ("mean_kl", "top1_agreement", "live_ratio")
NONE = Labels()
log = logging.getLogger(__name__)

AllLabels = Mapping[tuple[Kind, str], Labels]


def without_results(
    comparisons: Sequence[ComparisonEntry], known: Mapping[str, Mapping[str, object]], said: AllLabels
) -> list[ComparisonEntry]:
    """Finished comparisons whose results are not cached, or were judged by another answer."""
    return [entry for entry in comparisons if entry.status != "running" and _is_unread(entry, known, said)]


def cache_results(
    root: Path, comparisons: Sequence[ComparisonEntry], said: AllLabels, seconds: float = float("inf")
) -> int:
    """Compute and cache results for about `seconds`; returns how many comparisons are left."""
    until = time.monotonic() + seconds
    for place, entry in enumerate(comparisons):
        if time.monotonic() > until:
            return len(comparisons) - place
        catalogue.keep_results(root, list(_outcomes(root, entry, said.get(("comparison", entry.comparison_id), NONE))))
    return 0


def folder_bytes(folder: Path) -> int:
    """Total size of a folder's files, without links."""
    total = 0
    for at, _, names in os.walk(folder):
        for name in names:
            file = os.lstat(os.path.join(at, name))
            total += file.st_size if not os.path.islink(os.path.join(at, name)) else 0
    return total


def _is_unread(entry: ComparisonEntry, known: Mapping[str, Mapping[str, object]], said: AllLabels) -> bool:
    answer = said.get(("comparison", entry.comparison_id), NONE).answer
    return any(known.get(run.run_id, {}).get("basis") != _basis(run, answer) for run in entry.runs)


def _basis(run: RunEntry, answer: str | None) -> str:
    """Key of a cached result: it changes with the run's status and the labelled answer."""
    return f"{run.status} {answer or ''}"


def _outcomes(root: Path, entry: ComparisonEntry, labels: Labels) -> Iterator[dict[str, object]]:
    opened = {run.run_id: found for run in entry.runs if (found := _open(root, run.run_id)) is not None}
    table = _measured(list(opened.values()), labels)
    for run in entry.runs:
        row = table.loc[run.run_id] if run.run_id in table.index else pd.Series(dtype=object)
        yield {
            "run_id": run.run_id,
            "basis": _basis(run, labels.answer),
            "verdict": row.get("verdict"),
            "bytes": folder_bytes(root / run.run_id),
            **{name: _number(row.get(name)) for name in MEASURES},
        }


def _measured(runs: Sequence[Run], labels: Labels) -> pd.DataFrame:
    """`headline` by run id, with verdicts if there is an answer; empty if the runs cannot be compared."""
    if not runs:
        return pd.DataFrame()
    try:
        wanted = board.expected_answer(runs, labels)
        table = compare.headline(runs) if wanted is None else board.verdicts(runs, board.check_answer(runs, wanted))
    except (UserError, ValueError, KeyError) as error:
        log.warning("comparison %s cannot be read: %s", runs[0].record.comparison_id, error)
        return pd.DataFrame()
    return table.set_index("run_id")


def _open(root: Path, run_id: str) -> Run | None:
    try:
        return open_run(root / run_id)
    except UserError as error:
        log.warning("run %s cannot be read: %s", run_id, error)
        return None


def _number(value: Any) -> float | None:
    return None if value is None or pd.isna(value) else float(value)
