"""Table of answers that are traced while generating: right or wrong, how long, and whether they end in a loop."""

from __future__ import annotations

import json

import pandas as pd

from kvlab.common.answer_match import LEAST_SCORE
from kvlab.common.intervals import mean_intervals
from kvlab.core.choice import FULL
from kvlab.evaluation.results.summary import PROMPT
from kvlab.results.score_tables import NAMES, with_names

TASK = ["task", "difficulty", "length", "question_aware", "model"]
COLUMNS = [
    *TASK, *NAMES, "most_slots", "samples", "score", "score_low", "score_high", "tokens", "longer", "loops", "right",
    "tokens_right", "tokens_wrong", "loops_wrong", "informative",
]  # fmt: skip


def reasoning_table(rows: pd.DataFrame) -> pd.DataFrame:
    """One row per task, method and budget, of rows with generated answers.

    Columns: task, difficulty, length, question_aware, model, `NAMES`, most_slots (budget in slots and the buffer beside
    it; null for other budgets), samples, score with its 95 % interval, tokens (of the answer, mean), longer (over the
    full cache's on the same prompt, mean of ratios), loops (share that end in a loop), right (answers whose score is
    1), tokens_right, tokens_wrong, loops_wrong (share of the wrong ones), informative (the full cache scores at least
    one half).
    """
    if "answer_tokens" not in rows or rows["answer_tokens"].dropna().empty:
        return pd.DataFrame(columns=COLUMNS)
    written = with_names(rows[rows["answer_tokens"].notna() & rows["score"].notna()])
    full = written.loc[written["method"] == FULL.method, [*PROMPT, "answer_tokens"]].drop_duplicates(PROMPT)
    written = written.merge(full.rename(columns={"answer_tokens": "full_tokens"}), on=PROMPT, how="left")
    numbers = pd.to_numeric(written["answer_tokens"])
    written = written.assign(
        tokens=numbers,
        longer=numbers / pd.to_numeric(written["full_tokens"]),
        right=written["score"] >= 1,
        loops=pd.to_numeric(written["loop_tokens"]) > 0,
        most_slots=[_most_slots(*one) for one in _asked(written)],
    )
    lines = [
        dict(zip([*TASK, *NAMES], names, strict=True)) | _line(group)
        for names, group in written.groupby([*TASK, *NAMES], dropna=False, sort=False)
    ]
    table = pd.DataFrame(lines)
    able = table.loc[table["method"] == FULL.method].set_index(TASK)["score"] >= LEAST_SCORE
    keys = pd.MultiIndex.from_frame(table[TASK])
    return table.assign(informative=able.reindex(keys).fillna(False).to_numpy(bool))[COLUMNS]


def _line(group: pd.DataFrame) -> dict[str, float | int | None]:
    (found,) = mean_intervals(group[["score"]].to_numpy(float), kinds=["score"])
    bounds = (found.mean, found.low, found.high) if found else (None, None, None)
    right = group[group["right"]]
    wrong = group[~group["right"]]
    return {
        "most_slots": group["most_slots"].iloc[0],
        "samples": len(group),
        **dict(zip(("score", "score_low", "score_high"), bounds, strict=True)),
        "tokens": group["tokens"].mean(),
        "longer": group["longer"].mean(),
        "loops": group["loops"].mean(),
        "right": len(right),
        "tokens_right": right["tokens"].mean(),
        "tokens_wrong": wrong["tokens"].mean(),
        "loops_wrong": wrong["loops"].mean(),
    }


def _asked(rows: pd.DataFrame) -> list[tuple[object, ...]]:
    return list(zip(rows["method"], rows["budget"], rows["budget_unit"], rows["settings"], strict=True))


def _most_slots(method: object, budget: object, unit: object, settings: object) -> float | None:
    """Slots that a KV head holds at most; None where the budget is no number of slots."""
    if unit != "slots" or method == FULL.method:
        return None
    given = json.loads(settings) if isinstance(settings, str) else {}
    buffer = given.get("buffer", 0) if given.get("decode", "budget") == "budget" else 0
    return float(str(budget)) + (buffer if buffer > 1 else 0)
