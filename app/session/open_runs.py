"""The folder of runs, and bounded caches of the runs that pages have open."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import streamlit as st

from app.base.text import plain
from kvlab.analysis.comparison import board
from kvlab.analysis.lineage import starting_point
from kvlab.common.errors import UserError
from kvlab.trace.catalogue import ComparisonEntry, list_runs
from kvlab.trace.reader import Run, open_run
from kvlab.trace.user_labels import load_labels

OPEN_RUNS = 40


def runs_root() -> Path:
    """The folder of runs: `KVLAB_RUNS`, or `runs` in the folder the server was started from."""
    return Path(os.environ.get("KVLAB_RUNS") or "runs").absolute()


def stamp(run: Run) -> tuple[str, int]:
    """Names the run's content, for keys of caches: a run still being written grows."""
    parts = run.path / "parts.json"
    return str(run.path), parts.stat().st_mtime_ns if parts.exists() else 0


def open_cached(path: Path) -> Run:
    """The open run at `path`; at most a few stay open, and a run still being written is read anew as it grows.

    Raises:
        UserError: as `kvlab.trace.open_run`.
    """
    stamps = [file.stat().st_mtime_ns for name in ("run.json", "parts.json") if (file := path / name).exists()]
    return _open(str(path), tuple(stamps))


def is_as_opened(run: Run) -> bool:
    """Whether nothing was written to an open run, or taken from it, since it was opened."""
    try:
        return open_cached(run.path) is run
    except UserError:
        return False


@st.cache_resource(max_entries=OPEN_RUNS, show_spinner=False)
def _open(path: str, stamps: tuple[int, ...]) -> Run:
    # The stamps are part of the key only: a name with a leading underscore would leave them out of it.
    return open_run(Path(path))


def wanted_of(runs: Sequence[Run]) -> board.ExpectedAnswer | None:
    """The answer of a comparison, recorded or said later; None, with a sentence where its file is damaged."""
    try:
        return board.expected_answer(runs, load_labels(runs_root(), runs[0].record.comparison_id))
    except UserError as error:
        st.error(plain(str(error)))
        return None


def telling_run(runs: Sequence[Run], prefer: starting_point.Prefer) -> starting_point.SuggestedRuns:
    """The run to look at first, of those of a comparison; kept."""
    return _telling_run(runs, tuple(map(stamp, runs)), wanted_of(runs), prefer)


def telling_pair(runs: Sequence[Run]) -> starting_point.SuggestedRuns | None:
    """The two runs to look at first; kept."""
    return _telling_pair(runs, tuple(map(stamp, runs)))


def telling_head(run: Run) -> starting_point.Head:
    """The layer and head of a run to look at first; kept."""
    runs = _with_reference(run)
    return _telling_head(run, runs, tuple(map(stamp, (run, *runs))), wanted_of(runs))


def telling_step(run: Run) -> starting_point.Step:
    """The step of a run to look at first; kept."""
    runs = _with_reference(run)
    return _telling_step(run, runs, tuple(map(stamp, (run, *runs))), wanted_of(runs))


def _with_reference(run: Run) -> list[Run]:
    """The run, after the full cache's run of its comparison where there is one."""
    if run.record.method == "full":
        return [run]
    comparison = list_runs(runs_root(), comparison_id=run.record.comparison_id)
    try:
        full = [open_cached(runs_root() / entry.run_id) for entry in comparison if entry.method == "full"]
    except UserError:
        full = []
    return [*full[-1:], run]


@st.cache_data(max_entries=64, show_spinner=False)
def _telling_run(
    _runs: Sequence[Run], stamps: tuple, wanted: board.ExpectedAnswer | None, prefer: starting_point.Prefer
) -> starting_point.SuggestedRuns:
    return starting_point.suggest_run(_runs, wanted, prefer)


@st.cache_data(max_entries=64, show_spinner=False)
def _telling_pair(_runs: Sequence[Run], stamps: tuple) -> starting_point.SuggestedRuns | None:
    return starting_point.suggest_pair(_runs)


@st.cache_data(max_entries=256, show_spinner=False)
def _telling_head(
    _run: Run, _runs: Sequence[Run], stamps: tuple, wanted: board.ExpectedAnswer | None
) -> starting_point.Head:
    return starting_point.suggest_head(_run, _runs, wanted)


@st.cache_data(max_entries=256, show_spinner=False)
def _telling_step(
    _run: Run, _runs: Sequence[Run], stamps: tuple, wanted: board.ExpectedAnswer | None
) -> starting_point.Step:
    return starting_point.suggest_step(_run, _runs, wanted)


def run_to_open(comparison: ComparisonEntry, prefer: starting_point.Prefer) -> tuple[str, str]:
    """The run a page opens with, and why; runs that cannot be read do not count."""
    runs = []
    for entry in comparison.runs:
        try:
            runs.append(open_cached(runs_root() / entry.run_id))
        except UserError:
            continue
    if not runs:
        return comparison.runs[0].run_id, "the first"
    ids, reason = telling_run(runs, prefer)
    return ids[0], reason
