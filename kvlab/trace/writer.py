"""Write a run folder: `run.json`, tables as Parquet parts, arrays as safetensors, each file atomically.

Files are hashed when written, while they are still in the page cache, array files also by block
(`kvlab.trace.checksums`); `run.json` lists all checksums once the run has ended, and is always the last file to
change.
"""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import chain, groupby
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from safetensors.numpy import save_file

from kvlab.common.atomic_write import replace_file
from kvlab.common.liveness import beat
from kvlab.core.errors import UserError
from kvlab.trace import catalogue
from kvlab.trace.checksums import SUMS, block_sums, checksum
from kvlab.trace.record import write_record
from kvlab.trace.schema import ARRAYS, EXACT_ARRAYS, TABLES, RunRecord, RunStatus

Column = np.ndarray | Sequence[Any]

ROWS_PER_PART = 1_000_000
ROWS_PER_GROUP = 16_384  # reading one head decodes at most two groups beyond its own rows
SORT_KEYS = ("layer", "head", "step")
# Columns with mostly distinct values, for which a dictionary would be as long as the column.
SELDOM_ALIKE = ("source", "target", "similarity", "mass_source", "mass_target", "mass_after", "sag")


class RunWriter:
    """The open folder `<root>/<run_id>/` of one run.

    Rows are buffered until `flush`, which adds one part to each table with new rows. As a context manager it marks the
    run cancelled on Ctrl-C and failed on other exceptions; success is set by `finish("complete")`. Raises UserError if
    the folder exists already, is not writable, or the disk is full.
    """

    def __init__(self, root: Path, record: RunRecord) -> None:
        self.root = Path(root)
        self.path = self.root / record.run_id
        self.record = record.model_copy(update={"worker_pid": record.worker_pid or os.getpid(), "checksums": None})
        self._buffers: dict[str, list[Mapping[str, Column]]] = {name: [] for name in TABLES}
        self._buffered_rows = dict.fromkeys(TABLES, 0)
        self.before_flush: list[Callable[[], None]] = []  # callbacks that append rows held back
        self._part_rows: dict[str, list[int]] = {name: [] for name in TABLES}
        self._checksums: dict[str, str] = {}
        self._block_sums: dict[str, np.ndarray] = {}
        try:
            self.path.mkdir(parents=True)
        except FileExistsError as error:
            raise UserError(
                f"There is already something at {self.path}: choose another run id or runs folder."
            ) from error
        except OSError as error:
            raise UserError(f"The run folder {self.path} cannot be created: {error.strerror or error}.") from error
        self._end_beating: Callable[[], None] = lambda: None
        try:
            write_record(self.path, self.record)
            catalogue.upsert(self.root, self.record)
            if self.record.status == "running":
                self._end_beating = beat(self.path)
        except KeyboardInterrupt:
            # The caller's `with` has not begun yet, so the status must be set here.
            self.finish("cancelled", "stopped by the user")
            raise
        except BaseException:
            with suppress(OSError):  # leave no empty folder
                self.path.rmdir()
            raise

    def append(self, table: str, columns: Mapping[str, Column]) -> None:
        """Buffer rows: each column is an array of the same length; values are cast, missing columns are null.

        Arrays are converted when written to disk, so do not modify them afterwards.
        """
        unknown = columns.keys() - set(TABLES[table].names)
        if unknown:
            raise KeyError(f"table {table} has no column {', '.join(sorted(unknown))}")
        lengths = {len(column) for column in columns.values()}
        if len(lengths) != 1:
            raise ValueError(f"columns for table {table} differ in length: {sorted(lengths)}")
        self._buffered_rows[table] += lengths.pop()
        self._buffers[table].append(columns)
        if self._buffered_rows[table] >= ROWS_PER_PART:
            self._flush_table(table)
            self._save_part_list()

    def flush(self) -> None:
        """Write all buffered rows as a further part of their tables."""
        for bring in self.before_flush:
            bring()
        written = [self._flush_table(name) for name in TABLES]
        if any(written):
            self._save_part_list()

    def write_arrays(self, name: str, layer: int, arrays: Mapping[str, np.ndarray]) -> None:
        """Write `arrays/<name>-layer-<layer>.safetensors`, in half precision except `EXACT_ARRAYS`."""
        if name not in ARRAYS:
            raise KeyError(f"unknown array file {name!r}: the schema names {', '.join(ARRAYS)}")
        kinds = {"f": np.float32, "b": np.uint8, "u": np.uint8} if name in EXACT_ARRAYS else {}
        dtypes = {key: kinds.get(array.dtype.kind, np.float16) for key, array in arrays.items()}
        stored = {key: np.ascontiguousarray(array, dtype=dtypes[key]) for key, array in arrays.items()}
        file = f"{name}-layer-{layer:03d}.safetensors"
        self._write(f"arrays/{file}", lambda temporary: save_file(stored, temporary))
        self._block_sums[file] = block_sums(self.path / "arrays" / file)

    def update(self, **fields: Any) -> None:
        """Change fields of the record and rewrite `run.json`; the catalogue is updated if the status changes."""
        old_status = self.record.status
        ended = fields.get("status", old_status) != "running"
        fields["checksums"] = dict(sorted(self._checksums.items())) if ended else None
        self.record = RunRecord.model_validate(self.record.model_dump() | fields)
        write_record(self.path, self.record)
        if self.record.status != old_status:
            catalogue.upsert(self.root, self.record)
        if ended:
            self._end_beating()

    def finish(self, status: RunStatus, message: str = "", **fields: Any) -> None:
        """Flush, then write the final status, so that `complete` implies all rows are on disk."""
        try:
            self.flush()
            if self._block_sums:
                self._write(SUMS, lambda temporary: save_file(self._block_sums, temporary))
        except UserError as error:
            self._buffers = {name: [] for name in TABLES}
            self.update(status="failed", message=str(error))
            raise
        self.update(status=status, message=message, **fields)

    def __enter__(self) -> "RunWriter":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if error is None or self.record.status != "running":
            return
        if isinstance(error, KeyboardInterrupt):
            self.finish("cancelled", "stopped by the user")
        else:
            self.finish("failed", str(error) or type(error).__name__)

    def _flush_table(self, name: str) -> bool:
        if not self._buffers[name]:
            return False
        # Concatenate all parts.
        parts = self._buffers[name]
        schema = TABLES[name]
        tables = []
        for _, same in groupby(parts, key=lambda part: part.keys()):
            group = list(same)
            columns: dict[str, Column] = {}
            for key in group[0]:
                values = [part[key] for part in group]
                is_numeric = all(isinstance(value, np.ndarray) for value in values)
                # numpy would convert strings and mixed lists
                columns[key] = np.concatenate(values) if is_numeric else list(chain.from_iterable(values))
            length = len(next(iter(columns.values())))
            arrays = [
                # from_pandas: NaN means "not measured" and becomes null.
                pa.array(columns[field.name], from_pandas=True).cast(field.type, safe=False)
                if field.name in columns
                else pa.nulls(length, field.type)
                for field in schema
            ]
            tables.append(pa.table(arrays, schema=schema))
        rows = pa.concat_tables(tables)
        # Sort by head, so that a filter on layer and head skips row groups.
        order = [(key, "ascending") for key in SORT_KEYS if key in rows.column_names]
        rows = rows.sort_by(order) if order else rows
        part = f"{name}/part-{len(self._part_rows[name]):05d}.parquet"
        # Events have the fastest codec, as pages read millions of them; only short columns have dictionaries.
        codec = "lz4" if name == "events" else "zstd"
        alike = [column for column in rows.column_names if column not in SELDOM_ALIKE]
        options: Any = {"compression": codec, "use_dictionary": alike, "row_group_size": ROWS_PER_GROUP}
        self._write(part, lambda temporary: pq.write_table(rows, temporary, **options))
        self._part_rows[name].append(rows.num_rows)
        self._buffers[name] = []
        self._buffered_rows[name] = 0
        return True

    def _save_part_list(self) -> None:
        self._write("parts.json", lambda temporary: temporary.write_text(json.dumps(self._part_rows)))

    def _write(self, name: str, write: Callable[[Path], object]) -> None:
        replace_file(self.path / name, write)
        self._checksums[name] = checksum(self.path / name)
