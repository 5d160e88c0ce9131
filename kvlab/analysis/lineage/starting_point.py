"""Suggest where to look first: a run, head, step and pair of runs, each with a short reason."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
import pandas as pd

from kvlab.analysis.comparison.board import (
    ExpectedAnswer,
    check_answer,
    judge_any,
    phase_texts,
    readers,
    reference_texts,
)
from kvlab.analysis.comparison.compare import at_same_bytes, headline
from kvlab.trace.reader import Run

Prefer = Literal["any", "merging", "wrong"]


class Head(NamedTuple):
    """A suggested layer and KV head, and why."""

    layer: int
    head: int
    reason: str


class Step(NamedTuple):
    """A suggested step, and why."""

    step: int
    reason: str


class SuggestedRuns(NamedTuple):
    """One or two suggested run ids, and why."""

    ids: tuple[str, ...]
    reason: str


def suggest_run(runs: Sequence[Run], wanted: ExpectedAnswer | None, prefer: Prefer) -> SuggestedRuns:
    """The run a page opens with: the one that merged most, or one with a wrong answer, else the first compressed run.

    Of wrong runs the nearest miss; without an answer the one furthest from the full cache. The full cache is suggested
    only if it is the only run.
    """
    compressed = [run for run in runs if run.record.method != "full"] or list(runs)
    if prefer == "merging":
        merged = {run.record.run_id: _merged(run) for run in compressed}
        most = max(merged, key=merged.__getitem__)
        if merged[most]:
            return SuggestedRuns((most,), f"most merges: {merged[most]:,} slots")
    if prefer == "wrong" and (found := _wrong(runs, compressed, wanted)):
        return found
    return SuggestedRuns((compressed[0].record.run_id,), "the first compressed run")


def suggest_pair(runs: Sequence[Run]) -> SuggestedRuns | None:
    """Two compressed runs of different methods at about equal bytes whose KL from the full cache differs most.

    None if there is no such pair.
    """
    table = headline(runs)
    known = table[(table["method"] != "full") & table["mean_kl"].notna()]
    found = []
    for group in at_same_bytes(known):
        best = group.iloc[0]
        others = group[group["method"] != best["method"]]
        if len(others):
            worst = others.iloc[-1]
            found.append((float(worst["mean_kl"]) - float(best["mean_kl"]), best, worst))
    if not found:
        return None
    _, best, worst = max(found, key=lambda pair: pair[0])
    reason = (
        f"largest difference between methods at equal bytes: mean KL {best['mean_kl']:.3g} and {worst['mean_kl']:.3g}"
    )
    return SuggestedRuns((str(best["run_id"]), str(worst["run_id"])), reason)


def suggest_head(run: Run, runs: Sequence[Run], wanted: ExpectedAnswer | None) -> Head:
    """The head that attends to the fact most if there is an answer; else the one with the largest mean output error."""
    if wanted is not None and wanted.facts:
        reading = readers(runs, check_answer(runs, wanted))
        reading = reading[~reading["layer"].isin(run.record.sliding_layers)]
        if len(reading):
            top = reading.iloc[0]
            where = int(top["layer"]), int(top["head"])
            return Head(*where, f"this head attends to the fact most: {top['mass']:.1%} of the answer's attention")
    layers = [layer for layer in range(run.record.model.num_hidden_layers) if layer not in run.record.sliding_layers]
    first = layers[0] if layers else 0
    steps = run.select("steps", columns=["step", "layer", "head", "output_error"], ordered=False)
    means = steps.groupby(["layer", "head"])["output_error"].mean().dropna()
    if means.empty or not means.max() > 0:
        return Head(first, 0, "the first head")
    layer, head = means.idxmax()
    return Head(int(layer), int(head), f"this head has the largest output error: {means.max():.1%} on average")


def suggest_step(run: Run, runs: Sequence[Run], wanted: ExpectedAnswer | None) -> Step:
    """The step whose next token is furthest from the full cache's, among the answer's tokens if there is an answer.

    Without KL, the step after the prompt in which most slots left; the last step if none did or nothing was recorded.
    """
    forced = run.tokens[run.tokens["phase"] == "forced"].sort_values("position")
    kl = forced["kl"].to_numpy(np.float64)
    recorded = run.select("memory", columns=["step"], ordered=False)["step"]
    last = int(recorded.max()) if len(recorded) else 0
    kl = kl[: last + 1]
    answer = check_answer(runs, wanted).answer if wanted is not None else None
    inside = slice(answer[0], answer[1] + 1) if answer else slice(None)
    if len(kl[inside]) and np.nanmax(np.nan_to_num(kl[inside])) > 0:
        step = int(np.nanargmax(np.nan_to_num(kl[inside]))) + (answer[0] if answer else 0)
        what = "the answer's token" if answer else "the token"
        return Step(step, f"followed by {what} furthest from the full cache (KL {kl[step]:.3g})")
    steps = run.select("steps", columns=["step", "evicted", "merged"], ordered=False)
    left = steps[steps["step"] > 0].groupby("step").sum().sum(axis=1)
    if len(left) and left.max() > 0:
        return Step(int(left.idxmax()), f"most slots left in this step: {int(left.max()):,}")
    return Step(last, "the last step")


def _merged(run: Run) -> int:
    return int(run.select("steps", columns=["merged"], ordered=False)["merged"].fillna(0).sum())


def _wrong(runs: Sequence[Run], compressed: Sequence[Run], wanted: ExpectedAnswer | None) -> SuggestedRuns | None:
    if wanted is not None:
        texts = reference_texts(runs)
        judged = {run.record.run_id: judge_any(phase_texts(run, "free"), wanted.answers, texts) for run in compressed}
        for kind in ("nearly", "wrong"):
            if found := [name for name, verdict in judged.items() if verdict.kind == kind]:
                wrote = judged[found[0]].wrote
                result = "nearly right" if kind == "nearly" else "wrong answer"
                return SuggestedRuns((found[0],), f"{result}: it wrote {wrote}")
        return None
    means = {run.record.run_id: _mean_kl(run.tokens) for run in compressed}
    known = {name: value for name, value in means.items() if value is not None}
    if not known:
        return None
    furthest = max(known, key=known.__getitem__)
    return SuggestedRuns((furthest,), f"furthest from the full cache: mean KL {known[furthest]:.3g}")


def _mean_kl(tokens: pd.DataFrame) -> float | None:
    known = tokens.loc[tokens["phase"] == "forced", "kl"].dropna()
    return float(known.mean()) if len(known) else None
