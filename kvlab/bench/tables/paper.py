"""The papers' numbers next to ours. Torch-free."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from kvlab.bench.rows import Row

NUMBERS = Path(__file__).with_name("paper_numbers.csv")
IN_UNIT = {"GB": 1e9}
SETTING = ["preset", "model", "batch", "context", "new_tokens", "figure"]


def paper_numbers(preset: str = "") -> pd.DataFrame:
    """The papers' numbers, all or those of one preset: `value` in `unit`, NaN for out of memory.

    `method` is kvlab's name, `budget` is empty for the full cache, `source` is the paper's table or figure.
    """
    numbers = pd.read_csv(NUMBERS, dtype={"budget": "string"}, keep_default_na=True)
    numbers[["note", "budget"]] = numbers[["note", "budget"]].fillna("")
    return numbers[numbers["preset"] == preset].reset_index(drop=True) if preset else numbers


def beside_the_paper(rows: Sequence[Row], preset: str) -> pd.DataFrame:
    """The preset's paper numbers with `ours` (same unit), and for both the ratio to the full cache at equal batch.

    A setting that was not measured has NaN in `ours` and the reason in `why`.
    """
    numbers = paper_numbers(preset)
    mine = [_ours(number, rows) for number in numbers.itertuples()]
    numbers["ours"] = [
        row.median / IN_UNIT.get(unit, 1.0) if row is not None and row.median is not None else float("nan")
        for row, unit in zip(mine, numbers["unit"], strict=True)
    ]
    numbers["why"] = [_why(row) for row in mine]
    for name, column in (("value", "paper_ratio"), ("ours", "our_ratio")):
        full = numbers[numbers["method"] == "full"].set_index(SETTING)[name]
        index = pd.MultiIndex.from_frame(numbers[SETTING])
        numbers[column] = numbers[name].to_numpy() / full.reindex(index).to_numpy()
    measured = [row.ratio_to_full if row is not None else None for row in mine]  # if the paper has no full cache
    numbers["our_ratio"] = numbers["our_ratio"].fillna(pd.Series(measured, dtype="float64"))
    return numbers


def _ours(number: object, rows: Sequence[Row]) -> Row | None:
    for row in rows:
        same = all(
            getattr(row, mine) == getattr(number, theirs)
            for mine, theirs in (
                ("preset", "preset"),
                ("model", "model"),
                ("batch", "batch"),
                ("asked_context", "context"),
                ("asked_new_tokens", "new_tokens"),
                ("figure", "figure"),
            )
        )
        if same and _same_method(row, number):
            return row
    return None


def _same_method(row: Row, number: object) -> bool:
    if number.method == "full":  # type: ignore[attr-defined]
        return row.is_full
    # With defaults or a paper preset; with other settings it is another method.
    name, _, settings = row.method.partition(":")
    if name != number.method or ":" in settings or row.budget is None:  # type: ignore[attr-defined]
        return False
    if settings and not settings.startswith("preset=paper"):
        return False
    budget = float(number.budget)  # type: ignore[attr-defined]
    return row.budget == (max(1, budget // row.shorten) if row.budget_unit == "slots" else budget)


def _why(row: Row | None) -> str:
    return "not measured" if row is None else row.note if row.status != "ok" else ""
