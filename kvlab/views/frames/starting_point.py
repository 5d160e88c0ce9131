"""Suggest where to look first: a run, head and step, each with a short reason."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from kvlab.trace.reader import Run
from kvlab.views.frames.board import ExpectedAnswer, answer_texts, check_answer, judge_any, readers, reference_texts
from kvlab.views.frames.compare import headline

LEAST_SPREAD = 0.01  # of the heads' slots, below which a map of them has one colour

# What a page shows: all that a method does, budgets by head, merges, KeepKV's bound, or a wrong answer.
Prefer = Literal["any", "budgets", "merging", "bound", "wrong"]


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


@dataclass(frozen=True)
class Contents:
    """Numbers that tell how much a run has to show: slots merged and evicted, and how its heads differ.

    `uneven` is the spread of the heads' slots at the end relative to their mean, `differs` whether two heads far apart
    lost different tokens, `regret` its mean, `bounded` the share of steps in which KeepKV's bound exists.
    """

    is_full: bool
    merged: int
    evicted: int
    uneven: float
    differs: bool
    regret: float
    bounded: float

    def rank(self, prefer: Prefer) -> tuple[float, ...]:
        """Larger for a run with more to show."""
        # Merges count twice: only they have groups, votes and a history.
        kinds = 2 * (self.merged > 0) + (self.evicted > 0) + self.differs + (self.uneven > 0)
        first: dict[str, tuple[float, ...]] = {
            "budgets": (self.uneven > 0, self.regret > 0),
            "merging": (self.merged > 0,),
            "bound": (self.bounded, self.merged > 0),
        }
        return (self.is_full, *first.get(prefer, ()), kinds, self.uneven if prefer == "budgets" else 0.0)

    def words(self, prefer: Prefer) -> str:
        """These numbers as a phrase, the most important first; "" if all are zero."""
        parts = {
            "bound": f"a bound at {self.bounded:.0%} of its steps" if self.bounded else "",
            "merging": f"{self.merged:,} merge{'s' * (self.merged > 1)}" if self.merged else "",
            "evicting": f"{self.evicted:,} eviction{'s' * (self.evicted > 1)}" if self.evicted else "",
            "budgets": "heads with different budgets" if self.uneven else "",
            "tokens": "heads that keep different tokens" if self.differs else "",
        }
        shown = [name for name in parts if name == prefer] + [name for name in parts if name not in (prefer, "bound")]
        return ", ".join(parts[name] for name in shown if parts[name])


def suggest_run(runs: Sequence[Run], wanted: ExpectedAnswer | None, prefer: Prefer) -> SuggestedRuns:
    """The run a page opens with: the one that has most to show of what the page is about (`prefer`).

    For "wrong" the nearest miss; without an answer the run furthest from the full cache. Of equal runs the first; the
    full cache only if it is the only run.
    """
    compressed = [run for run in runs if run.record.method != "full"] or list(runs)
    if prefer == "wrong" and wanted is not None:
        texts = reference_texts(runs)
        judged = {run.record.run_id: judge_any(answer_texts(run, "free"), wanted.answers, texts) for run in compressed}
        for kind, result in (("nearly", "nearly right"), ("wrong", "wrong answer")):
            if found := [name for name, verdict in judged.items() if verdict.kind == kind]:
                return SuggestedRuns((found[0],), f"{result}: it wrote {judged[found[0]].wrote}")
    elif prefer == "wrong":
        known = headline(compressed).dropna(subset="mean_kl")
        if len(known):
            furthest = known.loc[known["mean_kl"].astype(float).idxmax()]
            distance = f"mean KL {furthest['mean_kl']:.3g}"
            return SuggestedRuns((furthest["run_id"],), f"furthest from the full cache: {distance}")
    contents = {}
    for run in compressed:
        names = ["step", "merged", "evicted", "live_slots", "regret", "score_error"]
        steps = run.select("steps", columns=names, ordered=False)
        slots = steps.loc[steps["step"] == steps["step"].max(), "live_slots"]
        uneven = float(slots.std(ddof=0) / slots.mean()) if len(slots) and slots.mean() else 0.0
        # Whether the first and the last head lost different tokens in the prefill: one read of two heads.
        model = run.record.model
        layers = [layer for layer in range(model.num_hidden_layers) if layer not in run.record.sliding_layers]
        differs = False
        if run.record.level == "full" and layers:
            places = ((layers[0], 0), (layers[-1], model.num_key_value_heads - 1))
            lost = [run.select("events", *place, columns=["step", "source"], ordered=False) for place in places]
            first, last = (set(events.loc[events["step"] == 0, "source"]) for events in lost)
            differs = first != last
        contents[run.record.run_id] = Contents(
            is_full=run.record.level == "full",
            merged=int(steps["merged"].fillna(0).sum()),
            evicted=int(steps["evicted"].fillna(0).sum()),
            uneven=uneven if uneven > LEAST_SPREAD else 0.0,
            differs=differs,
            regret=float(steps["regret"].fillna(0).mean()) if len(steps) else 0.0,
            bounded=float((steps["score_error"] < 1).mean()) if len(steps) else 0.0,
        )
    most = max(contents, key=lambda name: contents[name].rank(prefer))
    words = contents[most].words(prefer)
    return SuggestedRuns((most,), f"it has most to show: {words}" if words else "the first compressed run")


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
