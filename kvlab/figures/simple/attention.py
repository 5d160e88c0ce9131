"""Simple sentences on attention: what is lost by merging and dropping, chosen words, and restored answers."""

from __future__ import annotations

import pandas as pd

from kvlab.views.base.amounts import (
    near,
    sentence,
    some_of,
)


def heads_that_hold(table: pd.DataFrame) -> str:
    """How many heads hold the token."""
    held = int((table["state"] > 0).sum())
    return sentence(f"this token is still held by {some_of(held, len(table), 'head')}")


def attention_to_token(table: pd.DataFrame) -> str:
    """The head that reads the token most."""
    values = table["attention"].fillna(0)
    if values.max() <= 0:
        return "No head looks at this token."
    if near(float(values.min()), float(values.max())):
        return "Every head looks at this token equally much."
    return f"This token is looked at most in {_place(table.loc[values.idxmax()])}."


def _place(row: pd.Series) -> str:
    return f"layer {int(row['layer'])}, head {int(row['head'])}"
