"""Data sources of exhibits: the current run and comparison, and the results of evaluations and benchmarks."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from kvlab.common.lab import viewer
from kvlab.core.errors import UserError
from kvlab.evaluation.results.rows import ROWS, newest
from kvlab.evaluation.scoring.metrics import UNSCORED
from kvlab.requests.measurement import MINI
from kvlab.results.shipped_folder import Shipped
from kvlab.trace.catalogue import ComparisonEntry, list_comparisons
from kvlab.trace.reader import Run, open_run
from kvlab.trace.user_labels import Kind, may_view

EVAL_FOLDER = "eval"
BENCH_FOLDER = "bench"
KINDS: dict[str, Kind] = {EVAL_FOLDER: "evaluation", BENCH_FOLDER: "benchmark"}
KEPT_RESULTS = 4  # cached folders: the lab's own and the shipped one, each also in a newer state
MOST_ELSEWHERE = 24  # other comparisons searched for what the current one lacks
# Drop repeated measurements, but keep the same one under other option texts, which exhibits look up.
ONE_ROW = ["key", "hyper_parameters"]
log = logging.getLogger(__name__)
Made = TypeVar("Made")


@dataclass(frozen=True)
class SourceState:
    """State of the data behind a figure, as a cache key: the selection (`place`), and names and state of the rest.

    Equal states give equal figures. If only the rest differs and none of it was deleted or hidden, one is outdated.
    """

    place: tuple[str, ...]
    names: frozenset[str]
    stamp: str
    at: float = field(default_factory=time.monotonic, compare=False)  # when the rest was read


class Folder:
    """A runs folder; comparisons and runs are read once."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._opened: dict[str, Run | None] = {}  # None: cannot be read

    @cached_property
    def comparisons(self) -> list[ComparisonEntry]:
        """Its comparisons, newest first."""
        return list_comparisons(self.root)

    def run(self, run_id: str) -> Run | None:
        """One of its runs; None if it cannot be read."""
        if run_id not in self._opened:
            try:
                self._opened[run_id] = open_run(self.root / run_id)
            except UserError as error:
                log.info("%s could not be opened: %s", run_id, error)
                self._opened[run_id] = None
        return self._opened[run_id]


@dataclass
class Sources:
    """The current runs and the runs folder; results are read lazily.

    Evaluations are read from `<root>/eval/<name>/`, benchmarks from `<root>/bench/`; with `shipped`, from its folder
    instead. `named` is the model if no run of it is in view.
    """

    root: Path
    run: Run | None = None
    runs: Sequence[Run] = field(default_factory=tuple)
    shipped: Shipped | None = None
    named: str = ""
    _folder: Folder | None = field(default=None, repr=False, compare=False)  # shared by instances
    _made: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def viewer(self) -> str:
        """Equal for users who may see the same runs."""
        return viewer()

    @cached_property
    def folder(self) -> Folder:
        """The runs folder, shared with `with_in_view`."""
        return self._folder or Folder(self.root)

    @property
    def results(self) -> Path:
        """The folder whose evaluations and benchmarks are read."""
        return self.shipped.root if self.shipped else self.root

    @property
    def model(self) -> str:
        """The current model; "" if neither a run nor a name says which."""
        run = self.run or next(iter(self.runs), None)
        return run.record.model.name if run else self.named

    @property
    def measured_model(self) -> str:
        """The model of rows drawn and of missing measurements: the current, else that of most evaluations, or mini."""
        if self.model or self.evaluations.empty:
            return self.model or MINI
        return str(self.evaluations["model"].mode().iloc[0])

    @cached_property
    def models(self) -> list[str]:
        """The models of the evaluations and of finished comparisons recorded in full: mini first, others by name."""
        found = set(self.evaluations["model"]) if len(self.evaluations) else set()
        for entry in self.folder.comparisons:
            if entry.status != "running" and any(run.level == "full" for run in entry.runs):
                found.add(entry.runs[0].model)
        return sorted(found | ({self.model} if self.model else set()), key=lambda name: (name != MINI, name))

    def of_model(self, name: str) -> Sources:
        """The same sources with another model: its newest finished comparison is in view, if there is one."""
        if name == self.model:
            return self
        bare = replace(self, run=None, runs=(), named=name, _folder=self.folder)
        return next((found for entry in bare.elsewhere() if (found := bare.with_in_view(entry)) is not None), bare)

    def judging(self, model: str) -> Sources:
        """The sources that verdicts on a model rest on: its newest finished comparison, whatever is in view."""
        newest = replace(self, run=None, runs=(), named="", _folder=self.folder).of_model(model)
        is_in_view = model == self.measured_model and (newest.run and newest.run.path) == (self.run and self.run.path)
        return self if is_in_view else newest

    def elsewhere(self) -> Iterator[ComparisonEntry]:
        """Other finished comparisons of the current model, newest first."""
        here = {run.record.comparison_id for run in self.runs}
        ended = [entry for entry in self.folder.comparisons if entry.status != "running"]
        of_model = [entry for entry in ended if not self.model or entry.runs[0].model == self.model]
        yield from (entry for entry in of_model[:MOST_ELSEWHERE] if entry.comparison_id not in here)

    def with_in_view(self, entry: ComparisonEntry) -> Sources | None:
        """The same sources with `entry` as the current comparison; None if none of its runs can be read."""
        runs = [run for one in entry.runs if (run := self.folder.run(one.run_id)) is not None]
        return replace(self, run=runs[0], runs=runs, _folder=self.folder) if runs else None

    def run_of(self, *methods: str) -> Run | None:
        """A run of one of these methods: the current one, else of the comparison, best with the paper's settings."""
        if self.run is not None and self.run.record.method in methods:
            return self.run
        there = [run for run in self.runs if run.record.method in methods]
        return min(there, key=lambda run: bool(run.record.departures), default=None)

    @cached_property
    def evaluations(self) -> pd.DataFrame:
        """Rows of all evaluations (`kvlab.evaluation.results.rows.ROWS` plus `name`), repeated keys dropped.

        Without those of prompts that have no answer, which have no score.
        """
        rows = self.every_evaluation
        if "metric" not in rows or not (unscored := rows["metric"] == UNSCORED).any():
            return rows
        return rows[~unscored].reset_index(drop=True)

    @cached_property
    def every_evaluation(self) -> pd.DataFrame:
        """`evaluations`, and the rows of prompts that have no answer."""
        return _evaluations(self.results, _stamps(_files(self.results, EVAL_FOLDER)))

    @cached_property
    def model_evaluations(self) -> pd.DataFrame:
        """The rows of `evaluations` that were measured on one model, `measured_model`."""
        rows = self.evaluations
        return rows[rows["model"] == self.measured_model] if len(rows) else rows

    def once(self, name: str, make: Callable[[], Made]) -> Made:
        """Result of `make` cached under a name."""
        if name not in self._made:
            self._made[name] = make()
        return self._made[name]

    @cached_property
    def benchmarks(self) -> pd.DataFrame:
        """Rows of all benchmark files (`kvlab.bench.rows.SCHEMA` plus `name`, the file's)."""
        return _benchmarks(self.results, _stamps(_files(self.results, BENCH_FOLDER)))

    @cached_property
    def stamp_of_results(self) -> tuple[str, ...]:
        """Stamp of the evaluations and benchmarks on disk: equal stamps mean equal rows."""
        return (str(self.root), *_stamps(self._result_files))

    @cached_property
    def state_of_results(self) -> SourceState:
        """State of the evaluations and benchmarks on disk."""
        files = self._result_files
        place = (viewer(), str(self.root), self.run.record.model.name if self.run else "", self.model)
        stamp = hashlib.sha256("\n".join(_stamps(files)).encode()).hexdigest()
        return SourceState(place, frozenset(map(str, files)), stamp)

    @cached_property
    def _result_files(self) -> list[Path]:
        return [*_files(self.root, EVAL_FOLDER), *_files(self.root, BENCH_FOLDER)]

    @cached_property
    def state_of_runs(self) -> SourceState:
        """State of the current runs and of the folder's runs.

        Only finished comparisons count; a running one would redraw every card at each rerun.
        """
        files = [run.path / name for run in self.runs for name in ("run.json", "parts.json")]
        place = (viewer(), str(self.root), self.model, str(self.run.path) if self.run else "", *_stamps(files))
        found = self.folder.comparisons
        ended = (run for one in found if one.status != "running" for run in one.runs)
        stamp = hashlib.sha256(
            "\n".join(f"{run.run_id} {run.status} {run.label}" for run in ended).encode()
        ).hexdigest()
        return SourceState(place, frozenset(run.run_id for one in found for run in one.runs), stamp)


def _files(root: Path, folder: str) -> list[Path]:
    """The evaluation or benchmark files the current user may see; access is per folder name."""
    allowed: dict[str, bool] = {}
    found = []
    for file in (root / folder).glob("**/*.parquet"):
        place = file.relative_to(root / folder).parts
        name = file.stem if len(place) == 1 else place[0]
        if name not in allowed:
            allowed[name] = may_view(root, name, KINDS[folder])
        found += [file] if allowed[name] else []
    return sorted(found)


def _stamps(files: Sequence[Path]) -> tuple[str, ...]:
    return tuple(f"{path}@{path.stat().st_mtime_ns}" for path in files if path.exists())


@lru_cache(maxsize=KEPT_RESULTS)
def _evaluations(root: Path, stamps: tuple[str, ...]) -> pd.DataFrame:
    found = []
    for folder in sorted(path for path in (root / EVAL_FOLDER).glob("*") if path.is_dir()):
        if not may_view(root, folder.name, "evaluation"):
            continue
        tables = []
        for path in sorted(folder.rglob("*.parquet")):
            with suppress(FileNotFoundError):  # an evaluation that starts joins small files
                tables.append(_table(path, path.stat().st_mtime_ns))
        # Columns missing in some parts are empty there.
        frame = pa.concat_tables(tables, promote_options="permissive").to_pandas() if tables else pd.DataFrame()
        found += [frame.assign(name=folder.name)] if len(frame) else []
    if not found:
        return pd.DataFrame()
    rows = pd.concat(found, ignore_index=True)
    rows = newest(rows.drop_duplicates([name for name in ONE_ROW if name in rows]))
    # Empty columns in place of those that shipped and older rows lack.
    lacking = [column for column in ROWS if column.name not in rows]
    return rows.assign(**{column.name: pa.nulls(len(rows), column.type).to_pandas().to_numpy() for column in lacking})


@lru_cache(maxsize=KEPT_RESULTS)
def _benchmarks(root: Path, stamps: tuple[str, ...]) -> pd.DataFrame:
    frames = [pd.read_parquet(file).assign(name=file.stem) for file in _files(root, BENCH_FOLDER)]
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()


@lru_cache(maxsize=8192)
def _table(path: Path, stamp: int) -> pa.Table:
    """A file's contents, cached by modification time: a running evaluation adds files every few seconds."""
    return pq.read_table(path, partitioning=None)
