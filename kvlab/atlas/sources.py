"""What there is to draw from: the run and comparison in view, and the results of evaluations and benchmarks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import pandas as pd
import pyarrow.dataset as ds

from kvlab.trace.reader import Run

EVAL_FOLDER = "eval"
BENCH_FOLDER = "bench"


@dataclass
class Sources:
    """The runs in view and the folder of runs; results are read when first asked for.

    Evaluations are looked for in `<root>/eval/<name>/`, benchmark files in `<root>/bench/`.
    """

    root: Path
    run: Run | None = None
    runs: Sequence[Run] = field(default_factory=tuple)

    @cached_property
    def evaluations(self) -> pd.DataFrame:
        """Every row of every evaluation (columns as `kvlab.evaluate.rows.ROWS`), a repeated key once, and `name`."""
        folders = sorted(path for path in (self.root / EVAL_FOLDER).glob("*") if path.is_dir())
        frames = [_parts(folder).assign(name=folder.name) for folder in folders]
        found = [frame for frame in frames if len(frame)]
        return pd.concat(found, ignore_index=True).drop_duplicates("key") if found else pd.DataFrame()

    @cached_property
    def benchmarks(self) -> pd.DataFrame:
        """Every row of every benchmark file (columns as `kvlab.bench.rows.SCHEMA`) and `name`, the file's."""
        files = sorted((self.root / BENCH_FOLDER).glob("**/*.parquet"))
        frames = [pd.read_parquet(file).assign(name=file.stem) for file in files]
        return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()


def _parts(folder: Path) -> pd.DataFrame:
    files = [str(path) for path in sorted(folder.rglob("*.parquet"))]
    return ds.dataset(files, format="parquet").to_table().to_pandas() if files else pd.DataFrame()
