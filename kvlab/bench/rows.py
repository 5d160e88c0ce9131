"""The row of a measurement, and the result file. Torch-free."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq

from kvlab.common.atomic_write import replace_file
from kvlab.core.errors import UserError

Status = Literal["ok", "oom", "skipped"]


@dataclass(frozen=True)
class Row:
    """A figure of one method at one batch and context.

    `bound` is the device's limit in `unit`, `fraction_of_bound` the share of it that was reached (at most 1).
    `ratio_to_full` is this figure over that of the best full cache, which `is_full` marks. `joules` is the device's
    energy of one step or prompt, mean of all that were timed, where it has a counter; `energy` names the counter or why
    there is none. `asked_context` is the context before `shorten`.
    """

    mode: str
    figure: str
    model: str
    method: str
    batch: int
    context: int
    unit: str
    budget: float | None = None
    budget_unit: str | None = None
    hyper_parameters: str = "{}"
    new_tokens: int = 0
    repeats: int = 0
    median: float | None = None
    iqr: float | None = None
    bound: float | None = None
    fraction_of_bound: float | None = None
    ratio_to_full: float | None = None
    joules: float | None = None
    is_full: bool = False
    status: Status = "ok"
    note: str = ""
    asked_context: int = 0
    asked_new_tokens: int = 0
    preset: str = ""
    scale: int = 1
    shorten: int = 1
    compress_every: int = 1
    dtype: str = ""
    device: str = ""
    energy: str = ""
    versions: str = "{}"
    timestamp: str = ""


_TYPES: dict[Any, pa.DataType] = {int: pa.int64(), float | None: pa.float64(), bool: pa.bool_()}
SCHEMA = pa.schema([(f.name, _TYPES.get(f.type, pa.string())) for f in fields(Row)])


def to_table(rows: Iterable[Row]) -> pa.Table:
    """The rows as an Arrow table with the columns of `SCHEMA`."""
    return pa.Table.from_pylist([asdict(row) for row in rows], schema=SCHEMA)


@dataclass(eq=False)
class ResultFile:
    """A Parquet file that always has every row measured so far, so that a killed benchmark keeps its rows."""

    path: Path
    rows: list[Row] = field(default_factory=list)
    _table: pa.Table = field(default_factory=SCHEMA.empty_table)  # of the leading rows: none is converted twice

    def add(self, rows: Iterable[Row]) -> None:
        """Add rows and rewrite the file; raises UserError if it cannot be written."""
        self.rows.extend(rows)
        self._table = pa.concat_tables([self._table, to_table(self.rows[len(self._table) :])]).combine_chunks()
        try:
            replace_file(self.path, lambda temporary: pq.write_table(self._table, temporary))
        except OSError as error:
            raise UserError(
                f"{self.path} cannot be written ({error.strerror or error}): choose another --out."
            ) from error


def read_rows(path: Path) -> list[Row]:
    """Read the rows of a result file."""
    return [Row(**values) for values in pq.read_table(path).to_pylist()]
