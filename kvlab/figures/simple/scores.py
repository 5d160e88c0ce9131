"""Simple sentences on scores over many prompts."""

from __future__ import annotations

import pandas as pd

from kvlab.views.base.amounts import (
    NOT_RECORDED,
    contrast,
    join_names,
    often,
    part,
    sentence,
    some_of,
)
from kvlab.views.base.arm_names import arm_text
from kvlab.views.frames.trade_off import HELD


def needle_map(frame: pd.DataFrame, means: pd.DataFrame) -> str:
    """Who finds the needle best and worst."""
    scores = means.set_index("row")["score"]
    how = often(float(scores.iloc[0])) if len(scores) else ""
    return contrast(
        scores,
        "On average, the hidden fact is found best with {most}, and worst with {least}.",
        f"All methods alike: the hidden fact is {how} found.",
        f"With {{only}}, the hidden fact is {how} found.",
    )


def needle_fates(frame: pd.DataFrame) -> str:
    """Who holds most and least of the needle."""
    held = frame.set_index("row")["held"]
    share = part(float(held.iloc[0])) if len(held) else ""
    return contrast(
        held,
        "The largest part of the hidden fact is still held by {most}, the smallest by {least}.",
        f"Every method still holds {share} of the hidden fact.",
        f"{{only}} still holds {share} of the hidden fact.",
    )


def rank_table(frame: pd.DataFrame) -> str:
    """Who is level with the best in every task."""
    level = frame.groupby("arm", sort=False)["level"].all()
    names = [arm_text(str(arm)) for arm in level.index[level]]
    if not names:
        return "No method is as good as the best in every task."
    if len(names) == len(level):
        return (
            "No method is clearly worse than the best in any task." if len(names) > 1 else "Only one method is shown."
        )
    return f"As good as the best in every task, as far as these prompts can tell: {join_names(names)}."


def score_against_bytes(frame: pd.DataFrame, axis: str = HELD) -> str:
    """Who is not beaten in both score and memory."""
    names = list(
        dict.fromkeys(
            "the full cache" if line.method == "full" else f"{arm_text(str(line.arm))} {line.asked}"
            for line in frame[frame["frontier"]].sort_values(axis).itertuples()
        )
    )
    if not names:
        return NOT_RECORDED
    if frame["frontier"].all():
        return "No one is beaten in both score and memory by another."
    return f"Not beaten in both score and memory by another: {join_names(names)}."


def risk_against_budget(table: pd.DataFrame, tolerance: float) -> str:
    """For whom a smaller cache was found safe."""
    safe = table.groupby("arm", sort=False)["certified"].any()
    names = list(safe.index[safe])
    if not names:
        return "No smaller cache was found safe."
    if len(names) == len(safe):
        return f"A smaller cache was found safe with {'every method' if len(safe) > 1 else names[0]}."
    return f"A smaller cache was found safe with {join_names(names)}, and not with the others."


def ours_beside_theirs(inside: int, values: int) -> str:
    """In how many of the measured cells the paper's value is within the interval."""
    if not values:
        return "Nothing was measured that the paper prints."
    return sentence(f"the measurement here agrees with {some_of(inside, values, 'published value')}")
