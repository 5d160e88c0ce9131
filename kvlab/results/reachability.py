"""Whether evidence can be reached at all, by method and budget: the global eviction ratio, and the cliff of the score.

After arXiv 2603.01426, which finds that answers are lost where evidence tokens lose their slots in all heads at once.
"""

from __future__ import annotations

from typing import Any

import pandas as pd

from kvlab.core.choice import FULL
from kvlab.evaluation.results.summary import summarize
from kvlab.results.score_tables import NAMES, with_names

TASK = ["task", "difficulty", "length", "question_aware", "model"]
SHOWN = ("score", "hidden_own", "hidden_merged", "unreachable", "consensus")


def reachability(rows: pd.DataFrame) -> pd.DataFrame:
    """One row per task, method and budget, largest budget first, for rows whose evidence was tracked.

    Columns: task, difficulty, length, question_aware, model, `NAMES`, samples, score, hidden_own, hidden_merged,
    unreachable and consensus with 95 % intervals, loss (score lost since the next larger budget; the full cache comes
    before the largest) and cliff (the step with a method's largest loss, if it loses anything).
    """
    tracked = rows[rows["unreachable"].notna()] if "unreachable" in rows else rows.iloc[:0]
    if tracked.empty:
        return pd.DataFrame(columns=[*TASK, *NAMES, "samples", *SHOWN, "loss", "cliff"])
    table = with_names(summarize(tracked, ["task", "difficulty", "length"]))
    columns = [f"{name}{bound}" for name in SHOWN for bound in ("", "_low", "_high")]
    lines: list[dict[Any, Any]] = []
    for _, of_task in table.groupby(TASK, dropna=False, sort=False):
        full = of_task[of_task["method"] == FULL.method]
        lines += full.assign(loss=None, cliff=False).to_dict("records")
        start = float(full["score"].iloc[0]) if len(full) else None
        for _, arm in of_task[of_task["method"] != FULL.method].groupby(["arm", "budget_unit"], sort=False):
            lines += _with_losses(arm.sort_values("budget", ascending=False), start)
    return pd.DataFrame(lines)[[*TASK, *NAMES, "samples", *columns, "loss", "cliff"]]


def _with_losses(arm: pd.DataFrame, start: float | None) -> list[dict[Any, Any]]:
    before = [start, *arm["score"].tolist()[:-1]]
    losses = [None if was is None else was - now for was, now in zip(before, arm["score"], strict=True)]
    most = max((loss for loss in losses if loss is not None), default=0.0)
    marks = [loss is not None and loss == most and most > 0 for loss in losses]
    return arm.assign(loss=losses, cliff=marks).to_dict("records")
