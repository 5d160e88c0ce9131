"""What exhibits about one head of a recorded run begin with."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from kvlab.analysis.lineage import Lineage, fold
from kvlab.analysis.lineage.tables import token_texts
from kvlab.atlas.exhibit import Choice, Needs
from kvlab.atlas.measurements import comparison
from kvlab.results.sources import Sources
from kvlab.trace.reader import Run


@dataclass(frozen=True)
class Head:
    """One layer and KV head of a run: what became of its tokens, its events and its text."""

    run: Run
    lineage: Lineage
    events: pd.DataFrame
    texts: list[str]


def head_of(run: Run, choice: Choice) -> Head:
    """The chosen head; raises UserError where the run has no such layer or head."""
    events = run.select("events", choice.layer, choice.head)
    lineage = fold(events, run.select("steps", choice.layer, choice.head))
    return Head(run, lineage, events, token_texts(run.tokens, lineage.tokens))


def recorded(sources: Sources, *methods: str, budgets: tuple[float | int, ...] = (0.2,)) -> Run | Needs:
    """A run of one of these methods, recorded in full, or what is missing; the first method is the one asked for."""
    run = sources.run_of(*methods)
    if run is not None and run.record.level == "full" and not run.steps.empty:
        return run
    why = "recorded with its events" if run is not None else "in this comparison"
    return Needs(f"There is no run of {methods[0]} {why}.", comparison(sources, methods[:1], budgets))
