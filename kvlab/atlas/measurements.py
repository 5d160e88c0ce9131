"""The measurements that exhibits need, with results in the folders that the dashboard reads."""

from __future__ import annotations

from collections.abc import Sequence

from kvlab.requests.measurement import Benchmark, Budgets, RecordedComparison
from kvlab.results.provenance import under_paper_settings
from kvlab.results.sources import BENCH_FOLDER, Sources

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
