"""What there is to draw from: the run and comparison in view, and the results of evaluations and benchmarks."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from kvlab.common.errors import UserError
from kvlab.evaluate.results.rows import newest
from kvlab.results.shipped import Shipped
from kvlab.server.users import viewer
from kvlab.trace.catalogue import ComparisonEntry, list_comparisons
from kvlab.trace.labels import Kind, may_look_at
from kvlab.trace.reader import Run, open_run

EVAL_FOLDER = "eval"
BENCH_FOLDER = "bench"
KINDS: dict[str, Kind] = {EVAL_FOLDER: "evaluation", BENCH_FOLDER: "benchmark"}
KEPT_RESULTS = 4  # folders' results as frames: the lab's own and what ships, and each of them once more as it grows
MOST_ELSEWHERE = 24  # comparisons that are looked through for what the one in view lacks
# A measurement once; the same one asked for in other words stays, as some exhibit looks for these words.
ONE_ROW = ["key", "hyper_parameters"]
log = logging.getLogger(__name__)
Made = TypeVar("Made")


@dataclass(frozen=True)
class Seen:
    """What a picture is drawn from, for keeping it: what is in view (`place`), and names and state of all the rest.

    Equal ones make equal pictures. Where only the rest differs, and nothing of it is gone or hidden since, a picture
    is not wrong but older.
    """

    place: tuple[str, ...]
    names: frozenset[str]
    stamp: str
    at: float = field(default_factory=time.monotonic, compare=False)  # when the rest was looked at


class Folder:
    """A folder of runs, each thing of it read once: as it was when first asked."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._opened: dict[str, Run | None] = {}  # None: cannot be read

    @cached_property
    def comparisons(self) -> list[ComparisonEntry]:
        """Its comparisons, newest first."""
        return list_comparisons(self.root)

    def run(self, run_id: str) -> Run | None:
        """A run of it; None where it cannot be read."""
        if run_id not in self._opened:
            try:
                self._opened[run_id] = open_run(self.root / run_id)
            except UserError as error:
                log.info("%s could not be opened: %s", run_id, error)
                self._opened[run_id] = None
        return self._opened[run_id]


@dataclass
class Sources:
    """The runs in view and the folder of runs; results are read when first asked for.

    Evaluations are looked for in `<root>/eval/<name>/`, benchmark files in `<root>/bench/`; with `shipped`, the results
    that came with kvlab (`kvlab.atlas.shipped_exhibits`), in its folder instead.
    """

    root: Path
    run: Run | None = None
    runs: Sequence[Run] = field(default_factory=tuple)
    shipped: Shipped | None = None
    _folder: Folder | None = field(default=None, repr=False, compare=False)  # another's, of the same root

    @cached_property
    def folder(self) -> Folder:
        """What was read of the folder of runs; shared with what is made by `with_in_view`."""
        return self._folder or Folder(self.root)

    @property
    def results(self) -> Path:
        """The folder whose evaluations and benchmarks are read."""
        return self.shipped.root if self.shipped else self.root

    @property
    def model(self) -> str:
        """The model in view; empty where no run is."""
        seen = self.run or next(iter(self.runs), None)
        return seen.record.model.name if seen else ""

    def elsewhere(self) -> Iterator[ComparisonEntry]:
        """The other comparisons of the model in view that have ended, newest first."""
        here = {run.record.comparison_id for run in self.runs}
        ended = [entry for entry in self.folder.comparisons if entry.status != "running"]
        for entry in ended[:MOST_ELSEWHERE]:
            if entry.comparison_id not in here and (not self.model or entry.runs[0].model == self.model):
                yield entry

    def with_in_view(self, entry: ComparisonEntry) -> Sources | None:
        """The same as if `entry` were in view; None where none of its runs can be read."""
        runs = [run for one in entry.runs if (run := self.folder.run(one.run_id)) is not None]
        return replace(self, run=runs[0], runs=runs, _folder=self.folder) if runs else None

    def run_of(self, *methods: str) -> Run | None:
        """The run in view where it is of one of these methods, else one of the comparison, as in the paper if any."""
        if self.run is not None and self.run.record.method in methods:
            return self.run
        there = [run for run in self.runs if run.record.method in methods]
        return min(there, key=lambda run: bool(run.record.departures), default=None)

    @cached_property
    def evaluations(self) -> pd.DataFrame:
        """Rows of all evaluations (columns of `kvlab.evaluate.results.rows.ROWS`, and `name`); a repeated key once."""
        return _evaluations(self.results, _stamps(_files(self.results, EVAL_FOLDER)))

    def once(self, name: str, make: Callable[[], Made]) -> Made:
        """What `make` works out of the evaluations as they were when first asked, made once for a name; not changed."""
        if name not in self._made:
            self._made[name] = make()
        return self._made[name]

    @cached_property
    def _made(self) -> dict[str, Any]:
        return {}

    @cached_property
    def benchmarks(self) -> pd.DataFrame:
        """Every row of every benchmark file (columns as `kvlab.bench.rows.SCHEMA`) and `name`, the file's."""
        return _benchmarks(self.results, _stamps(_files(self.results, BENCH_FOLDER)))

    @cached_property
    def stamp_of_results(self) -> tuple[str, ...]:
        """Names the evaluations and benchmarks as they are on disk when first asked: equal stamps, equal rows."""
        return (str(self.root), *_stamps(self._result_files))

    @cached_property
    def seen_of_results(self) -> Seen:
        """The evaluations and benchmarks as they are on disk when first asked."""
        files = self._result_files
        place = (viewer(), str(self.root), self.run.record.model.name if self.run else "", self.model)
        return Seen(place, frozenset(map(str, files)), _digest(_stamps(files)))

    @cached_property
    def _result_files(self) -> list[Path]:
        return [*_files(self.root, EVAL_FOLDER), *_files(self.root, BENCH_FOLDER)]

    @cached_property
    def seen_of_runs(self) -> Seen:
        """The runs in view, and those of the folder that some exhibits look at, as they are when first asked.

        Comparisons elsewhere count once they have ended: one at work would have every card drawn anew at each run.
        """
        files = [run.path / name for run in self.runs for name in ("run.json", "parts.json")]
        place = (viewer(), str(self.root), str(self.run.path) if self.run else "", *_stamps(files))
        found = self.folder.comparisons
        ended = (run for one in found if one.status != "running" for run in one.runs)
        stamp = _digest(f"{run.run_id} {run.status} {run.label}" for run in ended)
        return Seen(place, frozenset(run.run_id for one in found for run in one.runs), stamp)


def _files(root: Path, folder: str) -> list[Path]:
    """The files of evaluations or benchmarks that the person who acts may see; of a folder all go by its name."""
    seen: dict[str, bool] = {}
    found = []
    for file in (root / folder).glob("**/*.parquet"):
        place = file.relative_to(root / folder).parts
        name = file.stem if len(place) == 1 else place[0]
        if name not in seen:
            seen[name] = may_look_at(root, name, KINDS[folder])
        found += [file] if seen[name] else []
    return sorted(found)


def _digest(words: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(words).encode()).hexdigest()


def _stamps(files: Sequence[Path]) -> tuple[str, ...]:
    return tuple(f"{path}@{path.stat().st_mtime_ns}" for path in files if path.exists())


@lru_cache(maxsize=KEPT_RESULTS)
def _evaluations(root: Path, stamps: tuple[str, ...]) -> pd.DataFrame:
    found = [frame.assign(name=folder.name) for folder in _folders(root) if len(frame := _parts(folder))]
    if not found:
        return pd.DataFrame()
    rows = pd.concat(found, ignore_index=True)
    return newest(rows.drop_duplicates([name for name in ONE_ROW if name in rows]))


@lru_cache(maxsize=KEPT_RESULTS)
def _benchmarks(root: Path, stamps: tuple[str, ...]) -> pd.DataFrame:
    frames = [pd.read_parquet(file).assign(name=file.stem) for file in _files(root, BENCH_FOLDER)]
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()


def _folders(root: Path) -> list[Path]:
    """The folders of the evaluations that the person who acts may see."""
    found = (path for path in (root / EVAL_FOLDER).glob("*") if path.is_dir())
    return sorted(path for path in found if may_look_at(root, path.name, "evaluation"))


def _parts(folder: Path) -> pd.DataFrame:
    """All parts of an evaluation as one frame; a column that only some parts have is empty in the others."""
    tables = [_table(path, path.stat().st_mtime_ns) for path in sorted(folder.rglob("*.parquet"))]
    return pa.concat_tables(tables, promote_options="permissive").to_pandas() if tables else pd.DataFrame()


@lru_cache(maxsize=8192)
def _table(path: Path, stamp: int) -> pa.Table:
    """A file as it was at `stamp`: a sweep at work adds one every few seconds to thousands that stay."""
    return pq.read_table(path, partitioning=None)
