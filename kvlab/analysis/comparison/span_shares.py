"""Shares of each span of a prompt that every run of a comparison holds, and whether its answer is right."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from kvlab.analysis.comparison.prompt_spans import Span
from kvlab.core.choice import FULL
from kvlab.trace.reader import Run
from kvlab.views.frames.board import ExpectedAnswer, answer_texts, judge_any, places, reference_texts
from kvlab.views.frames.wall import Fate, Wall

DEAD = 0.05  # share of (layer, head, token) below which a span is dead
OF_RUN = ("run_id", "label", "method", "row", "column", "slots")


def shares_of_spans(wall: Wall, spans: Sequence[Span], step: int) -> pd.DataFrame:
    """One row per span: shares of its (layer, KV head, token) after `step`.

    Columns: span, first (token), tokens, kept (a slot of its own that holds nothing else), merged (a slot shared with
    other tokens), dropped (no slot), held (kept or merged) and unreachable (share of its tokens with no slot in any
    layer and head).
    """
    fates = wall.fates(step)
    rows = []
    for span in spans:
        inside = fates[:, span.positions]
        gone = inside == Fate.DROPPED
        kept = float((inside == Fate.KEPT).mean())
        dropped = float(gone.mean())
        rows.append(
            {
                "span": span.label,
                "first": span.first,
                "tokens": inside.shape[1],
                "kept": kept,
                "merged": max(1 - kept - dropped, 0.0),
                "dropped": dropped,
                "held": 1 - dropped,
                "unreachable": float(gone.all(axis=0).mean()),
            }
        )
    return pd.DataFrame(rows)


def spans_by_run(runs: Sequence[Run], walls: Sequence[Wall], spans: Sequence[Span], step: int) -> pd.DataFrame:
    """`shares_of_spans` of each run, methods in the order of runs, the full cache first, large budgets before small.

    Further columns: run_id, label, method, row and column (`places`: method and budget), slots (live slots after the
    prompt, a share of its (layer, head, token)), step, dead (held below `DEAD`, or unreachable 1) and first_dead (the
    largest budget of its method at which the span is dead).
    """
    parts = []
    for run, wall, (row, column) in zip(runs, walls, places(runs), strict=True):
        read = wall.fates(0)
        of_run = (run.record.run_id, run.record.label, run.record.method, row, column, float((read < 2).mean()))
        parts.append(shares_of_spans(wall, spans, step).assign(**dict(zip(OF_RUN, of_run, strict=True)), step=step))
    rows = list(dict.fromkeys(part["row"].iloc[0] for part in sorted(parts, key=_after_full)))
    parts.sort(key=lambda part: (rows.index(part["row"].iloc[0]), -part["slots"].iloc[0]))
    frame = pd.concat(parts, ignore_index=True)
    frame["dead"] = (frame["held"] < DEAD) | (frame["unreachable"] == 1)
    frame["first_dead"] = frame["dead"] & (frame.groupby(["row", "span"])["dead"].cumsum() == 1)
    return frame


def _after_full(part: pd.DataFrame) -> bool:
    return bool(part["method"].iloc[0] != FULL.method)


def answer_verdicts(runs: Sequence[Run], wanted: ExpectedAnswer | None) -> Mapping[str, str]:
    """The kind of verdict on each run's own text, by run id; empty without an expected answer."""
    if wanted is None:
        return {}
    texts = reference_texts(runs)
    judged = {run.record.run_id: judge_any(answer_texts(run, "free"), wanted.answers, texts) for run in runs}
    return {run_id: verdict.kind for run_id, verdict in judged.items()}


def several_budgets(frame: pd.DataFrame) -> bool:
    """Whether a method has three budgets or more, so that lines over budgets tell more than a map of runs."""
    return bool(frame.groupby("row")["run_id"].nunique().max() >= 3)


def why_unknown(run: Run, first: Run) -> str:
    """Why the spans of `first` say nothing of this run's cache, as the rest of a sentence; "" if they do."""
    record = run.record
    if record.level != "full":
        return f"was recorded at level {record.level}, without events"
    if any(problem.startswith(("events", "tokens", "steps")) for problem in run.problems):
        return "lost a part of what it recorded"
    if run is not first and not np.array_equal(_prompt_ids(run), _prompt_ids(first)):
        return "has read other tokens"
    return ""


def _prompt_ids(run: Run) -> np.ndarray:
    return run.tokens.loc[run.tokens["phase"] == "prompt", "id"].to_numpy()
