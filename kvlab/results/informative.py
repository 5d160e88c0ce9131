"""Tasks that a model can do at all: where the full cache fails, a compressed cache's score says nothing. Torch-free."""

from collections.abc import Mapping, Sequence

import pandas as pd

from kvlab.common.answer_match import LEAST_SCORE
from kvlab.common.formatting import join_words, prompts, range_words
from kvlab.core.choice import FULL
from kvlab.evaluation.results.summary import CHUNK, PROMPT, summarize
from kvlab.evaluation.scoring.metrics import higher_is_better

TASK = ["task", "difficulty", "length"]
ONE_PROMPT = [name for name in PROMPT if name not in ("question_aware", CHUNK)]  # equal for a cache that keeps all
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
    names = []
    for task, weak in others.groupby("task", sort=False):
        every = set(found.loc[found["task"] == task, "length"])
        lengths = sorted(set(weak["length"]))
        at_some = f" at {join_words([f'{length:,}' for length in lengths])} tokens" if set(lengths) < every else ""
        names.append(f"{task}{at_some}")
    if found["informative"].any():
        left_out = rows.merge(others[TASK], on=TASK, how="left", indicator=True)["_merge"].to_numpy() == "both"
        return rows[~left_out], (
            f"Not informative for this model and left out of ranks and means: {join_words(names)}. Its full cache "
            f"scores below {LEAST_SCORE:g} there."
        )
    return rows, f"No task is informative for this model: its full cache scores below {LEAST_SCORE:g} in all of them."


def task_notes(
    rows: pd.DataFrame, model: str, tasks: Mapping[str, str], lengths: Sequence[int] | None = None
) -> dict[str, str]:
    """Sentences on the scores of `model`'s full cache in the `tasks` (name -> difficulty as in rows).

    One entry per measured task: a sentence that names the lengths at which it is not informative, else empty. With
    `lengths` (tokens) only these count.
    """
    if rows.empty:
        return {}
    of_full = rows[(rows["method"] == FULL.method) & (rows["model"] == model)]
    once = of_full.drop_duplicates(ONE_PROMPT).assign(question_aware=True, **{CHUNK: None})
    notes = {}
    for task, difficulty in tasks.items():
        mine = once[(once["task"] == task) & (once["difficulty"] == difficulty)]
        mine = mine[mine["length"].isin(lengths)] if lengths else mine
        if mine.empty:
            continue
        weak = abilities(mine).query("not informative")
        cells = []  # such as `right in 2 of 10 prompts of 1,024 tokens: 0.2 (0.06 to 0.51)`
        for cell in weak.itertuples():
            scores = mine.loc[mine["length"] == cell.length, "score"]
            sample = f"{prompts(cell.prompts)} of {cell.length:,} tokens"
            # Scores between 0 and 1 count no right ones.
            what = f"right in {scores.sum():.0f} of {sample}" if scores.isin((0, 1)).all() else f"scored on {sample}"
            bounds = range_words(cell.score, cell.score_low, cell.score_high, more="95 % interval")
            cells.append(f"{what}: {bounds}")
        notes[task] = f"{task}: full cache {join_words(cells)}." if cells else ""
    return notes
