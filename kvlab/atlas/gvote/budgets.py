"""GVote's claims on figures 1, 4 and 5: same quality at half the memory, and budgets that follow the task."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pandas as pd

from kvlab.atlas.scores import ABLE
from kvlab.common.formatting import mean_words
from kvlab.common.intervals import LEVEL, Interval
from kvlab.results.verdict import OPEN, Basis, Claim, Threshold, judge
from kvlab.views import scores as figures
from kvlab.views.base.words import number, percent

OURS = "gvote"
FULL = "full"
SAVES = "GVote needs half the memory of fixed budgets at the same accuracy."
FOLLOWS = "Different tasks need different budgets, and GVote finds them."
EVERYWHERE = "GVote's advantage holds across models."
DRAWS = 400
TWICE = Threshold(2.0, "half the memory, as the paper says: the others need twice as much")
DIFFERENT = Threshold(1.5, "half as much again: less than that one budget for all tasks could hold")


def saves(means: pd.DataFrame, prompts: pd.DataFrame) -> Claim:
    """Memory of fixed budgets at GVote's score, relative to GVote's; the best of them decides.

    `means` has one row per arm and budget (`means_over_tasks`), `prompts` one row per prompt, arm and budget: task,
    prompt, method, arm, asked, score, kept.
    """
    ours = means[means["method"] == OURS]
    full = means[means["method"] == FULL]
    if ours.empty or full.empty:
        return Claim(SAVES, OPEN, "GVote and the full cache were not both evaluated on every task.")
    if full["score"].iloc[0] < ABLE:
        beside = figures.line_text(full.iloc[0])
        return Claim(SAVES, OPEN, f"The full cache itself scores {beside} on these tasks.")
    rivals = means[~means["method"].isin((OURS, FULL))]
    if rivals.empty:
        return Claim(SAVES, OPEN, "No fixed budget was evaluated for comparison.")
    found = times_the_memory(prompts)
    score = float(ours["score"].iloc[0])
    parts = []
    for arm, group in rivals.groupby("arm", sort=False):
        enough = needed_usage(group.sort_values("kept"), score)
        never = f"not with {percent(group['kept'].max())}"
        parts.append(f"{arm} {percent(enough) if np.isfinite(enough) else never}")
    told = (
        "not measured on the same prompts" if found is None else mean_words(found.mean, found.low, found.high, found.n)
    )
    finding = (
        f"GVote scores {figures.line_text(ours.iloc[0])} with {figures.line_text(ours.iloc[0], 'kept', percent)} of "
        f"the tokens, the full cache {figures.line_text(full.iloc[0])}; to score as much the others need, by lines "
        f"through their means over the same tasks: {', '.join(parts)}. The best of them needs {told} times GVote's."
    )
    return judge(SAVES, found, TWICE, Basis(found.n if found else 0), finding)


def needed_usage(group: pd.DataFrame, score: float) -> float:
    """Smallest usage at which the line through (kept, score), sorted by kept, reaches `score`; infinite if never."""
    return _needed(group["kept"].to_numpy(float), group["score"].to_numpy(float), score)


def _needed(kept: np.ndarray, reached: np.ndarray, score: float) -> float:
    for place in range(len(kept)):
        if reached[place] >= score:
            if place == 0:
                return float(kept[0])
            share = (score - reached[place - 1]) / (reached[place] - reached[place - 1])
            return float(kept[place - 1] + share * (kept[place] - kept[place - 1]))
    return float("inf")


def times_the_memory(prompts: pd.DataFrame) -> Interval | None:
    """Memory of the best fixed budget at GVote's score, as a multiple of GVote's, with its interval over prompts.

    Prompts are resampled within tasks, for all arms at once. A line below the score needs the whole cache.
    """
    cells = prompts.assign(cell=list(zip(prompts["arm"], prompts["asked"], strict=True)))
    wide = cells.pivot_table(index=["task", "prompt"], columns="cell", values=["score", "kept"], aggfunc="first")
    wide = wide.dropna()
    methods = cells.drop_duplicates("cell").set_index("cell")["method"]
    ours = [cell for cell, method in methods.items() if method == OURS]
    lines: dict[str, list[tuple[str, str]]] = {}
    for cell, method in methods.items():
        if method not in (OURS, FULL):
            lines.setdefault(cell[0], []).append(cell)
    if wide.empty or not ours or not lines:
        return None

    cell_of = {cell: place for place, cell in enumerate(wide["kept"].columns)}
    scores, shares = (wide[name].to_numpy(float) for name in ("score", "kept"))
    mine = cell_of[ours[0]]
    budgets = [[cell_of[cell] for cell in line] for line in lines.values()]

    def best(weights: np.ndarray) -> float:
        score = weights @ scores
        kept = weights @ shares
        ordered = (sorted(line, key=kept.__getitem__) for line in budgets)
        needed = (_needed(kept[line], score[line], float(score[mine])) for line in ordered)
        return float(min(1.0, *needed) / kept[mine])

    return bootstrap(best, wide.index.get_level_values("task"))


def bootstrap(measure: Callable[[np.ndarray], float], tasks: pd.Index) -> Interval:
    """Bootstrap interval of a measure of means over tasks, resampling prompts within tasks; `measure` takes weights."""
    labels = pd.factorize(tasks)[0]
    groups = [np.flatnonzero(labels == label) for label in np.unique(labels)]
    random = np.random.default_rng(0)

    def weights(again: bool) -> np.ndarray:
        found = np.zeros(len(labels))
        for group in groups:
            times = random.multinomial(len(group), np.full(len(group), 1 / len(group))) if again else 1
            found[group] = times / len(group) / len(groups)
        return found

    low, high = np.quantile([measure(weights(True)) for _ in range(DRAWS)], [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(measure(weights(False)), float(low), float(high), len(labels))


def follows(used: pd.DataFrame, means: pd.DataFrame) -> Claim:
    """Share kept in the task with the largest relative to that with the smallest.

    `used` has one row per prompt (task, kept), `means` GVote's rows of the score table.
    """
    if len(means) < 2:
        return Claim(FOLLOWS, OPEN, "Only one kind of prompt was evaluated.", Basis(len(used)))
    least = means.loc[means["kept"].idxmin()]
    most = means.loc[means["kept"].idxmax()]
    ends = used[used["task"].isin((least["task"], most["task"]))]
    kept = ends["kept"].to_numpy(float)
    is_most = (ends["task"] == most["task"]).to_numpy()
    ratio = bootstrap(
        lambda weights: float(weights[is_most] @ kept[is_most] / (weights[~is_most] @ kept[~is_most])),
        pd.Index(ends["task"]),
    )
    low, high = (f"{line['task']} ({percent(line['kept'])})" for line in (least, most))
    within = used.groupby("task", sort=False)["kept"].std().mean()
    told = mean_words(ratio.mean, ratio.low, ratio.high, ratio.n, number)
    finding = (
        f"Of the tokens GVote keeps least in {low}, most in {high}: {told} times as much; prompts of one kind differ "
        f"by {percent(within)} (standard deviation)."
    )
    return judge(FOLLOWS, ratio, DIFFERENT, Basis(ratio.n), finding)


def everywhere(claims: dict[str, Claim], here: str) -> Claim:
    """`saves` on the model `here`, as this claim, which takes a second model; the finding names the others' verdicts.

    Verdicts of several models are never combined into one.
    """
    judged = replace(claims[here], paper=EVERYWHERE)
    others = "; ".join(f"{claim.verdict} on {name}" for name, claim in claims.items() if name != here)
    if others:
        return replace(judged, finding=f"On {here}: {judged.finding} On the other models: {others}.")
    more = "evaluate another with --model into the same folder"
    return Claim(EVERYWHERE, OPEN, f"Only 1 model was evaluated ({here}): {more}.")
