"""Figures 4 and 5, tables 1 to 4: task scores by budget, composition and KeepKV's options, and decode rates."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from kvlab.atlas import benchmarks
from kvlab.atlas.exhibit import Choice, Draw, Drawn, Needs
from kvlab.atlas.papers import grey_table, paper_gap, paper_values
from kvlab.atlas.scores import (
    ABLE,
    Arm,
    Experiment,
    arms,
    caption_by_budget,
    caption_by_option,
    caption_table,
    contest,
    gap,
    gap_text,
    unable,
)
from kvlab.core.choice import FULL
from kvlab.results.score_tables import option_column
from kvlab.results.sources import Sources
from kvlab.results.verdict import Claim
from kvlab.views import scores as figures
from kvlab.views.base.arm_names import arm_text
from kvlab.views.base.palette import Theme

OURS = Arm("keepkv")
# As published PyramidInfer has no budget, and a recent region that fills all of 20 %; here all rivals share a budget.
PYRAMID = Arm("pyramidinfer", {"lengths": "budget", "region": "budget"})
RIVALS = (*(Arm(name) for name in ("streaming-llm", "h2o")), PYRAMID, *(Arm(name) for name in ("cam", "d2o")))
# The paper adds its merging, with its own settings, to other methods' eviction.
WITH_H2O = Arm("compose", {"score": "h2o", "select": "h2o", "settle": "keepkv", "settle_preset": "paper"})
WITH_PYRAMID = Arm(
    "compose",
    {
        "allocate": "pyramidinfer",
        "score": "pyramidinfer",
        "select": "pyramidinfer",
        "settle": "keepkv",
        "settle_preset": "paper",
    },
)
RATIOS = Experiment("keepkv-fig-4", (*RIVALS, OURS), budgets=(0.1, 0.2, 0.4))
ON_H2O = Experiment("keepkv-fig-5", (Arm("h2o"), WITH_H2O), budgets=(0.1, 0.2, 0.4))
ON_PYRAMID = Experiment("keepkv-fig-5", (PYRAMID, WITH_PYRAMID), budgets=(0.1, 0.2, 0.4))
COMBINED = Experiment("keepkv-fig-5", (Arm("h2o"), WITH_H2O, PYRAMID, WITH_PYRAMID), budgets=(0.1, 0.2, 0.4))
BENCHMARK = Experiment(
    "keepkv-tab-2",
    (Arm("window"), *(arm for arm in RIVALS if arm.method != "pyramidinfer"), OURS),
    budgets=(0.2,),
    only_budgets=True,
)
ORDERS = Experiment(
    "keepkv-tab-3",
    arms("keepkv", "prefill_order", "evict-first", "merge-first"),
    budgets=(0.01, 0.1),
    only_budgets=True,
)
THRESHOLDS = Experiment("keepkv-tab-4", arms("keepkv", "threshold", 0.7, 0.8, 0.9), budgets=(0.04,), only_budgets=True)


def scores_with_arms(experiment: Experiment, sources: Sources) -> pd.DataFrame:
    """The experiment's scores on tasks with at least one compressed arm; empty if there are none."""
    table = experiment.scores(sources)
    if table.empty:
        return table
    return table[table["task"].isin(table.loc[table["method"] != FULL.method, "task"])].reset_index(drop=True)


def better(
    says: str, experiment: Experiment, sources: Sources, pairs: Sequence[tuple[Arm, Arm]], slug: str = ""
) -> Claim:
    """Whether the first of each pair scores above the second on the same prompts and budgets.

    If no compressed arm reaches a tenth of the full cache's score, differences are meaningless. `slug` names the table
    with the paper's own values.
    """
    rows = experiment.rows(sources)
    tops = [experiment.scores(sources).query(f"method {sign} 'full'").nlargest(1, "score") for sign in ("!=", "==")]
    if all(map(len, tops)) and tops[0]["score"].iloc[0] < ABLE * tops[1]["score"].iloc[0]:
        best = figures.line_text(tops[0].iloc[0])
        full = float(tops[1]["score"].iloc[0])
        return unable(says, f"No arm scores above {best} on any task, where the full cache reaches {full:.3g}.")
    gaps = {
        f"{arm_text(one.label)} minus {arm_text(other.label)}": gap(rows, one.label, other.label)
        for one, other in pairs
    }
    shown = "; ".join(f"{name} {gap_text(found)}" for name, found in gaps.items())
    finding = f"Mean over the tasks, same prompts and budgets, 95 % interval: {shown}."
    values = paper_values("keepkv", slug)
    printed = {name: paper_gap(values, one.label, other.label) for name, (one, other) in zip(gaps, pairs, strict=True)}
    return contest(says, gaps, finding, experiment.more_prompts(sources), printed=printed)


def draw_ratios(sources: Sources, choice: Choice, theme: Theme) -> tuple[Drawn, ...] | Needs:
    """Figure 4: score against the tokens kept."""
    table = scores_with_arms(RATIOS, sources)
    if table.empty:
        return RATIOS.needs(sources)
    says = "KeepKV outperforms every other method at every compression ratio."
    claim = better(says, RATIOS, sources, [(OURS, rival) for rival in RIVALS])
    figure = figures.score_against_budget(table, theme, "Score by tokens kept")
    caption = caption_by_budget(RATIOS.rows(sources), table)
    return (Drawn("scores", figure, table, caption, RATIOS.origin(sources), claim),)


def draw_combined(sources: Sources, choice: Choice, theme: Theme) -> tuple[Drawn, ...] | Needs:
    """Figure 5: H2O and PyramidInfer with and without KeepKV's merging."""
    drawn = []
    for name, experiment, title in (("a", ON_H2O, "H2O"), ("b", ON_PYRAMID, "PyramidInfer")):
        table = scores_with_arms(experiment, sources)
        if table.empty:
            continue
        plain, merged = experiment.arms
        says = f"{title} with KeepKV's merging scores above {title} alone at every ratio."
        claim = better(says, experiment, sources, [(merged, plain)])
        figure = figures.score_against_budget(table, theme, f"{title} with and without KeepKV's merging")
        caption = caption_by_budget(experiment.rows(sources), table)
        where = experiment.origin(sources)
        drawn.append(Drawn(f"{name}: with {title}", figure, table, caption, where, claim))
    return tuple(drawn) or COMBINED.needs(sources)


def draw_benchmark(sources: Sources, choice: Choice, theme: Theme) -> tuple[Drawn, ...] | Needs:
    """Table 2: every task at 20 %."""
    table = scores_with_arms(BENCHMARK, sources)
    if table.empty:
        return BENCHMARK.needs(sources)
    says = "At 20 % KeepKV outperforms the other methods on most tasks."
    claim = better(says, BENCHMARK, sources, [(OURS, arm) for arm in BENCHMARK.arms if arm != OURS], "tab-2")
    figure = figures.benchmark_table(table, theme, "Scores at 20 % of the cache")
    grey = grey_table(paper_values("keepkv", "tab-2"))
    where = BENCHMARK.origin(sources)
    return (Drawn("scores", figure, table, caption_table(BENCHMARK.rows(sources), table), where, claim, grey),)


def draw_option(slug: str, experiment: Experiment, option: str, says: str, best: int) -> Draw:
    """A table of one option's values: the arm at `best` should beat the others."""

    def draw(sources: Sources, choice: Choice, theme: Theme) -> tuple[Drawn, ...] | Needs:
        table = scores_with_arms(experiment, sources)
        rows = experiment.rows(sources)
        if table.empty:
            return experiment.needs(sources)
        winner = experiment.arms[best]
        claim = better(says, experiment, sources, [(winner, arm) for arm in experiment.arms if arm != winner], slug)
        values = option_column(table, option)
        where = experiment.origin(sources)
        grey = grey_table(paper_values("keepkv", slug))
        by_value = figures.score_by_option(values, option, theme), caption_by_option(rows, values, option)
        all_tasks = figures.benchmark_table(table, theme), caption_table(rows, table)
        return (
            Drawn("by option", by_value[0], values, by_value[1], where, claim, grey),
            Drawn("scores", all_tasks[0], table, all_tasks[1], where),
        )

    return draw


def with_ratios(numbers: pd.DataFrame) -> pd.DataFrame:
    """The compressed caches' rates with both ratios: the paper's to a full cache of batch 2, ours to one of 8."""
    full = numbers.loc[numbers["method"] == "full", "value"]
    rates = numbers[numbers["method"] != "full"].copy()
    rates["paper_ratio"] = rates["paper_ratio"].fillna(rates["value"] / full.iloc[0] if len(full) else float("nan"))
    rates["setting"] = [
        f"batch {row.batch}, {row.context:,} tokens, {benchmarks.budget_text(row.budget)}" for row in rates.itertuples()
    ]
    columns = ["setting", "method", "budget", "our_ratio", "paper_ratio", "ours", "value", "why", "note"]
    return rates[columns].reset_index(drop=True)


DRAWINGS = {
    "fig-4": draw_ratios,
    "fig-5": draw_combined,
    # Tokens per second at batch 8 relative to the full cache at the same batch; in the paper at batch 2.
    "tab-1": benchmarks.draw_rates(
        "keepkv-table1", "rate", "Decode rate against the full cache", with_ratios, benchmarks.twice
    ),
    "tab-2": draw_benchmark,
    "tab-3": draw_option(
        "tab-3", ORDERS, "prefill_order", "Merging before evicting improves generation in the prefill.", 1
    ),
    "tab-4": draw_option("tab-4", THRESHOLDS, "threshold", "A threshold of 0.8 is better than 0.7 and 0.9.", 1),
}
