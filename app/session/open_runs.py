"""The folder of runs, and bounded caches of open runs and of where a page opens in them."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import streamlit as st

from app.base.text import plain
from kvlab.core.errors import UserError
from kvlab.tasks.shipped_samples import shipped_samples
from kvlab.trace.catalogue import ComparisonEntry, list_runs
from kvlab.trace.reader import Run, open_run
from kvlab.trace.restore_results import RestoreResult
from kvlab.trace.user_labels import load_labels
from kvlab.views.frames import board, starting_point

OPEN_RUNS = 40
Made = TypeVar("Made")
Suggest = Callable[[Run, Sequence[Run], board.ExpectedAnswer | None], Made]


def runs_root() -> Path:
    """The folder of runs: `KVLAB_RUNS`, or `runs` in the folder the server was started from."""
    return Path(os.environ.get("KVLAB_RUNS") or "runs").absolute()


def stamp(run: Run) -> tuple[str, int]:
    """Identify the content of a run, as one that is still being written grows."""
    parts = run.path / "parts.json"
    return str(run.path), parts.stat().st_mtime_ns if parts.exists() else 0


# `hash_funcs` of caches whose functions take runs, and results of restore searches.
BY_STAMP: dict[str | type[Any], Callable[[Any], Any]] = {Run: stamp, RestoreResult: RestoreResult.model_dump_json}


def open_cached(path: Path) -> Run:
    """The open run at `path`, from a bounded cache; a run that has grown is read again.

    Raises:
        UserError: as `kvlab.trace.open_run`.
    """
    return _open(
        path, [file.stat().st_mtime_ns for name in ("run.json", "parts.json") if (file := path / name).exists()]
    )


@st.cache_resource(max_entries=OPEN_RUNS, show_spinner=False)
def _open(path: Path, modified: list[int]) -> Run:
    # `modified` is only a part of the cache key.
    return open_run(path)


def is_as_opened(run: Run) -> bool:
    """Whether an open run has not changed on disk since it was opened."""
    try:
        return open_cached(run.path) is run
    except UserError:
        return False


def expected_answer(runs: Sequence[Run]) -> board.ExpectedAnswer | None:
    """The expected answer of a comparison, from its request or its labels; None, with an error, if they are damaged."""
    try:
        return board.expected_answer(runs, load_labels(runs_root(), runs[0].record.comparison_id))
    except UserError as error:
        st.error(plain(str(error)))
        return None


def shipped_answer(prompt: str) -> str:
    """The answer to a shipped prompt; "" to any other."""
    return next((sample.answer or "" for sample in shipped_samples() if sample.text == prompt), "")


def to_show_first(suggest: Suggest[Made], run: Run) -> Made:
    """What `SUGGEST_HEAD` or `SUGGEST_STEP` suggests for a run, by the full cache's run too if there is one."""
    full = None if run.record.method == "full" else full_cache_of(run)
    runs = [run] if full is None else [full, run]
    return suggest(run, runs, expected_answer(runs))


def full_cache_of(run: Run) -> Run | None:
    """The full cache's run of the run's comparison; None if there is none that can be read."""
    comparison = list_runs(runs_root(), comparison_id=run.record.comparison_id)
    try:
        full = [open_cached(runs_root() / entry.run_id) for entry in comparison if entry.method == "full"]
    except UserError:
        full = []
    return full[-1] if full else None


_cache = st.cache_data(max_entries=256, show_spinner=False, hash_funcs=BY_STAMP)
_telling_run = _cache(starting_point.suggest_run)
SUGGEST_HEAD = _cache(starting_point.suggest_head)
SUGGEST_STEP = _cache(starting_point.suggest_step)


def run_to_open(comparison: ComparisonEntry, prefer: starting_point.Prefer) -> tuple[str, str]:
    """The run a page opens with, and why; unreadable runs are skipped."""
    runs = []
    for entry in comparison.runs:
        try:
            runs.append(open_cached(runs_root() / entry.run_id))
        except UserError:
            continue
    if not runs:
        return comparison.runs[0].run_id, "the first"
    ids, reason = _telling_run(runs, expected_answer(runs), prefer)
    return ids[0], reason
