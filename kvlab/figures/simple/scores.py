"""Simple sentences on scores over many prompts."""

from __future__ import annotations

import pandas as pd

from kvlab.analysis.comparison.trade_off import HELD
from kvlab.views.base.amounts import (
    NOT_RECORDED,
    comparison_words,
    contrast,
    join_names,
    near,
    often,
    part,
    sentence,
    some_of,
)
from kvlab.views.base.arm_names import arm_text, row_names
from kvlab.views.base.words import with_spaces


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


def score_against_budget(means: pd.DataFrame, panel: str = "task") -> str:
    """Who scores highest and lowest on average."""
    return contrast(
        means.assign(arm=means["arm"].astype(str).map(arm_text)).set_index("arm")["score"].round(9),
        "On average, the score is highest with {most}, and lowest with {least}.",
        "On average, all score the same.",
        "{only} is the only one that was measured.",
    )


def score_by_option(means: pd.DataFrame, option: str) -> str:
    """Whether one value of the option is best in every budget."""
    if not means["score"].notna().any():
        return NOT_RECORDED
    best = []
    for _, group in means.groupby("asked", sort=False):
        values = group.set_index(option)["score"]
        best.append({value for value, score in values.items() if near(float(score), float(values.max()))})
    name = with_spaces(option)
    if all(len(tops) == means[option].nunique() for tops in best):
        return f"The score does not depend on the {name}." if means[option].nunique() > 1 else f"One {name} is shown."
    common = set.intersection(*best)
    if not common:
        return f"Which {name} is best depends on the budget."
    where = " at every budget" if len(best) > 1 else ""
    return f"The score is highest with {name} {join_names(sorted(common, key=str))}{where}."


def benchmark_table(means: pd.DataFrame) -> str:
    """The best compressed caches, and whether they reach the full one."""
    compressed = means[means["method"] != "full"]
    full = means[means["method"] == "full"]
    if not compressed["score"].notna().any():
        return "No compressed cache was measured."
    top = float(compressed["score"].max())
    best = compressed[[near(float(score), top) for score in compressed["score"]]]
    names = row_names(best)
    who = "all alike" if len(best) == len(compressed) > 1 else join_names(names)
    if full.empty:
        return f"Best of the compressed caches on average: {who}."
    how = comparison_words(
        top, float(full["score"].max()), "a higher score than", "a lower score than", "the score of", 1e-6
    )
    return f"Best of the compressed caches on average: {who}, with {how} the full cache."


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
