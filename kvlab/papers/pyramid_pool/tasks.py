"""PyramidPool, table 1: the evaluated tasks with their metrics and prompt lengths."""

import pandas as pd
import plotly.graph_objects as go

from kvlab.common.formatting import mean_words
from kvlab.common.intervals import mean_interval
from kvlab.papers.exhibit import Choice, Drawn, Needs, draws
from kvlab.requests.measurement import Evaluation
from kvlab.results.score_tables import PROMPT
from kvlab.results.sources import EVAL_FOLDER, Sources
from kvlab.results.verdict import HOLDS, OPEN, Claim, Verdict
from kvlab.views.base import HUES, Provenance, Theme, finish, pick, plural, with_spaces

PAPER_TASKS = ("qasper", "musique", "multi_news", "trec", "triviaqa")
PAPER_TABLE = (
    ("Qasper", "single-document QA", "F1"),
    ("Musique", "multi-document QA", "F1"),
    ("Multi-News", "summarisation", "ROUGE-L"),
    ("TREC", "few-shot classification", "accuracy"),
    ("TriviaQA", "few-shot open-domain QA", "F1"),
)


@draws("pyramid-pool/tab-1")
def draw_tasks(sources: Sources, choice: Choice, theme: Theme) -> tuple[Drawn, ...] | Needs:
    """Table 1: the evaluated tasks with metrics and lengths, and the paper's."""
    rows = sources.model_evaluations
    if rows.empty:
        out = sources.root / EVAL_FOLDER / "tasks"
        model = sources.measured_model
        everything = Evaluation(("all",), ("pyramid-pool",), (0.2,), 4, out, model=model)
        return Needs("No evaluation was found.", everything)
    # Each task's prompts with the 95 % interval of their mean length.
    frame = evaluated_tasks(rows)
    lengths = rows.drop_duplicates(PROMPT).groupby("task", sort=False)["prompt_tokens"]
    means = [mean_interval(lengths.get_group(task).tolist()) for task in frame["task"]]
    frame = frame.assign(mean_low=[one.low for one in means], mean_high=[one.high for one in means])
    # Mean prompt length as a point, shortest to longest as a bar.
    points = go.Scatter(
        x=frame["mean"],
        y=frame["task"].map(with_spaces) + "<br>" + frame["metric"].map(with_spaces),
        mode="markers",
        error_x={
            "type": "data",
            "symmetric": False,
            "array": frame["longest"] - frame["mean"],
            "arrayminus": frame["mean"] - frame["shortest"],
            "thickness": 2,
            "width": 5,
        },
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
    figure.update_yaxes(autorange="reversed", type="category").update_xaxes(rangemode="tozero")
    if len(frame) == 1:
        caption = "One task is shown."
    elif frame["longest"].max() == frame["shortest"].min():
        caption = "All prompts of all tasks are equally long."
    else:
        caption = f"The longest prompt is in {with_spaces(str(frame.loc[frame['longest'].idxmax(), 'task']))}."
    shared = sorted(task for task in frame["task"] if task.rpartition("/")[2].lower() in PAPER_TASKS)
    finding = (
        f"{plural(len(frame), 'task')}, {len(shared)} of them the paper's ({', '.join(shared) or 'none'}), scored by "
        f"{', '.join(sorted(frame['metric'].map(with_spaces).unique()))}; the longest prompt has "
        f"{frame['longest'].max():,} tokens."
    )
    verdict: Verdict = HOLDS if len(shared) == len(PAPER_TASKS) else OPEN
    claim = Claim("Five datasets with four kinds of tasks decide.", verdict, finding)
    origin = Provenance(f"evaluation {', '.join(sorted(rows['name'].unique()))}")
    grey = pd.DataFrame(PAPER_TABLE, columns=["dataset", "task", "metric (0 to 100)"])
    return (Drawn("tasks", figure, frame, caption, origin, claim, grey),)


def evaluated_tasks(rows: pd.DataFrame) -> pd.DataFrame:
    """One row per evaluated task: metric, prompts, and shortest, mean and longest prompt in tokens."""
    prompts = rows.drop_duplicates(["task", "difficulty", "content", "length", "depth", "index", "seed"])
    groups = prompts.groupby("task", sort=False)
    table = groups["prompt_tokens"].agg(prompts="size", shortest="min", mean="mean", longest="max")
    return table.assign(metric=groups["metric"].first()).reset_index()
