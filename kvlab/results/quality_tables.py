"""Tables and views of evaluation rows: scores, ranks with ties, bytes, needles, prompts.

Rows are those of one model, question-aware or not (`kvlab.evaluation.results.rows.ROWS`).
"""

import json
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from kvlab.common.formatting import join_words, model_title, prompts
from kvlab.common.intervals import Interval, Kind, mean_intervals
from kvlab.core import FULL, UserError, format_spec
from kvlab.evaluation.results.summary import over_tasks, with_measures
from kvlab.evaluation.scoring.metrics import higher_is_better
from kvlab.results.informative import informative
from kvlab.results.score_tables import NAMES, PROMPT, score_table, shared_by_all_arms, with_names
from kvlab.views.base.view import view
from kvlab.views.frames.trade_off import HELD
from kvlab.views.needle_map import caption_needle_map, needle_map
from kvlab.views.quality import caption_rank_table, caption_score_against_bytes, rank_table, score_against_bytes
from kvlab.views.scores import caption_score_against_budget, score_against_budget

ALL_TASKS = "all tasks"
MOST_CELLS = 120
NEEDLE = "needle"  # in the names of retrieval tasks
PAIR = [*PROMPT, "question_aware"]
MOST_NAMED = 4  # tasks
WHERE = {True: "in sight", False: "not in sight"}  # of the question, by question_aware
BYTES = ("score", "live_bytes", "bytes_read", "allocated_bytes", "kept")


def what_was_evaluated(rows: pd.DataFrame) -> str:
    """Model, tasks, prompts and place of the question, in one line."""
    tasks = rows["task"].drop_duplicates().tolist()
    named = join_words(tasks) if len(tasks) <= MOST_NAMED else f"{len(tasks)} tasks"
    tokens = rows["prompt_tokens"].dropna()
    ends = list(dict.fromkeys(f"{end:,.0f}" for end in (tokens.min(), tokens.max()))) if len(tokens) else []
    length = f" of {' to '.join(ends)} tokens" if ends else ""
    methods = rows.loc[rows["method"] != FULL.method, ["method", "hyper_parameters"]].drop_duplicates()
    count = f"{len(methods)} {'method' if len(methods) == 1 else 'methods'}"
    aware = " and ".join(WHERE[bool(one)] for one in sorted(rows["question_aware"].unique(), reverse=True))
    parts = [
        model_title(str(rows["model"].iloc[0])),
        named,
        f"{prompts(len(rows[PROMPT].drop_duplicates()))}{length}",
        f"question {aware} when compressed",
        f"{count} against the full cache",
    ]
    return " · ".join(parts)


def label_rows(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows with `NAMES`, which a table of scores already has; arms are named with all options and the preset."""
    named = rows if "arm" in rows else with_names(rows)
    options = [json.loads(text) for text in named["options"]]
    return named.assign(arm=[format_spec(*pair) for pair in zip(named["method"], options, strict=True)])


def scores(rows: pd.DataFrame) -> pd.DataFrame:
    """`score_table` with arms named as in `label_rows`."""
    return label_rows(score_table(rows))


def means(rows: pd.DataFrame, table: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
    """One row per group of `by`: means over tasks, of the rows shown in `table` that all arms have."""
    shown = shared_by_all_arms(table[table["higher"]] if table["higher"].any() else table)
    keys = ["task", *NAMES]
    measured = label_rows(with_measures(rows)).merge(shown[keys].drop_duplicates(), on=keys)
    return over_tasks(measured, by)


def budgets(rows: pd.DataFrame) -> list[str]:
    """Requested budgets as text, those with the most arms first."""
    table = label_rows(rows[rows["method"] != FULL.method])
    count = table.groupby("asked", sort=False)["arm"].nunique()
    return count.sort_values(ascending=False, kind="stable").index.tolist()


def ranks(rows: pd.DataFrame, budget: str) -> pd.DataFrame:
    """One row per task and arm at one budget, with its rank; also over the tasks where more is better, if several.

    `rank` is one plus the number of arms that are better on the same prompts, i.e. whose paired difference has a 95 %
    interval above zero; `level` marks rank 1. Columns: task, arm, method, rank, level, prompts, score and behind
    (paired difference of the best mean to this arm), both with `_low` and `_high`. With one prompt all ranks are 1.
    """
    table = label_rows(rows)
    table = table[(table["asked"] == budget) & (table["method"] != FULL.method)]
    table = table.assign(higher=table["metric"].map(higher_is_better))
    groups = [(str(task), group) for task, group in table.groupby("task", sort=False)]
    better = table[table["higher"]]
    if better["task"].nunique() > 1:
        groups.append((ALL_TASKS, better))
    lines = []
    for task, group in groups:
        sign = 1.0 if group["higher"].all() else -1.0
        tasks = group["task"].nunique()
        found = over_tasks(group, ["arm", "method"], ("score",)).set_index("arm")
        arms = found.index.tolist()
        # Scores by prompt and arm, and of every pair of arms how much better the first is: (prompts, pairs).
        number = group.groupby(PAIR, dropna=False, sort=False).ngroup()
        scores_of = (sign * group["score"]).groupby([number, group["arm"]]).mean().unstack()[arms].to_numpy(float)
        first, second = np.triu_indices(len(arms), 1)
        difference = pd.DataFrame(scores_of[:, first] - scores_of[:, second])
        # A prompt with the question in sight and out of sight counts once, with its mean.
        once = group.assign(pair=number).drop_duplicates("pair").sort_values("pair")
        prompt = once.groupby(PROMPT, dropna=False, sort=False).ngroup().to_numpy()
        paired = difference.groupby(prompt).mean().to_numpy()
        labels = once["task"].to_numpy()[np.unique(prompt, return_index=True)[1]].tolist()
        kind: Kind = "difference" if sign > 0 else "any"
        intervals = mean_intervals(paired, labels, kinds=[kind] * len(first))
        # gaps[i, j]: how much better arm i is than arm j, on the prompts that both have.
        gaps: dict[tuple[int, int], Interval] = {}
        for one, other, interval in zip(first.tolist(), second.tolist(), intervals, strict=True):
            if interval is not None:
                gaps[one, other] = interval
                gaps[other, one] = replace(interval, mean=-interval.mean, low=-interval.high, high=-interval.low)
        best = int(np.argmax(sign * found["score"].to_numpy(float)))
        for at, (arm, mean) in enumerate(found.iterrows()):
            of_others = [gaps[other, at] for other in range(len(arms)) if (other, at) in gaps]
            rank = 1 + sum(gap.n > tasks and gap.low > 0 for gap in of_others)
            behind = gaps.get((best, at)) or Interval(0.0, 0.0, 0.0, int(mean["prompts"]))
            lines.append(
                {
                    "task": task,
                    "arm": arm,
                    "method": mean["method"],
                    "rank": rank,
                    "level": rank == 1,
                    "prompts": int(mean["prompts"]),
                    "score": mean["score"],
                    "score_low": mean["score_low"],
                    "score_high": mean["score_high"],
                    "behind": behind.mean,
                    "behind_low": behind.low,
                    "behind_high": behind.high,
                }
            )
    return pd.DataFrame(lines)


def by_bytes(rows: pd.DataFrame, axis: str = "live_bytes") -> pd.DataFrame:
    """One row per arm and budget: mean score over tasks, mean bytes per prompt, and whether it is Pareto-optimal.

    An arm that scores 0 is not: the least bytes of all would make it so. `axis`: the bytes that count, live_bytes or
    bytes_read. Only tasks where more is better and that all arms have, so that skipping hard tasks does not pay.
    Columns: `NAMES`, score, live_bytes, bytes_read, allocated_bytes, kept with `_low` and `_high`, prompts, tasks,
    frontier.
    """
    table = label_rows(with_measures(rows))
    table = table[table["metric"].map(higher_is_better)]
    asked_of = table.groupby("task")["arm"].nunique()
    table = table[table["task"].isin(asked_of[asked_of == asked_of.max()].index)]
    found = over_tasks(table, NAMES, BYTES)
    # Which points are Pareto-optimal in size (lower) and score (higher).
    size = found[axis].to_numpy(float)
    score = found["score"].to_numpy(float)
    return found.assign(
        frontier=[
            bool(p) and not bool(np.any((size <= s) & (score >= p) & ((size < s) | (score > p))))
            for s, p in zip(size, score, strict=True)
        ]
    )


def prompts_behind(rows: pd.DataFrame, task: str, arm: str, budget: str) -> pd.DataFrame:
    """The prompts of a cell, worst first: largest loss against the full cache, then lowest score.

    Columns of the rows plus `full` (the full cache's score on the prompt) and `lost` (how much worse it got).
    """
    table = label_rows(rows)
    cell = table[(table["task"] == task) & (table["arm"] == arm) & (table["asked"] == budget)]
    measured = with_measures(rows[rows["task"] == task])
    full = measured[measured["method"] == FULL.method].drop_duplicates(PAIR)[[*PAIR, "score", "prediction"]]
    both = cell.merge(full, on=PAIR, how="left", suffixes=("", "_full"))
    sign = np.where(both["metric"].map(higher_is_better), 1.0, -1.0)
    both = both.rename(columns={"score_full": "full"}).assign(lost=sign * (both["score_full"] - both["score"]))
    order = both.assign(_goodness=sign * both["score"])
    return order.sort_values(["lost", "_goodness"], ascending=[False, True], kind="stable").drop(columns="_goodness")


def answer_texts(rows: pd.DataFrame) -> pd.Series:
    """The answers of each prompt as plain text, several with commas; empty for a prompt without."""
    return rows["answer"].map(lambda text: ", ".join(json.loads(text)) or None, na_action="ignore")


@view("score_by_budget", title="Score by budget", page="quality")
def score_by_budget(rows: pd.DataFrame) -> pd.DataFrame:
    """`scores`; of the tasks that the model can do, its `attrs` have the means, and a sentence on the others."""
    table = scores(rows)
    telling, left_out = informative(rows)
    table.attrs |= {"means": means(telling, table, ["arm"]).to_dict("records"), "left_out": left_out}
    return table


score_by_budget.figure(score_against_budget)


@score_by_budget.caption
def describe_score_by_budget(frame: pd.DataFrame) -> str:
    return caption_score_against_budget(pd.DataFrame(frame.attrs["means"]))


@view("ranks", title="Ranks", page="quality")
def ranks_at(rows: pd.DataFrame, budget: str | None = None) -> pd.DataFrame:
    """`ranks` over the tasks that the model can do, at the `budget` (default: that with the most methods)."""
    budget = budget or budgets(rows)[0]
    table = ranks(informative(rows)[0], budget)
    table.attrs["budget"] = budget
    return table


ranks_at.figure(rank_table)
ranks_at.caption(caption_rank_table)


@view("score_by_bytes", title="Score by bytes", page="quality")
def score_by_bytes(rows: pd.DataFrame, axis: str = HELD) -> pd.DataFrame:
    """`by_bytes`; raises UserError where less is better in every task."""
    table = by_bytes(informative(rows)[0], axis)
    if table.empty:
        raise UserError("None of these tasks has a score for which more is better, so there is no frontier.")
    return table


score_by_bytes.figure(score_against_bytes)
score_by_bytes.caption(caption_score_against_bytes)


@view("needles", title="Needle retrieval by length and depth", page="quality")
def needles_at(rows: pd.DataFrame, budget: str | None = None) -> pd.DataFrame:
    """The cells of `needle_map` at the `budget` (default: that with the most methods); its `attrs` have the means.

    Of the needle tasks if there are any, else of all tasks with several depths.

    Raises:
        UserError: no task has prompts at several depths that form a grid.
    """
    known = rows.dropna(subset="depth")
    known = known[known["metric"].map(higher_is_better).astype(bool)]
    placed = known.groupby("task")["depth"].nunique()
    names = placed[placed > 1].index
    hiding = [name for name in names if NEEDLE in name]
    known = known[known["task"].isin(hiding or names)]
    on_grid = known.groupby(["length", "depth"])["index"].nunique()
    if known.empty or len(on_grid) > MOST_CELLS:  # random depths form no grid
        raise UserError("A needle map needs prompts at several depths, for example 0, 0.25, 0.5, 0.75, 1.")
    table = label_rows(known)
    table = table[(table["method"] == FULL.method) | (table["asked"] == (budget or budgets(rows)[0]))]
    full = table["method"] == FULL.method
    table = table.assign(row=np.where(full, "full cache", table["arm"] + " " + table["asked"]))
    cells = over_tasks(table, ["row", "length", "depth"], ("score",))
    if cells.empty:
        raise UserError("A needle map needs prompts at several depths, for example 0, 0.25, 0.5, 0.75, 1.")
    cells.attrs["means"] = over_tasks(table, ["row"], ("score",)).to_dict("records")
    return cells


needles_at.figure(needle_map)


@needles_at.caption
def describe_needles(frame: pd.DataFrame) -> str:
    return caption_needle_map(frame, pd.DataFrame(frame.attrs["means"]))
