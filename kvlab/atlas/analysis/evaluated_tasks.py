"""The tasks of an evaluation and the length of their prompts."""

from __future__ import annotations

import pandas as pd


def evaluated_tasks(rows: pd.DataFrame) -> pd.DataFrame:
    """One row a task of evaluation rows: metric, prompts, and shortest, mean and longest prompt in tokens."""
    prompts = rows.drop_duplicates(["task", "difficulty", "content", "length", "depth", "index", "seed"])
    groups = prompts.groupby("task", sort=False)
    table = groups["prompt_tokens"].agg(prompts="size", shortest="min", mean="mean", longest="max")
    return table.assign(metric=groups["metric"].first()).reset_index()
