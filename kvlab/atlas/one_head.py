"""Common inputs of exhibits about one head of a recorded run."""

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
    """One layer and KV head of a run with lineage, events and token texts."""

    run: Run
    lineage: Lineage
    events: pd.DataFrame
    texts: list[str]


def head_of(run: Run, choice: Choice) -> Head:
    """The chosen head; raises UserError if the run has no such layer or head."""
    events = run.select("events", choice.layer, choice.head)
    lineage = fold(events, run.select("steps", choice.layer, choice.head))
    return Head(run, lineage, events, token_texts(run.tokens, lineage.tokens))


def recorded(sources: Sources, *methods: str, budgets: tuple[float | int, ...] = (0.2,)) -> Run | Needs:
    """A fully recorded run of one of these methods, or what is needed for one; the first method is suggested."""
    run = sources.run_of(*methods)
    if run is not None and run.record.level == "full" and not run.steps.empty:
        return run
    why = "recorded with events" if run is not None else "in this comparison"
    return Needs(f"There is no run of {methods[0]} {why}.", comparison(sources, methods[:1], budgets))
