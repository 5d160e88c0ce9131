"""Figures 1 and 4 to 7: scores against usage, by length, task, model and GVote's own options."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pandas as pd

from kvlab.atlas.exhibit import Choice, Draw, Drawn, Needs
from kvlab.atlas.figures import usage
from kvlab.atlas.gvote import budgets
from kvlab.atlas.scores import ABLE, OWN_TASKS, Arm, Experiment, arms, caption_by_budget, contest, gap, gap_text, unable
from kvlab.common.formatting import model_title
from kvlab.core.choice import FULL
from kvlab.evaluate.results.rows import canonical_json
from kvlab.evaluate.results.summary import with_measures
from kvlab.evaluate.scoring.metrics import higher_is_better
from kvlab.requests.measurement import Measurement
from kvlab.results.score_tables import NAMES, PROMPT, means_over_tasks, option_column, score_table, with_names
from kvlab.results.sources import Sources
from kvlab.results.verdict import OPEN, Claim
from kvlab.views import scores as figures
from kvlab.views.base.palette import Theme
from kvlab.views.base.words import plural

OURS = "gvote"
JUDGED_AT = "gvote/fig-4"
MEAN = "mean over tasks"
ARMS = tuple(Arm(name) for name in (OURS, "streaming-llm", "snapkv", "adakv"))
SWEEP = (0.1, 0.2, 0.3, 0.4, 0.5)
EIGHT = (*OWN_TASKS, "needle_multivalue", "needle_multiquery", "variable_tracking", "copy")
BY_LENGTH = Experiment("gvote-fig-1", ARMS, SWEEP, tasks=("needle", "key_value"), lengths=(512, 1024, 2048, 3584))
BY_TASK = Experiment("gvote-fig-4", ARMS, SWEEP, tasks=EIGHT)
BY_MODEL = Experiment("gvote-fig-5", ARMS, SWEEP)
SAMPLES = Experiment("gvote-fig-6", arms(OURS, "samples", 1, 2, 4, 8, 16, 32))
NUCLEUS = Experiment("gvote-fig-7", arms(OURS, "p_nuc", 0.8, 0.9, 0.95, 0.98))


def against_usage(
    experiment: Experiment, name: Callable[[pd.DataFrame], pd.Series], mean: bool, title: str, panel: str = "task"
) -> Draw:
    """Scores against tokens kept, a panel per name of the rows, and GVote's usage; `panel`: what the names are."""

    def draw(sources: Sources, choice: Choice, theme: Theme) -> tuple[Drawn, ...] | Needs:
        rows = experiment.rows(sources)
        if rows.empty or not (rows["method"] == OURS).any():
            return experiment.needs(sources)
        rows = compressed_panels(rename_tasks(rows, name(rows)))
        rows = rows.sort_values("length", kind="stable") if panel == "length" else rows
        table = score_table(rows)
        means = mean_rows(rows, table)
        shown = pd.concat([table, means], ignore_index=True) if mean else table
        figure = figures.score_against_budget(shown, theme, title)
        where = experiment.origin(sources)
        caption = caption_by_budget(rows, table, panel)
        used = usage_rows(rows)
        own = own_rows(table)
        saves, follows = judge_memory_and_budgets(sources)
        if experiment is not BY_TASK:
            saves, follows = (replace(one, judged_at=JUDGED_AT) for one in (saves, follows))
        return (
            Drawn("scores", figure, shown, caption, where, saves),
            Drawn(
                "usage", usage.usage_by_task(used, own, theme), used, usage.caption_usage_by_task(own), where, follows
            ),
        )

    return draw


def judge_memory_and_budgets(sources: Sources) -> tuple[Claim, Claim]:
    """Both claims on memory and budgets, judged by the tasks of figure 4."""
    return sources.once("gvote's claims", lambda: _judged(sources))


def _judged(sources: Sources) -> tuple[Claim, Claim]:
    rows = BY_TASK.rows(sources)
    if rows.empty or not (rows["method"] == OURS).any():
        why = "The tasks of figure 4, which decide it, were not evaluated."
        missing = BY_TASK.evaluation(sources)
        saves, follows = (Claim(says, OPEN, why, settle=missing) for says in (budgets.SAVES, budgets.FOLLOWS))
        return saves, follows
    saves = _saves(rows, BY_TASK.more_prompts(sources))
    return saves, budgets.follows(usage_rows(rows), own_rows(score_table(rows)))


def own_rows(table: pd.DataFrame) -> pd.DataFrame:
    """GVote's rows of a score table."""
    return table[(table["method"] == OURS) & has_known_settings(table["options"])]


def on_the_same_prompts(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of prompts that all arms have at all budgets; all rows if there is none."""
    cells = rows["method"] + rows["hyper_parameters"].fillna("") + rows["budget"].astype(str)
    asked = rows.assign(cell=cells).groupby(PROMPT, dropna=False)["cell"].nunique()
    common = asked[asked == cells.nunique()].reset_index()[PROMPT]
    return rows.merge(common, on=PROMPT) if len(common) else rows


def rename_tasks(rows: pd.DataFrame, names: pd.Series | str) -> pd.DataFrame:
    """The rows with another task name; prompts of different tasks stay distinct."""
    return rows.assign(content=rows["task"] + rows["content"], task=names)


def compressed_panels(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of panels that show more than the full cache."""
    return rows[rows["task"].isin(rows.loc[rows["method"] != FULL.method, "task"])]


def by_length(rows: pd.DataFrame) -> pd.Series:
    """Panel names by prompt length."""
    return rows["length"].map(lambda length: f"{length:,} tokens" if length else "own prompts")


def mean_rows(rows: pd.DataFrame, table: pd.DataFrame) -> pd.DataFrame:
    """An extra panel: means over the tasks, for arms that have all of them."""
    means = means_over_tasks(rows, table)
    every = means[means["tasks"] == table.loc[table["higher"], "task"].nunique()]
    return every.assign(task=MEAN, metric="mean", higher=True).reset_index(drop=True)


def has_known_settings(options: pd.Series) -> pd.Series:
    """Whether GVote ran with its paper's settings or the defaults."""
    return options.isin(["{}", canonical_json(Arm(OURS).published)])


def usage_rows(rows: pd.DataFrame) -> pd.DataFrame:
    """One row per prompt under GVote: task, index, prompt_tokens, kept."""
    own = rows[(rows["method"] == OURS) & has_known_settings(rows["hyper_parameters"])]
    kept = own["slots"] / own["logical_tokens"]
    return own.assign(kept=kept)[["task", "index", "prompt_tokens", "kept"]].reset_index(drop=True)


def _saves(rows: pd.DataFrame, settle: Measurement | None = None) -> Claim:
    rows = on_the_same_prompts(rows)
    table = score_table(rows)
    claim = budgets.saves(mean_rows(rows, table), prompt_rows(rows, table))
    return replace(claim, settle=settle if claim.verdict == OPEN and claim.basis.prompts else None)


def prompt_rows(rows: pd.DataFrame, table: pd.DataFrame) -> pd.DataFrame:
    """One row per prompt, arm and budget shown in `table`: task, prompt, method, arm, asked, score, kept."""
    shown = table.loc[table["higher"], ["task", *NAMES]].drop_duplicates()
    measured = with_names(with_measures(rows)).merge(shown, on=["task", *NAMES])
    prompts = measured.groupby(PROMPT, dropna=False, sort=False).ngroup()
    return measured.assign(prompt=prompts)[["task", "prompt", "method", "arm", "asked", "score", "kept"]]


def draw_models(sources: Sources, choice: Choice, theme: Theme) -> tuple[Drawn, ...] | Needs:
    """Figure 5: one panel per model, scores averaged over the tasks; the claim is judged on the model in view."""
    here = sources.measured_model
    names = sources.evaluations["model"].unique() if len(sources.evaluations) else []
    parts = []
    asked = []
    claims = {}
    for model in sorted(map(str, names), key=lambda name: (name != here, name)):
        rows = BY_MODEL.rows(_only(sources, model))
        if len(rows) and (rows["method"] == OURS).any():
            title = model_title(model)
            parts.append(mean_rows(rows, score_table(rows)).assign(task=title))
            claims[title] = _saves(rows, BY_MODEL.more_prompts(sources) if model == here else None)
            asked.append(rename_tasks(rows[rows["metric"].map(higher_is_better)], title))
    if model_title(here) not in claims:
        return BY_MODEL.needs(sources)
    table = pd.concat(parts, ignore_index=True)
    figure = figures.score_against_budget(table, theme, "Score by tokens kept, mean over tasks, by model")
    caption = caption_by_budget(pd.concat(asked, ignore_index=True), table, "model")
    claim = budgets.everywhere(claims, model_title(here))
    return (Drawn("models", figure, table, caption, BY_MODEL.origin(sources).at(plural(len(parts), "model")), claim),)


def _only(sources: Sources, model: str) -> Sources:
    """The same evaluations, of which those of one model count."""
    narrowed = replace(sources, run=None, runs=(), named=model)
    narrowed.__dict__["evaluations"] = sources.evaluations
    return narrowed


def over_option(experiment: Experiment, option: str, says: str) -> Draw:
    """Score, usage and seconds by the values of an option."""

    def draw(sources: Sources, choice: Choice, theme: Theme) -> tuple[Drawn, ...] | Needs:
        rows = experiment.rows(sources)
        table = experiment.scores(sources)
        if table.empty:
            return experiment.needs(sources)
        frame = option_column(table, option).sort_values(option, key=lambda values: values.astype(float), kind="stable")
        means = means_over_tasks(rows, frame, [option, "arm"])
        means = means.sort_values(option, key=lambda values: values.astype(float), kind="stable")
        figure = usage.option_sweep(frame, option, theme)
        caption = usage.caption_option_sweep(means, option)
        claim = rises_claim(rows, means, option, says, experiment.more_prompts(sources))
        return (Drawn("sweep", figure, frame, caption, experiment.origin(sources), claim),)

    return draw


def rises_claim(rows: pd.DataFrame, means: pd.DataFrame, option: str, says: str, settle: Measurement | None) -> Claim:
    """Whether score and usage rise from the smallest to the largest value, prompt by prompt, means over tasks.

    `means` has one row per value of the option, in order, with its arm.
    """
    if len(means) < 2:
        return Claim(says, "not enough to say", f"Only one value of {option} was evaluated.")
    best = means.loc[means["score"].idxmax()]
    if best["score"] < ABLE:
        shown = figures.line_text(best)
        return unable(says, f"No value of {option} scores above {shown} on these tasks.")
    first = means.iloc[0]
    last = means.iloc[-1]
    score, kept = (gap(with_measures(rows), last["arm"], first["arm"], column=column) for column in ("score", "kept"))
    finding = (
        f"From {option} {first[option]} to {last[option]} the mean score changes by {gap_text(score)} and the tokens "
        f"kept by {gap_text(kept, lambda share: f'{100 * share:+.3g} points')}."
    )
    return contest(says, {"score": score, "kept": kept}, finding, settle)


DRAWINGS = {
    "fig-1": against_usage(BY_LENGTH, by_length, False, "Score by tokens kept, by length", "length"),
    "fig-4": against_usage(BY_TASK, lambda rows: rows["task"], True, "Score by tokens kept, by task"),
    "fig-5": draw_models,
    "fig-6": over_option(SAMPLES, "samples", "More samples give better accuracy with moderately higher usage."),
    "fig-7": over_option(NUCLEUS, "p_nuc", "A higher threshold gives higher accuracy and higher usage."),
}
