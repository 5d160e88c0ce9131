"""Store an evaluation's rows as Parquet parts in one folder, written atomically as the evaluation runs.

A part is renamed when complete, so a killed evaluation leaves only complete parts. Rows are identified by their key; a
key in two parts counts once. Torch-free.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import filelock
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from kvlab.core.errors import UserError
from kvlab.evaluation.results.rows import ROWS, newest

FLUSH_SECONDS = 2.0  # the most work a kill can lose, besides the interrupted sample
MOST_PARTS = 64
SHARDS = "shards"


class ResultStore:
    """Append rows to a folder and read them back; use `opened`, so that only one process writes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.damaged: list[Path] = []
        self._waiting: list[Mapping[str, object]] = []
        self._flushed = time.monotonic()

    @classmethod
    @contextmanager
    def opened(cls, folder: Path) -> Iterator[ResultStore]:
        """Open the store of a folder, created if missing; raises UserError if another process writes to it."""
        _create(folder)
        lock = filelock.FileLock(folder / ".lock")
        try:
            lock.acquire(timeout=0)
        except filelock.Timeout as error:
            raise UserError(f"Another evaluation writes to {folder}: wait for it or choose another --out.") from error
        store = cls(folder)
        try:
            store._tidy()
            yield store
        finally:
            store.flush()
            lock.release()

    def append(self, rows: Sequence[Mapping[str, object]]) -> None:
        """Add rows; they are written at most `FLUSH_SECONDS` later."""
        self._waiting.extend(rows)
        if time.monotonic() - self._flushed >= FLUSH_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Write the buffered rows as a new part."""
        if self._waiting:
            self._write(pa.Table.from_pylist([dict(row) for row in self._waiting], schema=ROWS), self._next_part())
            self._waiting.clear()
        self._flushed = time.monotonic()

    def keys(self) -> set[str]:
        tables = self._tables(["key"])
        return {key for table in tables for key in table.column("key").to_pylist()}

    def frame(self) -> pd.DataFrame:
        """All rows on disk, each key once, in the order written."""
        tables = [*self._tables(None), ROWS.empty_table()]
        return pa.concat_tables(tables).to_pandas().drop_duplicates("key", ignore_index=True)

    def _parts(self) -> list[Path]:
        return sorted(self.folder.glob("part-*.parquet"))

    def _tables(self, columns: list[str] | None, paths: Sequence[Path] | None = None) -> Iterator[pa.Table]:
        if paths is None:
            paths = [*self._parts(), *sorted((self.folder / SHARDS).glob("[!._]*.parquet"))]
        for path in paths:
            try:
                yield pq.read_table(path, columns=columns, schema=None if columns else ROWS)
            except (pa.ArrowInvalid, OSError):
                if path not in self.damaged:
                    self.damaged.append(path)

    def _next_part(self) -> Path:
        parts = self._parts()
        number = int(parts[-1].stem.removeprefix("part-")) + 1 if parts else 0
        return self.folder / f"part-{number:06d}.parquet"

    def _write(self, table: pa.Table, path: Path) -> None:
        unfinished = path.with_suffix(".unfinished")
        try:
            pq.write_table(table, unfinished)
            os.replace(unfinished, path)
        except OSError as error:
            reason = error.strerror or error
            raise UserError(f"{self.folder} cannot be written to ({reason}): free some space and run again.") from error

    def _tidy(self) -> None:
        """Remove leftovers of a killed process and join many small parts into one."""
        for path in self.folder.glob("*.unfinished"):
            path.unlink()
        parts = self._parts()
        if len(parts) <= MOST_PARTS:
            return
        frame = pa.concat_tables(self._tables(None, parts)).to_pandas().drop_duplicates("key", ignore_index=True)
        self._write(pa.Table.from_pandas(frame, schema=ROWS, preserve_index=False), self._next_part())
        # A kill before this loop ends leaves duplicates, which `frame` drops and the next start joins.
        for path in parts:
            if path not in self.damaged:
                path.unlink()


class ShardStore(ResultStore):
    """One of many stores that write to a folder at once: its file has a name of its own and is replaced as it grows."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._file = folder / SHARDS / f"{secrets.token_hex(16)}.parquet"

    @classmethod
    @contextmanager
    def opened(cls, folder: Path) -> Iterator[ShardStore]:
        """Open a store of the folder, created if missing, beside those of other processes."""
        _create(folder / SHARDS)
        store = cls(folder)
        try:
            yield store
        finally:
            store.flush()

    def flush(self) -> None:
        """Write all rows so far."""
        if self._waiting:
            self._write(pa.Table.from_pylist([dict(row) for row in self._waiting], schema=ROWS), self._file)
        self._flushed = time.monotonic()


def _create(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{folder} cannot be used for results ({error.strerror}): choose another --out.") from error


def read_results(folder: Path) -> pd.DataFrame:
    """The newest rows of an evaluation folder, each key once; raises UserError if there are none."""
    frame = newest(ResultStore(folder).frame()).reset_index(drop=True)
    if frame.empty:
        raise UserError(f"{folder} contains no results: run `kvlab eval --out {folder}` first.")
    return frame
