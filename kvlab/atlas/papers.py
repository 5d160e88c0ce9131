"""Values printed in the papers, each with its source table."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pandas as pd

COLUMNS = ("exhibit", "source", "model", "method", "budget", "dataset", "metric", "value", "note")
FILE = "paper_values.csv"


def paper_values(paper: str, exhibit: str) -> pd.DataFrame:
    """The values printed in one figure or table (`COLUMNS`), from the paper's `paper_values.csv`; empty if none.

    `method` is kvlab's name if it has the method; `budget` is as printed, with its unit.
    """
    values = _read(paper.replace("-", "_"))
    return values[values["exhibit"] == exhibit].reset_index(drop=True)


def paper_gap(values: pd.DataFrame, first: str, second: str, budget: str = "") -> float | None:
    """Mean of the paper's scores of `first` minus `second`, over its models and datasets, from 0 to 1 as kvlab's.

    Scores up to 100 are divided by 100. With `budget`, as printed, only of this budget; None if the paper prints none.
    """
    keys = ["model", "dataset", "metric", "budget"]
    chosen = values[values["budget"] == budget] if budget else values
    one, other = (chosen[chosen["method"] == method].set_index(keys)["value"] for method in (first, second))
    gaps = (one - other).dropna()
    return float(gaps.mean()) / (100 if chosen["value"].max() > 1 else 1) if len(gaps) else None


def grey_table(values: pd.DataFrame) -> pd.DataFrame:
    """The values in the paper's layout: one row per model, method and budget, one column per dataset (or metric)."""
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
