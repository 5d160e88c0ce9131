"""PyramidPool, table 1: the evaluated tasks with their metrics and prompt lengths."""

import pandas as pd
import plotly.graph_objects as go

from kvlab.common.formatting import mean_words
from kvlab.common.intervals import mean_interval
from kvlab.papers.exhibit import Choice, Drawn, Needs
from kvlab.requests.measurement import Evaluation
from kvlab.results.score_tables import PROMPT
from kvlab.results.sources import EVAL_FOLDER, Sources
from kvlab.results.verdict import Claim
from kvlab.views.base.palette import HUES, Theme, pick
from kvlab.views.base.provenance import Provenance
from kvlab.views.base.template import finish
from kvlab.views.base.words import plural, with_spaces


def task_lengths(frame: pd.DataFrame, theme: Theme = "light") -> go.Figure:
    """One row per task: mean prompt length as a point, shortest to longest as a bar.

    From `pyramid_pool.scored.evaluated_tasks`, with the interval of the mean in mean_low and mean_high.
    """
    spread = {
        "type": "data",
        "symmetric": False,
        "array": frame["longest"] - frame["mean"],
        "arrayminus": frame["mean"] - frame["shortest"],
        "thickness": 2,
        "width": 5,
    }
    names = frame["task"].map(with_spaces) + "<br>" + frame["metric"].map(with_spaces)
    points = go.Scatter(
        x=frame["mean"],
        y=names,
        mode="markers",
        error_x=spread,
        marker={"size": 11, "symbol": "diamond", "color": pick(HUES["blue"], theme)},
        customdata=[
            mean_words(row.mean, row.mean_low, row.mean_high, row.prompts, "{:,.0f}".format)
            for row in frame.itertuples(index=False)
        ],
        hovertemplate="%{y}: %{customdata} tokens on average<extra></extra>",
    )
    figure = finish(
        go.Figure(points),
        title="Prompt lengths by task",
        x="prompt length (tokens)",
        y="task, metric",
        theme=theme,
        height=150 + 44 * len(frame),
        legend=False,
    )
    return figure.update_yaxes(autorange="reversed", type="category").update_xaxes(rangemode="tozero")


def caption_task_lengths(frame: pd.DataFrame) -> str:
    """The tasks with the longest and shortest prompts."""
    if len(frame) == 1:
        return "One task is shown."
    if frame["longest"].max() == frame["shortest"].min():
        return "All prompts of all tasks are equally long."
    return f"The longest prompt is in {with_spaces(str(frame.loc[frame['longest'].idxmax(), 'task']))}."


PAPER_TASKS = ("qasper", "musique", "multi_news", "trec", "triviaqa")


def draw_tasks(sources: Sources, choice: Choice, theme: Theme) -> tuple[Drawn, ...] | Needs:
    """Table 1: the evaluated tasks with metrics and lengths, and the paper's."""
    rows = sources.model_evaluations
    if rows.empty:
        out = sources.root / EVAL_FOLDER / "tasks"
        model = sources.measured_model
        everything = Evaluation(("all",), ("pyramid-pool",), (0.2,), 4, out, model=model)
        return Needs("No evaluation was found.", everything)
    frame = _with_intervals(evaluated_tasks(rows), rows)
    origin = Provenance(f"evaluation {', '.join(sorted(rows['name'].unique()))}")
    figure = task_lengths(frame, theme)
    caption = caption_task_lengths(frame)
    shared = sorted(task for task in frame["task"] if task.rpartition("/")[2].lower() in PAPER_TASKS)
    finding = (
        f"{plural(len(frame), 'task')}, {len(shared)} of them the paper's ({', '.join(shared) or 'none'}), scored by "
        f"{', '.join(sorted(frame['metric'].map(with_spaces).unique()))}; the longest prompt has "
        f"{frame['longest'].max():,} tokens."
    )
    holds = len(shared) == len(PAPER_TASKS)
    return (
        Drawn(
            "tasks",
            figure,
            frame,
            caption,
            origin,
            Claim("Five datasets with four kinds of tasks decide.", "holds" if holds else "not enough to say", finding),
            _paper_tasks(),
        ),
    )


def _with_intervals(frame: pd.DataFrame, rows: pd.DataFrame) -> pd.DataFrame:
    """Add the 95 % interval of the prompts' mean length: columns mean_low, mean_high."""
    prompts = rows.drop_duplicates(PROMPT).groupby("task", sort=False)["prompt_tokens"]
    found = [mean_interval(prompts.get_group(task).tolist()) for task in frame["task"]]
    return frame.assign(mean_low=[one.low for one in found], mean_high=[one.high for one in found])


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


def evaluated_tasks(rows: pd.DataFrame) -> pd.DataFrame:
    """One row per evaluated task: metric, prompts, and shortest, mean and longest prompt in tokens."""
    prompts = rows.drop_duplicates(["task", "difficulty", "content", "length", "depth", "index", "seed"])
    groups = prompts.groupby("task", sort=False)
    table = groups["prompt_tokens"].agg(prompts="size", shortest="min", mean="mean", longest="max")
    return table.assign(metric=groups["metric"].first()).reset_index()


DRAWINGS = {"tab-1": draw_tasks}
