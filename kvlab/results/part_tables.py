"""Tables of a prompt's parts: which rule or question survives which method and budget, by kind, order and position.

A part is one of several rules or questions of a prompt (`kvlab.evaluation.work`). A kind of rule says something
about a cache only if the full cache obeys it, and not without being told.
"""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from kvlab.common.answer_match import LEAST_SCORE
from kvlab.common.intervals import mean_intervals
from kvlab.core.choice import FULL
from kvlab.evaluation.results.summary import PROMPT, summarize
from kvlab.evaluation.scoring.metrics import score, tags_of_rows
from kvlab.results.score_tables import NAMES, with_names

TASK = ["task", "difficulty", "length", "question_aware", "model"]
OF_ROW = [*TASK, *NAMES, "index", "seed", "tokens_in_sight"]
OF_PART = ("kind", "order", "position", "tokens", "answer", "score", "own", "merged", "unreachable", "consensus")
MEASURES = ("score", "held", "unreachable")
RULES = "rules"  # the metric whose parts are rules
SECRET = "secret"
KEPT = ("leakage", "kept")


def part_rows(rows: pd.DataFrame) -> pd.DataFrame:
    """One row per part of every evaluation row that has parts.

    Columns: task, difficulty, length, question_aware, model, `NAMES`, index, seed, tokens_in_sight, `OF_PART`, held
    (share of layers and heads in which a token of the part has a slot), place (position over the tokens in sight: 0 is
    the prompt's start) and third (early, middle or late).
    """
    if "parts" not in rows or rows["parts"].dropna().empty:
        return pd.DataFrame(columns=[*OF_ROW, *OF_PART, "held", "place", "third"])
    named = with_names(rows[rows["parts"].notna()])
    found = named[[name for name in OF_ROW if name in named]].assign(_part=named["parts"].map(json.loads))
    found = found.explode("_part", ignore_index=True)
    parts = pd.DataFrame(found.pop("_part").tolist(), columns=list(OF_PART))
    for name in ("position", "own", "merged", "unreachable", "consensus"):
        parts[name] = pd.to_numeric(parts[name])
    place = parts["position"] / found["tokens_in_sight"]
    third = pd.cut(place, [-0.01, 1 / 3, 2 / 3, 1.01], labels=["early", "middle", "late"]).astype(object)
    return pd.concat([found, parts], axis=1).assign(held=parts["own"] + parts["merged"], place=place, third=third)


def part_table(rows: pd.DataFrame, by: Sequence[str] = ("kind",)) -> pd.DataFrame:
    """One row per task, group of `by` (kind, order, third), method and budget.

    Columns: task, difficulty, length, question_aware, model, `by`, `NAMES`, parts (count), score, held and unreachable
    with 95 % intervals, full (the full cache's score of the same group), unasked (share of the full cache's answers to
    prompts without such a rule that obey it nevertheless; rules only, by kind) and informative (the full cache obeys at
    least half, and at most half unasked).
    """
    parts = part_rows(rows)
    keys = [*TASK, *by]
    lines = []
    for names, group in parts.groupby([*keys, *NAMES], dropna=False, sort=False):
        numbers = group[list(MEASURES)].apply(pd.to_numeric).to_numpy(np.float64)
        line = dict(zip([*keys, *NAMES], names, strict=True)) | {"parts": len(group)}
        for name, found in zip(MEASURES, mean_intervals(numbers, kinds=["score", "any", "any"]), strict=True):
            bounds = (found.mean, found.low, found.high) if found else (None, None, None)
            line |= dict(zip((name, f"{name}_low", f"{name}_high"), bounds, strict=True))
        lines.append(line)
    if not lines:
        return pd.DataFrame(columns=[*keys, *NAMES, "parts", *MEASURES, "full", "unasked", "informative"])
    table = pd.DataFrame(lines)
    full = table.loc[table["method"] == FULL.method, [*keys, "score"]].rename(columns={"score": "full"})
    table = table.merge(full, on=keys, how="left")
    # By task, difficulty and kind of rule: how often the full cache's answers obey rules that they were not given.
    of_full = rows["method"] == FULL.method
    obeyed: dict[tuple[str, str, str], list[float]] = {}
    if "kind" in by:
        # Every answer is checked against the other prompts' rules of a kind that its own prompt lacks; rows may be
        # shipped without their texts.
        full = rows[of_full & (rows["metric"] == RULES) & rows[["parts", "prediction"]].notna().all(axis=1)]
        for (task, difficulty), group in full.groupby(["task", "difficulty"], sort=False):
            given = [{part["kind"]: part["answer"] for part in json.loads(text)} for text in group["parts"]]
            for answer, rules, tags in zip(group["prediction"], given, tags_of_rows(group), strict=True):
                others = [pair for one in given if one is not rules for pair in one.items() if pair[0] not in rules]
                for kind, spec in others:
                    obeys = score(RULES, answer, [spec], tags=tags)
                    obeyed.setdefault((str(task), str(difficulty), kind), []).append(obeys)
        # A secret kept unasked is one that the task `secret` does not tell: prompts of `leakage` without the rule.
        untold = 1 - rows.loc[of_full & (rows["task"] == SECRET), "score"]
        if len(untold):
            obeyed[KEPT[0], "", KEPT[1]] = untold.tolist()
    shares = []
    for line in table.to_dict("records"):
        task_and_kind = (str(line["task"]), str(line.get("kind", "")))
        # Of the kept secret all difficulties count together.
        difficulty = "" if task_and_kind == KEPT else str(line["difficulty"])
        answers = obeyed.get((task_and_kind[0], difficulty, task_and_kind[1]))
        shares.append(float(np.mean(answers)) if answers else np.nan)
    unasked = pd.Series(shares, dtype=float)
    return table.assign(unasked=unasked, informative=(table["full"] >= LEAST_SCORE) & ~(unasked > LEAST_SCORE))


def deaths(table: pd.DataFrame, by: Sequence[str] = ("kind",)) -> pd.DataFrame:
    """One row per informative group and method: the largest budget at which it is dead, with every smaller one.

    Dead: the score is below half of the full cache's. `table` is that of `part_table`. Columns: its task, `by`, arm,
    method, full, dies_at (budget as text; empty if it lives at every budget), and score there.
    """
    keys = [*TASK, *by, "arm", "method", "full"]
    lines = []
    informative = table[table["informative"] & (table["method"] != FULL.method)]
    for names, group in informative.groupby(keys, dropna=False, sort=False):
        dead = None
        for line in group.sort_values("budget").itertuples():
            if line.score >= line.full / 2:
                break
            dead = line
        found = {"dies_at": dead.asked if dead else "", "score": dead.score if dead else None}
        lines.append(dict(zip(keys, names, strict=True)) | found)
    return pd.DataFrame(lines, columns=[*keys, "dies_at", "score"])


# Whether evidence can be reached at all, by method and budget: the global eviction ratio, and the cliff of the score.
#
# After arXiv 2603.01426, which finds that answers are lost where evidence tokens lose their slots in all heads at once.

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
            arm = arm.sort_values("budget", ascending=False)
            before = [start, *arm["score"].tolist()[:-1]]
            losses = [None if was is None else was - now for was, now in zip(before, arm["score"], strict=True)]
            most = max((loss for loss in losses if loss is not None), default=0.0)
            marks = [loss is not None and loss == most and most > 0 for loss in losses]
            lines += arm.assign(loss=losses, cliff=marks).to_dict("records")
    return pd.DataFrame(lines)[[*TASK, *NAMES, "samples", *columns, "loss", "cliff"]]


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
    # Slots that a KV head holds at most; none where the budget is no number of slots.
    most_slots: list[float | None] = []
    for method, budget, unit, settings in written[["method", "budget", "budget_unit", "settings"]].to_numpy().tolist():
        given = json.loads(settings) if isinstance(settings, str) else {}
        buffer = given.get("buffer", 0) if given.get("decode", "budget") == "budget" else 0
        is_count = unit == "slots" and method != FULL.method
        most_slots.append(float(budget) + (buffer if buffer > 1 else 0) if is_count else None)
    numbers = pd.to_numeric(written["answer_tokens"])
    written = written.assign(
        tokens=numbers,
        longer=numbers / pd.to_numeric(written["full_tokens"]),
        right=written["score"] >= 1,
        loops=pd.to_numeric(written["loop_tokens"]) > 0,
        most_slots=most_slots,
    )
    lines = []
    for names, group in written.groupby([*TASK, *NAMES], dropna=False, sort=False):
        (found,) = mean_intervals(group[["score"]].to_numpy(float), kinds=["score"])
        bounds = (found.mean, found.low, found.high) if found else (None, None, None)
        right = group[group["right"]]
        wrong = group[~group["right"]]
        measured = {
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
        lines.append(dict(zip([*TASK, *NAMES], names, strict=True)) | measured)
    table = pd.DataFrame(lines)
    able = table.loc[table["method"] == FULL.method].set_index(TASK)["score"] >= LEAST_SCORE
    keys = pd.MultiIndex.from_frame(table[TASK])
    return table.assign(informative=able.reindex(keys).fillna(False).to_numpy(bool))[COLUMNS]
