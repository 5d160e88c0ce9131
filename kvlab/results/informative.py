"""Tasks that a model can do at all: where the full cache fails, a compressed cache's score says nothing. Torch-free."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from kvlab.evaluate.results.summary import summarize
from kvlab.evaluate.scoring.metrics import higher_is_better
from kvlab.requests.compare import FULL

LEAST_SCORE = 0.5  # of the full cache: it answers half of the prompts
TASK = ["task", "difficulty", "length"]
COLUMNS = [*TASK, "metric", "prompts", "score", "score_low", "score_high"]


def abilities(rows: pd.DataFrame) -> pd.DataFrame:
    """One row per task, difficulty and length: what one model's full cache scores.

    Columns: task, difficulty, length, metric, prompts, score with `_low` and `_high` (95 %), informative (the mean is
    at least `LEAST_SCORE`; always for likelihoods, which compare with the full cache).
    """
    found = summarize(rows[rows["method"] == FULL.method], TASK).rename(columns={"samples": "prompts"})
    if found.empty:
        return pd.DataFrame(columns=[*COLUMNS, "informative"])
    scored = found["metric"].map(higher_is_better)
    return found[COLUMNS].assign(informative=~scored | (found["score"] >= LEAST_SCORE))


def informative(rows: pd.DataFrame) -> tuple[pd.DataFrame, str]:
    """The rows of informative tasks, and a sentence that names those left out (empty if there are none).

    All rows stay if no task is informative, since there would be nothing to show; the sentence then says so.
    """
    found = abilities(rows)
    others = found[~found["informative"]]
    if others.empty:
        return rows, ""
    names = list(dict.fromkeys(others["task"].astype(str)))
    if found["informative"].any():
        left_out = rows.merge(others[TASK], on=TASK, how="left", indicator=True)["_merge"].to_numpy() == "both"
        return rows[~left_out], (
            f"Not informative for this model and left out of ranks and means: {_listed(names)}. Its full cache scores "
            f"below {LEAST_SCORE:g} there."
        )
    return rows, f"No task is informative for this model: its full cache scores below {LEAST_SCORE:g} in all of them."


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
