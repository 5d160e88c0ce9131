"""Evaluation rows with losses that a test chooses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd

from kvlab.evaluation.results.rows import ROWS
from tests.papers.test_scores import row

BUDGETS = (0.9, 0.5, 0.2)


def rows_of(
    wrong: Mapping[str, Sequence[int]],
    count: int,
    full_wrong: int = 0,
    task: str = "needle",
    budgets: Sequence[float] = BUDGETS,
) -> pd.DataFrame:
    """Rows of `count` prompts: of each method, how many of the first prompts are wrong at each budget.

    The full cache is wrong on the last `full_wrong` prompts.
    """
    made = []
    for index in range(count):
        base = row(task, "full", float(index < count - full_wrong), index) | {"prediction": "same"}
        made.append(base | {"budget": 1.0, "key": f"{task}/full/{index}"})
        for method, numbers in wrong.items():
            for budget, number in zip(budgets, numbers, strict=True):
                lost = index < number
                named = {"budget": budget, "key": f"{task}/{method}/{budget}/{index}", "live_bytes": int(100 * budget)}
                text = "other" if lost else "same"
                score = 0.0 if lost else base["score"]
                made.append(row(task, method, score, index) | named | {"prediction": text, "score": score})
    return pd.DataFrame(made, columns=ROWS.names)
