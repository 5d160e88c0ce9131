"""Whether evidence can be reached: the global eviction ratio, the cliff of the score, and the place in a chunk.

After arXiv 2603.01426, which finds that answers are lost where evidence tokens lose their slots in all heads at once.
"""

from __future__ import annotations

import json
from typing import Any

import pandas as pd

from kvlab.common.intervals import mean_over_groups
from kvlab.core.choice import FULL
from kvlab.evaluation.results.summary import summarize
from kvlab.results.score_tables import NAMES, with_names

TASK = ["task", "difficulty", "length", "question_aware", "model"]
SHOWN = ("score", "hidden_own", "hidden_merged", "unreachable", "consensus")
SIZES = ("length", "page", "read_page")  # settings that say how many tokens are kept or read together
READ_PAGES = {"quest": 16, "rocketkv": 4, "shadowkv": 8}  # of readings without `read_page`


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


def phase_table(rows: pd.DataFrame) -> pd.DataFrame:
    """One row per task, method, budget and phase, for rows whose hidden statement has a known place.

    Columns: task, `NAMES`, chunk (tokens), chunked (the method keeps or reads that many together; else it is the
    largest chunk of the others), phase (place of the statement's first token modulo the chunk), samples, score with
    `_low` and `_high` (95 % interval).
    """
    known = rows[rows["hidden_at"].notna()] if "hidden_at" in rows else rows.iloc[:0]
    if known.empty:
        return pd.DataFrame(columns=["task", *NAMES, "chunk", "chunked", "phase", "samples", "score"])
    sizes = known["settings"].map(_chunk)
    chunk = sizes.where(sizes > 1, max(int(sizes.max()), 2))
    named = with_names(known).assign(chunk=chunk, chunked=sizes > 1, phase=known["hidden_at"].astype(int) % chunk)
    lines = []
    by = ["task", *NAMES, "chunk", "chunked", "phase"]
    for names, cell in named.groupby(by, dropna=False, sort=False):
        found = mean_over_groups(cell["score"].tolist(), None, kind="score")
        line = dict(zip(by, names, strict=True)) | {"samples": found.n, "score": found.mean}
        lines.append(line | {"score_low": found.low, "score_high": found.high})
    return pd.DataFrame(lines).sort_values(["task", "arm", "asked", "phase"], kind="stable", ignore_index=True)


def _chunk(settings: str) -> int:
    """Tokens that a method keeps or reads together by its settings; 1: token by token."""
    values = json.loads(settings or "{}")
    found = [int(values[name]) for name in SIZES if isinstance(values.get(name), int)]
    return max([1, *found]) if "read_page" in values else max([1, *found, READ_PAGES.get(values.get("read"), 1)])
