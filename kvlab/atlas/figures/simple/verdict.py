"""Simple sentences about verdict cards."""

from __future__ import annotations

import pandas as pd


def card(frame: pd.DataFrame) -> str:
    """How to read a verdict card."""
    return "Marks in the shaded range speak for the paper's claim, marks outside it against the claim."
