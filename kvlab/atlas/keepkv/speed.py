"""Table 1: decode rate by method, beside the paper's."""

from __future__ import annotations

import pandas as pd

from kvlab.atlas import benchmarks
from kvlab.atlas.claims import speed as claims
from kvlab.atlas.exhibit import Choice, Drawn, Exhibit, Needs
from kvlab.atlas.sources import Sources
from kvlab.figures import throughput
from kvlab.figures.palette import Theme

PRESET = "keepkv-table1"


def draw_throughput(sources: Sources, choice: Choice, theme: Theme) -> tuple[Drawn, ...] | Needs:
    """Tokens a second at batch 8 over the full cache's, here at equal batch, in the paper at batch 2."""
    rows = benchmarks.newest(sources, PRESET)
    if rows.empty:
        return benchmarks.needs(sources, PRESET)
    frame = with_ratios(benchmarks.beside(sources, PRESET))
    figure = throughput.against_the_paper(frame, theme, "Decode rate against the full cache")
    reading, where = throughput.read_against_the_paper(frame), benchmarks.bench_origin(rows)
    claim = benchmarks.of_repeats(claims.twice(frame, *benchmarks.measured(sources, rows, PRESET)), rows)
    return (Drawn("rate", figure, frame, reading, where, claim, benchmarks.grey_numbers(PRESET)),)


def with_ratios(numbers: pd.DataFrame) -> pd.DataFrame:
    """The compressed caches' rates with both ratios; the paper divides by a full cache of batch 2, here of batch 8."""
    full = numbers.loc[numbers["method"] == "full", "value"]
    rates = numbers[numbers["method"] != "full"].copy()
    rates["paper_ratio"] = rates["paper_ratio"].fillna(rates["value"] / full.iloc[0] if len(full) else float("nan"))
    rates["setting"] = [
        f"batch {row.batch}, {row.context:,} tokens, {benchmarks.budget_words(row.budget)}"
        for row in rates.itertuples()
    ]
    columns = ["setting", "method", "budget", "our_ratio", "paper_ratio", "ours", "value", "why", "note"]
    return rates[columns].reset_index(drop=True)


TABLES = (
    Exhibit(
        "keepkv", "tab-1", "Tab 1", "Decode rate at 4k tokens and 20 %",
        "Tokens decoded in a second over the full cache's. Here at equal batch; the paper sets batch 8 of compressed "
        "caches against batch 2 of the full one, which is where most of its factor comes from.",
        "The cost of merging: H2O, which only evicts, at the same batch.",
        "bench", draw_throughput,
    ),
)  # fmt: skip
