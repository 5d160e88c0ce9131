"""Figures 1 and 4 to 7: scores against what was really used, by length, task, model and GVote's own options."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd

from kvlab.atlas.exhibit import Choice, Claim, Draw, Drawn, Exhibit, Needs, Verdict
from kvlab.atlas.scores import FULL, OWN_TASKS, Arm, Experiment, arms, option_column, score_table
from kvlab.atlas.sources import Sources
from kvlab.figures import scores as figures
from kvlab.figures import usage
from kvlab.figures.palette import Theme
from kvlab.figures.words import number, percent, plural

OURS = "gvote"
MEAN = "mean over tasks"
ARMS = tuple(Arm(name) for name in (OURS, "streaming-llm", "snapkv", "adakv"))
SWEEP = (0.1, 0.2, 0.3, 0.4, 0.5)
EIGHT = (*OWN_TASKS, "needle_multivalue", "needle_multiquery", "variable_tracking", "copy")
BY_LENGTH = Experiment(
    "gvote-fig-1", ARMS, SWEEP, tasks=("needle", "key_value"), more={"lengths": "512,1024,2048,3584"}
)
BY_TASK = Experiment("gvote-fig-4", ARMS, SWEEP, tasks=EIGHT)
BY_MODEL = Experiment("gvote-fig-5", ARMS, SWEEP)
SAMPLES = Experiment("gvote-fig-6", arms(OURS, "samples", 1, 2, 4, 8, 16, 32))
NUCLEUS = Experiment("gvote-fig-7", arms(OURS, "p_nuc", 0.8, 0.9, 0.95, 0.98))
TWICE, DIFFERENT, ABLE = 2.0, 1.5, 0.1


def against_usage(
    experiment: Experiment, name: Callable[[pd.DataFrame], pd.Series], mean: bool, title: str, panel: str = "task"
) -> Draw:
    """Scores against tokens kept, a panel a name of the rows; then GVote's usage by name. `panel`: what names say."""

    def draw(sources: Sources, choice: Choice, theme: Theme) -> tuple[Drawn, ...] | Needs:
        rows = experiment.rows(sources)
        if rows.empty or not (rows["method"] == OURS).any():
            return experiment.needs(sources)
        rows = rows.assign(task=name(rows))
        table = score_table(rows)
        shown = pd.concat([table, mean_rows(table)], ignore_index=True) if mean else table
        figure = figures.score_against_budget(shown, theme, title)
        where, reading = experiment.origin(sources), figures.read_score_against_budget(table, panel)
        used = usage_rows(rows)
        return (
            Drawn("scores", figure, shown, reading, where, trade_off_claim(table)),
            Drawn("usage", usage.usage_by_task(used, theme), used, usage.read_usage_by_task(used), where,
                  budgets_claim(used)),
        )  # fmt: skip

    return draw


def by_length(rows: pd.DataFrame) -> pd.Series:
    """A panel a length asked for."""
    return rows["length"].map(lambda length: f"{length:,} tokens" if length else "own prompts")


def mean_rows(table: pd.DataFrame) -> pd.DataFrame:
    """One more panel: means over the tasks, without intervals."""
    names = ["arm", "method", "options", "budget", "asked"]
    better = table[table["higher"]]
    tasks, groups = better["task"].nunique(), better.groupby(names, sort=False)
    means = groups[["kept", "score", "slots", "difference"]].mean()[groups["task"].nunique() == tasks].reset_index()
    return means.assign(task=MEAN, metric="mean", higher=True, score_low=means["score"], score_high=means["score"])


def usage_rows(rows: pd.DataFrame) -> pd.DataFrame:
    """One row a prompt under GVote: task, index, prompt_tokens, kept."""
    own = rows[(rows["method"] == OURS) & (rows["hyper_parameters"] == "{}")]
    kept = own["slots"] / own["logical_tokens"]
    return own.assign(kept=kept)[["task", "index", "prompt_tokens", "kept"]].reset_index(drop=True)


def trade_off_claim(table: pd.DataFrame) -> Claim:
    """GVote's mean score against the rivals' at the same usage, and the usage they need for it."""
    says = "GVote needs half the memory of fixed budgets at the same accuracy."
    means = mean_rows(table)
    ours, full = means[means["method"] == OURS], table.loc[table["method"] == FULL, "score"].mean()
    if ours.empty or not full >= ABLE:
        return Claim(says, "cannot be judged", f"The full cache itself scores {number(full, 2)} on these tasks.")
    kept, score = float(ours["kept"].iloc[0]), float(ours["score"].iloc[0])
    needed, parts = [], []
    for arm, group in means[~means["method"].isin((OURS, FULL))].groupby("arm", sort=False):
        enough = needed_usage(group.sort_values("kept"), score)
        needed.append(enough / kept)
        never = f"not with {percent(group['kept'].max())}"
        parts.append(f"{arm} {percent(enough) if np.isfinite(enough) else never}")
    if not needed:
        return Claim(says, "cannot be judged", "No fixed budget was evaluated beside it.")
    verdict: Verdict = "holds" if min(needed) >= TWICE else "does not hold"
    return Claim(
        says,
        verdict,
        f"GVote scores {number(score)} (full cache {number(full)}) with {percent(kept)} of the tokens; to score as "
        f"much the others need: {', '.join(parts)}.",
    )


def needed_usage(group: pd.DataFrame, score: float) -> float:
    """The smallest usage at which a line through (kept, score), sorted by kept, reaches `score`; infinite if never."""
    kept, reached = group["kept"].to_numpy(float), group["score"].to_numpy(float)
    for place in range(len(kept)):
        if reached[place] >= score:
            if place == 0:
                return float(kept[0])
            share = (score - reached[place - 1]) / (reached[place] - reached[place - 1])
            return float(kept[place - 1] + share * (kept[place] - kept[place - 1]))
    return float("inf")


def budgets_claim(used: pd.DataFrame) -> Claim:
    """Whether the budgets GVote finds differ from task to task by more than from prompt to prompt."""
    says = "Different tasks need different budgets, and GVote finds them."
    groups = used.groupby("task", sort=False)["kept"]
    means, within = groups.mean(), groups.std().mean()
    if len(means) < 2:
        return Claim(says, "cannot be judged", "Only one kind of prompt was evaluated.")
    ratio = means.max() / means.min()
    verdict: Verdict = "holds" if ratio >= DIFFERENT and means.max() - means.min() > within else "does not hold"
    return Claim(
        says,
        verdict,
        f"GVote keeps {percent(means.min())} ({means.idxmin()}) to {percent(means.max())} ({means.idxmax()}) of the "
        f"tokens, {number(ratio)} times as much ({DIFFERENT} counts); prompts of one kind differ by "
        f"{percent(within)} (standard deviation).",
    )


def draw_models(sources: Sources, choice: Choice, theme: Theme) -> tuple[Drawn, ...] | Needs:
    """Figure 5: a panel a model, scores averaged over the tasks."""
    names = sources.evaluations["model"].unique() if len(sources.evaluations) else []
    parts = []
    for model in names:
        rows = BY_MODEL.rows(_only(sources, str(model)))
        if len(rows) and (rows["method"] == OURS).any():
            parts.append(mean_rows(score_table(rows)).assign(task=model))
    if not parts:
        return BY_MODEL.needs(sources)
    table = pd.concat(parts, ignore_index=True)
    figure = figures.score_against_budget(table, theme, "Score by tokens kept, mean over tasks, a panel a model")
    reading = figures.read_score_against_budget(table, "model")
    claim = models_claim(table)
    return (
        Drawn("models", figure, table, reading, f"{plural(len(parts), 'model')} · {BY_MODEL.origin(sources)}", claim),
    )


def _only(sources: Sources, model: str) -> Sources:
    """The same evaluations of one model alone."""
    narrowed = Sources(sources.root)
    narrowed.__dict__["evaluations"] = sources.evaluations[sources.evaluations["model"] == model]
    return narrowed


def models_claim(table: pd.DataFrame) -> Claim:
    """Whether GVote keeps its lead in every model."""
    says = "GVote's advantage holds across models."
    models = list(table["task"].unique())
    if len(models) < 2:
        more = "evaluate another with --model into the same folder"
        return Claim(says, "cannot be judged", f"Only {len(models)} model was evaluated ({models[0]}): {more}.")
    ahead = [trade_off_claim(table[table["task"] == model]).verdict == "holds" for model in models]
    verdict: Verdict = "holds" if all(ahead) else "does not hold"
    return Claim(says, verdict, f"Half the memory at equal score in {sum(ahead)} of {len(models)} models.")


def over_option(experiment: Experiment, option: str, says: str) -> Draw:
    """Score, usage and seconds over the values of an option."""

    def draw(sources: Sources, choice: Choice, theme: Theme) -> tuple[Drawn, ...] | Needs:
        rows = experiment.rows(sources)
        table = experiment.scores(sources)
        if table.empty:
            return experiment.needs(sources)
        seconds = rows.groupby(["task", "hyper_parameters"])["seconds"].mean().rename("seconds")
        frame = option_column(table, option).join(seconds, on=["task", "options"])
        frame = frame.sort_values(option, key=lambda values: values.astype(float), kind="stable")
        figure, reading = usage.option_sweep(frame, option, theme), usage.read_option_sweep(frame, option)
        return (Drawn("sweep", figure, frame, reading, experiment.origin(sources), rises_claim(frame, option, says)),)

    return draw


def rises_claim(frame: pd.DataFrame, option: str, says: str) -> Claim:
    """Whether score and usage rise from the smallest to the largest value, means over tasks."""
    means = frame.groupby(option, sort=False)[["score", "kept"]].mean()
    if len(means) < 2:
        return Claim(says, "cannot be judged", f"Only one value of {option} was evaluated.")
    if means["score"].max() < ABLE:
        best = number(means["score"].max())
        return Claim(says, "cannot be judged", f"No value of {option} scores above {best} on these tasks.")
    change = means.iloc[-1] - means.iloc[0]
    verdict: Verdict = "holds" if change["score"] > 0 and change["kept"] > 0 else "does not hold"
    return Claim(
        says,
        verdict,
        f"From {option} {means.index[0]} to {means.index[-1]} the mean score changes by {change['score']:+.3g} and the "
        f"tokens kept by {100 * change['kept']:+.3g} points.",
    )


_AXES = (
    "the share of tokens really kept across, mean score with its 95 % interval up; GVote is one point, the others a "
)
FIRST = (
    Exhibit(
        "gvote", "fig-1", "Fig 1", "Accuracy against memory, by length of the prompt",
        f"A panel a length: {_AXES}line over budgets from 10 to 50 %. Then the share GVote kept, prompt by prompt.",
        "Whether the best fixed budget moves with the length, and GVote's point moves with it.",
        "eval", against_usage(BY_LENGTH, by_length, False, "Score by tokens kept, a panel a length", "length"),
    ),
)  # fmt: skip
REST = (
    Exhibit(
        "gvote", "fig-4", "Fig 4", "Accuracy against memory on eight tasks",
        f"A panel a task and one for their mean: {_AXES}line over budgets from 10 to 50 %. Then the share GVote kept.",
        "Whether GVote's point lies above and left of the lines.",
        "eval", against_usage(BY_TASK, lambda rows: rows["task"], True, "Score by tokens kept, task by task"),
    ),
    Exhibit(
        "gvote", "fig-5", "Fig 5", "Accuracy against memory, model by model",
        f"A panel a model, scores averaged over the tasks: {_AXES}line. Every model evaluated in this folder counts.",
        "Whether the picture is the same in every panel.",
        "eval", draw_models,
    ),
    Exhibit(
        "gvote", "fig-6", "Fig 6", "Effect of the number of samples",
        "Number of sampled queries across; up, the score, the share of tokens kept and the seconds a prompt takes.",
        "Where more samples stop paying; usage should rise only slowly.",
        "eval", over_option(SAMPLES, "samples", "More samples give better accuracy with moderately higher usage."),
    ),
    Exhibit(
        "gvote", "fig-7", "Fig 7", "Effect of the nucleus threshold",
        "The share of attention that sets the step budget across; up, the score, the share of tokens kept and the "
        "seconds a prompt takes.",
        "A steeper rise of usage than figure 6 shows: the paper calls this the more sensitive of the two.",
        "eval", over_option(NUCLEUS, "p_nuc", "A higher threshold gives higher accuracy and higher usage."),
    ),
)  # fmt: skip
