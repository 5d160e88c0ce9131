"""The measurements that exhibits need, with results in the folders that the dashboard reads, and a head of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from kvlab.atlas.exhibit import Choice, Needs
from kvlab.requests.measurement import Benchmark, Budgets, RecordedComparison
from kvlab.results.sources import BENCH_FOLDER, Sources
from kvlab.trace.reader import Run
from kvlab.views.base.provenance import under_paper_settings
from kvlab.views.frames.lineage import Lineage, fold, token_texts

SAMPLE = "needle_in_a_story"


def comparison(sources: Sources, methods: Sequence[str], budgets: Budgets = (0.2,)) -> RecordedComparison:
    """A comparison of the current model over a shipped prompt, in full, each method under its paper's settings.

    `methods` are written as on the command line.
    """
    published = tuple(map(under_paper_settings, methods))
    return RecordedComparison(SAMPLE, published, tuple(budgets), sources.root, model=sources.measured_model)


def benchmark(sources: Sources, preset: str, scale: int = 0, shorten: int = 0, device: str = "") -> Benchmark:
    """A preset's benchmark, smaller where `scale` or `shorten` are given."""
    return Benchmark(preset, sources.root / BENCH_FOLDER, device, scale, shorten)


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


def recorded_run(sources: Sources, *methods: str, budgets: tuple[float | int, ...] = (0.2,)) -> Run | Needs:
    """A fully recorded run of one of these methods, or what is needed for one; the first method is suggested."""
    run = sources.run_of(*methods)
    if run is not None and run.record.level == "full" and not run.steps.empty:
        return run
    why = "recorded with events" if run is not None else "in this comparison"
    return Needs(f"There is no run of {methods[0]} {why}.", comparison(sources, methods[:1], budgets))
