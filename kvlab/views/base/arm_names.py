"""Names of evaluated methods: arms, and rows of arm and budget."""

from __future__ import annotations

import pandas as pd
from pydantic import JsonValue

from kvlab.core.choice import FULL
from kvlab.core.method_spec import parse_spec


def arm_text(arm: str) -> str:
    """An arm as people say it: of a composition, whose selection and whose settling."""
    parts = composition(arm)
    return f"{parts['score']} settled by {parts['settle']}" if {"score", "settle"} <= parts.keys() else arm


def composition(arm: str) -> dict[str, JsonValue]:
    """The parts of an arm such as `compose:score=h2o:settle=keepkv`; empty for a method of its own."""
    return parse_spec(arm)[1] if arm.startswith("compose:") else {}


def row_names(frame: pd.DataFrame) -> list[str]:
    """The names of rows with columns method, arm and asked (the budget)."""
    return [
        "full cache" if method == FULL.method else f"{arm_text(arm)} {asked}"
        for method, arm, asked in zip(frame["method"], frame["arm"], frame["asked"], strict=True)
    ]
