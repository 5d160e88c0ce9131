"""The values the papers print: small tables beside the exhibits, each value with the table it stands in."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pandas as pd

COLUMNS = ("exhibit", "source", "model", "method", "budget", "dataset", "metric", "value", "note")
FILE = "paper_values.csv"


def paper_values(paper: str, exhibit: str) -> pd.DataFrame:
    """The values one figure or table prints, columns as `COLUMNS`; empty where the text of the paper gives none.

    They come from `paper_values.csv` in the paper's folder. `method` is kvlab's name where kvlab has the method,
    `budget` as the paper says it, with its unit.
    """
    values = _read(paper.replace("-", "_"))
    return values[values["exhibit"] == exhibit].reset_index(drop=True)


def grey_table(values: pd.DataFrame) -> pd.DataFrame:
    """The values as the paper lays them out: a row a model, method and budget, a column a dataset (or metric)."""
    across = "dataset" if values["dataset"].nunique() > 1 else "metric"
    rows = [name for name in ("source", "model", "method", "budget") if values[name].astype(bool).any()]
    order = {name: values[name].drop_duplicates().tolist() for name in (*rows, across)}
    table = values.pivot_table(index=rows, columns=across, values="value", aggfunc="first", sort=False)
    return table[order[across]].reset_index().rename_axis(columns=None)


@cache
def _read(folder: str) -> pd.DataFrame:
    file = Path(__file__).parent / folder / FILE
    if not file.exists():
        return pd.DataFrame(columns=list(COLUMNS))
    texts = [name for name in COLUMNS if name != "value"]
    return pd.read_csv(file, dtype=dict.fromkeys(texts, "string")).fillna(dict.fromkeys(texts, ""))
