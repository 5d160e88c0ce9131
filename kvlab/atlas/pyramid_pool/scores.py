"""PyramidPool's figures 6 to 8 and tables 1 and 2: scores by pooling, slope and budget, and against other methods."""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd

from kvlab.atlas.exhibit import Choice, Draw, Drawn, Needs, Paper
from kvlab.atlas.figures import sizes as task_figures
from kvlab.atlas.papers import grey_table, paper_gap, paper_values
from kvlab.atlas.scores import (
    NOT_BEHIND,
    Arm,
    Experiment,
    arms,
    caption_by_budget,
    caption_by_option,
    caption_table,
    contest,
    gap,
    gap_text,
)
from kvlab.common.intervals import Interval, mean_interval
from kvlab.core.choice import FULL
from kvlab.evaluate.scoring.metrics import higher_is_better
from kvlab.requests.measurement import Evaluation, Measurement
from kvlab.results.score_tables import PROMPT, means_over_tasks, option_column, paired_gap, shared_budgets
from kvlab.results.sources import EVAL_FOLDER, Sources
from kvlab.results.verdict import Claim
from kvlab.views import scores as figures
from kvlab.views.base.palette import Theme
from kvlab.views.base.provenance import Provenance
from kvlab.views.base.words import plural, with_spaces

OURS: Paper = "pyramid-pool"
PAPER_MODEL = "meta-llama/Meta-Llama-3-8B-Instruct"
PAPER_TASKS = ("qasper", "musique", "multi_news", "trec", "triviaqa")
POOLINGS = Experiment("pyramid-pool-fig-6", arms(OURS, "pooling", "mean", "max", "best"), budgets=(0.1, 0.4))
SLOPES = Experiment("pyramid-pool-fig-7", arms(OURS, "beta", 1, 2, 4, 8, pooling="best"), budgets=(0.2,))
BUDGETS = Experiment(
    "pyramid-pool-fig-8", (Arm(OURS, {"beta": 1, "pooling": "best"}),), budgets=(32, 64, 128, 256), only_budgets=True
)
RIVALS = Experiment(
    "pyramid-pool-tab-2",
    (Arm("streaming-llm"), Arm("h2o"), Arm(OURS, {"pooling": "best"})),
    budgets=(64,),
    only_budgets=True,
)


def draw_option(
    experiment: Experiment, option: str, title: str, judge: Callable[[pd.DataFrame, list[float], Evaluation], Claim]
) -> Draw:
    """Score by an option's values, one panel per budget; `judge` takes rows, budgets and the settling command."""

    def draw(sources: Sources, choice: Choice, theme: Theme) -> tuple[Drawn, ...] | Needs:
        table = experiment.scores(sources)
        if table.empty:
            return experiment.needs(sources)
        frame = option_column(shared_budgets(table), option)
        rows = experiment.rows(sources)
        figure = figures.score_by_option(frame, option, theme, title)
        caption = caption_by_option(rows, frame, option)
        claim = judge(rows, sorted(frame["budget"].unique()), experiment.more_prompts(sources))
        return (Drawn(option, figure, frame, caption, experiment.origin(sources), claim),)

    return draw


def _best_wins(rows: pd.DataFrame, budgets: list[float], settle: Measurement | None) -> Claim:
    paper = "At small budgets best pooling beats mean and mean beats max; at large ones mean and best beat max."
    pairs = {budgets[0]: (("best", "mean"), ("mean", "max")), budgets[-1]: (("mean", "max"), ("best", "max"))}
    if len(pairs) < 2:
        return Claim(paper, "not enough to say", "Two budgets or more are needed; this is one.")
    gaps = {
        f"{better} minus {worse} at {budget:g}": gap(rows, _pooling(better), _pooling(worse), budget)
        for budget, wanted in pairs.items()
        for better, worse in wanted
    }
    return contest(paper, gaps, f"Mean score over the tasks: {_listed(gaps)}.", settle)


def _pooling(kind: str) -> str:
    return f"{OURS}:pooling={kind}"


def _listed(gaps: dict[str, Interval | None]) -> str:
    return ", ".join(f"{name} {gap_text(one)}" for name, one in gaps.items())


def _steeper_is_worse(rows: pd.DataFrame, budgets: list[float], settle: Measurement | None) -> Claim:
    paper = "Scores generally fall as the pyramid gets steeper (ratio 1 to 8), but by an acceptable amount."
    flat, *steeper = (f"{OURS}:beta={ratio}:pooling=best" for ratio in (1, 2, 4, 8))
    gaps = {f"1 minus {ratio}": gap(rows, flat, arm) for ratio, arm in zip((2, 4, 8), steeper, strict=True)}
    finding = f"Mean score of ratio 1 minus a steeper one, at equal total slots: {_listed(gaps)}."
    return contest(paper, {"1 minus 8": gaps["1 minus 8"]}, finding, settle)


def draw_budgets(sources: Sources, choice: Choice, theme: Theme) -> tuple[Drawn, ...] | Needs:
    """Figure 8: score by budget, without a pyramid."""
    table = BUDGETS.scores(sources)
    if table.empty:
        return BUDGETS.needs(sources)
    figure = figures.score_against_budget(table, theme, "Score by initial budget")
    rows = BUDGETS.rows(sources)
    caption = caption_by_budget(rows, table)
    claim = _more_is_better(rows, BUDGETS.more_prompts(sources))
    return (Drawn("budget", figure, table, caption, BUDGETS.origin(sources), claim),)


def _more_is_better(rows: pd.DataFrame, settle: Measurement | None) -> Claim:
    paper = "A larger budget improves every dataset."
    ours = rows[(rows["method"] == OURS) & rows["metric"].map(higher_is_better)]
    budgets = sorted(ours["budget"].unique())
    if len(budgets) < 2:
        return Claim(paper, "not enough to say", "Two budgets or more are needed; this is one.")
    small = budgets[0]
    large = budgets[-1]
    gaps = {str(task): _between_budgets(group, small, large) for task, group in ours.groupby("task", sort=False)}
    words = f"Mean score at {large:g} minus at {small:g} slots: {_listed(gaps)}."
    return contest(paper, gaps, words, settle)


def _between_budgets(rows: pd.DataFrame, small: float, large: float) -> Interval | None:
    one, other = (rows[rows["budget"] == budget] for budget in (large, small))
    return paired_gap(one, other, PROMPT)


def draw_tasks(sources: Sources, choice: Choice, theme: Theme) -> tuple[Drawn, ...] | Needs:
    """Table 1: the evaluated tasks with metrics and lengths, and the paper's."""
    rows = sources.model_evaluations
    if rows.empty:
        out = sources.root / EVAL_FOLDER / "tasks"
        model = sources.measured_model
        everything = Evaluation(("all",), (OURS,), (0.2,), 4, out, model=model)
        return Needs("No evaluation was found.", everything)
    frame = _with_intervals(evaluated_tasks(rows), rows)
    origin = Provenance(f"evaluation {', '.join(sorted(rows['name'].unique()))}")
    figure = task_figures.task_lengths(frame, theme)
    caption = task_figures.caption_task_lengths(frame)
    return (Drawn("tasks", figure, frame, caption, origin, _like_the_papers(frame), _paper_tasks()),)


def _with_intervals(frame: pd.DataFrame, rows: pd.DataFrame) -> pd.DataFrame:
    """Add the 95 % interval of the prompts' mean length: columns mean_low, mean_high."""
    prompts = rows.drop_duplicates(PROMPT).groupby("task", sort=False)["prompt_tokens"]
    found = [mean_interval(prompts.get_group(task).tolist()) for task in frame["task"]]
    return frame.assign(mean_low=[one.low for one in found], mean_high=[one.high for one in found])


def _like_the_papers(frame: pd.DataFrame) -> Claim:
    shared = sorted(task for task in frame["task"] if task.rpartition("/")[2].lower() in PAPER_TASKS)
    finding = (
        f"{plural(len(frame), 'task')}, {len(shared)} of them the paper's ({', '.join(shared) or 'none'}), scored by "
        f"{', '.join(sorted(frame['metric'].map(with_spaces).unique()))}; the longest prompt has "
        f"{frame['longest'].max():,} tokens."
    )
    holds = len(shared) == len(PAPER_TASKS)
    return Claim("Five datasets with four kinds of tasks decide.", "holds" if holds else "not enough to say", finding)


def _paper_tasks() -> pd.DataFrame:
    return pd.DataFrame(
        [
            ("Qasper", "single-document QA", "F1"),
            ("Musique", "multi-document QA", "F1"),
            ("Multi-News", "summarisation", "ROUGE-L"),
            ("TREC", "few-shot classification", "accuracy"),
            ("TriviaQA", "few-shot open-domain QA", "F1"),
        ],
        columns=["dataset", "task", "metric (0 to 100)"],
    )


def draw_rivals(sources: Sources, choice: Choice, theme: Theme) -> tuple[Drawn, ...] | Needs:
    """Table 2: the full cache, StreamingLLM, H2O and PyramidPool at 64 slots on average."""
    table = RIVALS.scores(sources)
    if table.empty:
        return RIVALS.needs(sources)
    figure = figures.benchmark_table(table, theme, "Scores at 64 slots on average")
    rows = RIVALS.rows(sources)
    used = means_over_tasks(rows, table[table["method"] != FULL.method], ["arm"])
    held = ", ".join(
        f"{line['arm']} {figures.line_text(line, 'slots', '{:.1f}'.format)}" for _, line in used.iterrows()
    )
    caption = caption_table(rows, table).within(after=f"Slots held at the end: {held}.")
    grey = grey_table(paper_values(OURS, "tab-2"))
    claim = _competes(rows, RIVALS.more_prompts(sources))
    where = RIVALS.origin(sources)
    further = RIVALS.on_paper_data(sources, PAPER_MODEL, *(f"longbench={name}.jsonl" for name in PAPER_TASKS))
    return (Drawn("scores", figure, table, caption, where, claim, grey, further),)


def _competes(rows: pd.DataFrame, settle: Measurement | None) -> Claim:
    paper = (
        "Competitive with StreamingLLM and H2O. (Its own table has it behind both on Musique, Multi-News, TREC and "
        "TriviaQA.)"
    )
    gaps = {f"minus {rival}": gap(rows, _pooling("best"), rival) for rival in ("streaming-llm", "h2o")}
    finding = f"Mean score of PyramidPool over all tasks {_listed(gaps)}."
    values = paper_values(OURS, "tab-2")
    printed = {f"minus {rival}": paper_gap(values, OURS, rival) for rival in ("streaming-llm", "h2o")}
    return contest(paper, gaps, finding, settle, NOT_BEHIND, printed)


DRAWINGS = {
    "fig-6": draw_option(POOLINGS, "pooling", "Score by kind of pooling", _best_wins),
    "fig-7": draw_option(SLOPES, "beta", "Score by pyramid ratio", _steeper_is_worse),
    "fig-8": draw_budgets,
    "tab-1": draw_tasks,
    "tab-2": draw_rivals,
}


def evaluated_tasks(rows: pd.DataFrame) -> pd.DataFrame:
    """One row per evaluated task: metric, prompts, and shortest, mean and longest prompt in tokens."""
    prompts = rows.drop_duplicates(["task", "difficulty", "content", "length", "depth", "index", "seed"])
    groups = prompts.groupby("task", sort=False)
    table = groups["prompt_tokens"].agg(prompts="size", shortest="min", mean="mean", longest="max")
    return table.assign(metric=groups["metric"].first()).reset_index()
