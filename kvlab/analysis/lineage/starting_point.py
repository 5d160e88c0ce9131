"""Where to look first: the run, head, step and pair of runs that show most, each with the reason in a few words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
import pandas as pd

from kvlab.analysis.comparison.board import Wanted, ask, judge_any, phase_texts, readers, reference_texts
from kvlab.analysis.comparison.compare import at_same_bytes, headline
from kvlab.trace.reader import Run

Prefer = Literal["any", "merging", "wrong"]


class Head(NamedTuple):
    """A layer and KV head to look at first, and why."""

    layer: int
    head: int
    reason: str


class Step(NamedTuple):
    """A step to look at first, and why."""

    step: int
    reason: str


class Chosen(NamedTuple):
    """A run's id, or two of them, and why."""

    ids: tuple[str, ...]
    reason: str


def telling_run(runs: Sequence[Run], wanted: Wanted | None, prefer: Prefer) -> Chosen:
    """The run a page opens with: the one that merged most, or one that got the answer wrong, else the first compressed.

    Of wrong runs the one that came nearest; without an answer the one furthest from the full cache. The full cache
    drops nothing, so it is chosen only where it is alone.
    """
    compressed = [run for run in runs if run.record.method != "full"] or list(runs)
    if prefer == "merging":
        merged = {run.record.run_id: _merged(run) for run in compressed}
        most = max(merged, key=merged.__getitem__)
        if merged[most]:
            return Chosen((most,), f"it merges most: {merged[most]:,} slots")
    if prefer == "wrong" and (found := _wrong(runs, compressed, wanted)):
        return found
    return Chosen((compressed[0].record.run_id,), "the first compressed run")


def telling_pair(runs: Sequence[Run]) -> Chosen | None:
    """Two compressed runs of unlike methods at about equal bytes whose KL from the full cache differ most.

    None where no two runs are so: then nothing but the order tells runs apart.
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
        f"of unlike methods at equal bytes these differ most: mean KL {best['mean_kl']:.3g} and {worst['mean_kl']:.3g}"
    )
    return Chosen((str(best["run_id"]), str(worst["run_id"])), reason)


def telling_head(run: Run, runs: Sequence[Run], wanted: Wanted | None) -> Head:
    """The head that reads the fact most, where there is an answer; else the one whose output errs most on average."""
    if wanted is not None and wanted.facts:
        reading = readers(runs, ask(runs, wanted))
        reading = reading[~reading["layer"].isin(run.record.sliding_layers)]
        if len(reading):
            top = reading.iloc[0]
            where = int(top["layer"]), int(top["head"])
            return Head(*where, f"this head reads the fact most: {top['mass']:.1%} of the answer's attention")
    layers = [layer for layer in range(run.record.model.num_hidden_layers) if layer not in run.record.sliding_layers]
    first = layers[0] if layers else 0
    steps = run.select("steps", columns=["step", "layer", "head", "output_error"], ordered=False)
    means = steps.groupby(["layer", "head"])["output_error"].mean().dropna()
    if means.empty or not means.max() > 0:
        return Head(first, 0, "the first head")
    layer, head = means.idxmax()
    return Head(int(layer), int(head), f"the output of this head errs most: {means.max():.1%} on average")


def telling_step(run: Run, runs: Sequence[Run], wanted: Wanted | None) -> Step:
    """The step whose next token is furthest from the full cache's: of the answer's tokens, where there is an answer.

    Without KL the step after the prompt at which most slots left; the last where none did, or nothing was recorded.
    """
    forced = run.tokens[run.tokens["phase"] == "forced"].sort_values("position")
    kl = forced["kl"].to_numpy(np.float64)
    recorded = run.select("memory", columns=["step"], ordered=False)["step"]
    last = int(recorded.max()) if len(recorded) else 0
    kl = kl[: last + 1]
    answer = ask(runs, wanted).answer if wanted is not None else None
    inside = slice(answer[0], answer[1] + 1) if answer else slice(None)
    if len(kl[inside]) and np.nanmax(np.nan_to_num(kl[inside])) > 0:
        step = int(np.nanargmax(np.nan_to_num(kl[inside]))) + (answer[0] if answer else 0)
        what = "of the answer's tokens, the one" if answer else "the token"
        return Step(step, f"after it comes {what} furthest from the full cache (KL {kl[step]:.3g})")
    steps = run.select("steps", columns=["step", "evicted", "merged"], ordered=False)
    left = steps[steps["step"] > 0].groupby("step").sum().sum(axis=1)
    if len(left) and left.max() > 0:
        return Step(int(left.idxmax()), f"most slots left in it after the prompt: {int(left.max()):,}")
    return Step(last, "the last step")


def _merged(run: Run) -> int:
    return int(run.select("steps", columns=["merged"], ordered=False)["merged"].fillna(0).sum())


def _wrong(runs: Sequence[Run], compressed: Sequence[Run], wanted: Wanted | None) -> Chosen | None:
    if wanted is not None:
        texts = reference_texts(runs)
        judged = {run.record.run_id: judge_any(phase_texts(run, "free"), wanted.answers, texts) for run in compressed}
        for kind in ("nearly", "wrong"):
            if found := [name for name, verdict in judged.items() if verdict.kind == kind]:
                wrote = judged[found[0]].wrote
                told = "nearly got the answer" if kind == "nearly" else "got the answer wrong"
                return Chosen((found[0],), f"it {told}: it wrote {wrote}")
        return None
    means = {run.record.run_id: _mean_kl(run.tokens) for run in compressed}
    known = {name: value for name, value in means.items() if value is not None}
    if not known:
        return None
    furthest = max(known, key=known.__getitem__)
    return Chosen((furthest,), f"it is furthest from the full cache: mean KL {known[furthest]:.3g}")


def _mean_kl(tokens: pd.DataFrame) -> float | None:
    known = tokens.loc[tokens["phase"] == "forced", "kl"].dropna()
    return float(known.mean()) if len(known) else None
