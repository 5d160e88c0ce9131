"""Tables of a prompt's parts: which rule or question survives which method and budget, by kind, order and position.

A part is one of several rules or questions of a prompt (`kvlab.evaluation.work`). A kind of rule says something
about a cache only if the full cache obeys it, and not without being told.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from kvlab.common.answer_match import LEAST_SCORE
from kvlab.common.intervals import mean_intervals
from kvlab.core.choice import FULL
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
    known = _unasked(rows) if "kind" in by else {}
    unasked = pd.Series([known.get(_kind_of(line), np.nan) for line in table.to_dict("records")], dtype=float)
    return table.assign(unasked=unasked, informative=(table["full"] >= LEAST_SCORE) & ~(unasked > LEAST_SCORE))


def _kind_of(line: Mapping[str, Any]) -> tuple[str, str, str]:
    """What unasked answers are counted by: task, difficulty and kind of rule; of the kept secret all difficulties."""
    task = str(line["task"])
    kind = str(line.get("kind", ""))
    return task, "" if (task, kind) == KEPT else str(line["difficulty"]), kind


def _unasked(rows: pd.DataFrame) -> dict[tuple[str, str, str], float]:
    """By `_kind_of`: how often the full cache's answers obey rules of that kind that they were not given.

    Every answer is checked against the other prompts' rules of a kind that its own prompt lacks. A secret that is kept
    unasked is one that the task `secret` does not tell, which has the prompts of `leakage` without the rule.
    """
    known = rows[["parts", "prediction"]].notna().all(axis=1)  # rows may be shipped without their texts
    full = rows[(rows["method"] == FULL.method) & (rows["metric"] == RULES) & known]
    found: dict[tuple[str, str, str], list[float]] = {}
    for (task, difficulty), group in full.groupby(["task", "difficulty"], sort=False):
        given = [{part["kind"]: part["answer"] for part in json.loads(text)} for text in group["parts"]]
        for answer, own, tags in zip(group["prediction"], given, tags_of_rows(group), strict=True):
            others = [pair for one in given if one is not own for pair in one.items() if pair[0] not in own]
            for kind, spec in others:
                found.setdefault((str(task), str(difficulty), kind), []).append(score(RULES, answer, [spec], tags=tags))
    untold = 1 - rows.loc[(rows["method"] == FULL.method) & (rows["task"] == SECRET), "score"]
    if len(untold):
        found[KEPT[0], "", KEPT[1]] = untold.tolist()
    return {pair: float(np.mean(values)) for pair, values in found.items()}


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
