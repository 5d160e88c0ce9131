"""ZSMerge's figure 3 and tables 1 and 2: memory, speed and summaries, measured and published."""

from __future__ import annotations

import pandas as pd

from kvlab.atlas import benchmarks
from kvlab.atlas.exhibit import Choice, Drawn, Needs
from kvlab.atlas.papers import grey_table, paper_gap, paper_values
from kvlab.atlas.scores import OWN_TASKS, Arm, Experiment, caption_table, contest, gap, gap_text
from kvlab.requests.measurement import Measurement
from kvlab.results.sources import Sources
from kvlab.results.verdict import Claim
from kvlab.views import scores, speed
from kvlab.views.base.palette import Theme
from kvlab.views.base.words import percent

FIGURE_3 = "zsmerge-fig3"
MEASURES = {"decode rate": "rate", "weights and cache": "bytes"}
ARMS = (Arm("h2o"), Arm("less"), Arm("zsmerge"))
SUMMARIES = Experiment("zsmerge-tab-2", ARMS, budgets=(0.2, 0.1, 0.05), tasks=OWN_TASKS, only_budgets=True)


def draw_lengths(sources: Sources, choice: Choice, theme: Theme) -> tuple[Drawn, ...] | Needs:
    """Figure 3: bytes and decode rate by context length."""
    rows = benchmarks.newest(sources, FIGURE_3)
    if rows.empty:
        return benchmarks.needs(sources, FIGURE_3)
    frame = _lengths(rows)
    figure = speed.over_length(frame, theme)
    caption = speed.caption_over_length(frame)
    where = benchmarks.bench_origin(rows)
    grey = benchmarks.grey_numbers(FIGURE_3)
    shapes = benchmarks.shapes_of(rows)
    claim = benchmarks.of_repeats(
        benchmarks.steady(frame, *benchmarks.paper_measurement(sources, rows, FIGURE_3)), rows
    )
    return (Drawn("lengths", figure, frame, caption, where, claim, grey, model=shapes),)


def _lengths(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of the best full cache per length and of ZSMerge."""
    chosen = rows[rows["figure"].isin(MEASURES) & (rows["is_full"] | (rows["method"] == "zsmerge"))]
    full = chosen["is_full"]
    return pd.DataFrame(
        {
            "name": ["full cache" if is_full else "ZSMerge" for is_full in full],
            "method": ["full" if is_full else "zsmerge" for is_full in full],
            "context": chosen["context"],
            "measure": chosen["figure"].map(MEASURES),
            "value": chosen["median"],
            "spread": chosen["iqr"],
            "status": chosen["status"],
        }
    ).reset_index(drop=True)


def _ratios(numbers: pd.DataFrame) -> pd.DataFrame:
    """The rates of the compressed caches with a description of the request size."""
    rates = numbers[(numbers["figure"] == "request rate") & (numbers["method"] != "full")]
    setting = [
        f"{row.model.removeprefix('shape:')}, {row.context:,}+{row.new_tokens:,}, batch {row.batch}"
        for row in rates.itertuples()
    ]
    columns = ["method", "budget", "our_ratio", "paper_ratio", "ours", "value", "why", "note"]
    return rates.assign(setting=setting)[["setting", *columns]].reset_index(drop=True)


def draw_summaries(sources: Sources, choice: Choice, theme: Theme) -> tuple[Drawn, ...] | Needs:
    """Table 2: scores at 20, 10 and 5 %; ROUGE-L if summaries were evaluated."""
    table = SUMMARIES.scores(sources)
    rows = SUMMARIES.rows(sources)
    if table.empty:
        return SUMMARIES.needs(sources)
    figure = scores.benchmark_table(table, theme, "H2O, LESS and ZSMerge at 20, 10 and 5 %")
    grey = grey_table(paper_values("zsmerge", "tab-2"))
    claim = _above(rows, SUMMARIES.more_prompts(sources))
    return (Drawn("scores", figure, table, caption_table(rows, table), SUMMARIES.origin(sources), claim, grey),)


def _above(rows: pd.DataFrame, settle: Measurement | None) -> Claim:
    paper = "ZSMerge scores above H2O at every budget, most so at the smallest (5 %)."
    budgets = sorted(rows.loc[rows["method"] == "zsmerge", "budget"].unique())
    gaps = {budget: gap(rows, "zsmerge", "h2o", budget) for budget in budgets}
    words = ", ".join(f"{100 * budget:g} % {gap_text(one)}" for budget, one in gaps.items())
    finding = f"Mean score of ZSMerge minus H2O on the same prompts, with its 95 % interval: {words or 'none'}."
    values = paper_values("zsmerge", "tab-2")
    printed = {percent(budget): paper_gap(values, "zsmerge", "h2o", percent(budget)) for budget in budgets}
    return contest(paper, {percent(budget): one for budget, one in gaps.items()}, finding, settle, printed=printed)


DRAWINGS = {
    "fig-3": draw_lengths,
    # Tokens per second of whole requests, relative to the full cache at the same batch.
    "tab-1": benchmarks.draw_rates(
        "zsmerge-table1", "throughput", "Throughput against the full cache", _ratios, benchmarks.faster
    ),
    "tab-2": draw_summaries,
}
