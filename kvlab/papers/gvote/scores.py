"""GVote, figures 1 and 4 to 7: scores against usage, by length, task, model and its own options, with the claims."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from kvlab.common.formatting import mean_words, model_title
from kvlab.common.intervals import LEVEL, Interval
from kvlab.core.choice import FULL
from kvlab.evaluation.results.rows import canonical_json
from kvlab.evaluation.results.summary import with_measures
from kvlab.evaluation.scoring.metrics import higher_is_better
from kvlab.papers import evaluations
from kvlab.papers.exhibit import Choice, Draw, Drawn, Needs, draws
from kvlab.requests.measurement import Measurement
from kvlab.results.score_tables import NAMES, PROMPT, means_over_tasks, option_column, score_table, with_names
from kvlab.results.sources import Sources
from kvlab.results.verdict import OPEN, Basis, Claim, Threshold, judge
from kvlab.views import scores as figures
from kvlab.views.base import HUES, SURFACES, Provenance, Theme, finish, interval_bars, method_style, mix, pick, words
from kvlab.views.scores import TASK_HUES, TASK_MARKERS, line_text, sample_note

MEASURES = {"score": "score", "kept": "tokens kept", "seconds": "seconds per prompt"}
MOST_TASKS = len(TASK_HUES)


def usage_by_task(
    frame: pd.DataFrame, means: pd.DataFrame, origin: Provenance, claim: Claim | None, theme: Theme
) -> Drawn:
    """Share of the tokens kept, one box per task over its prompts; columns task, kept (one row per prompt).

    `means` has one row per task: the mean of kept with its interval.
    """
    kept = {line["task"]: line_text(line, "kept", words.percent) for _, line in means.iterrows()}
    figure = go.Figure()
    colour = method_style("gvote", theme).colour
    for name, group in frame.groupby("task", sort=False):
        task = words.with_spaces(str(name))
        q = group["kept"].quantile([0.05, 0.25, 0.5, 0.75, 0.95])
        figure.add_box(
            x=[task],
            q1=[q[0.25]],
            median=[q[0.5]],
            q3=[q[0.75]],
            lowerfence=[q[0.05]],
            upperfence=[q[0.95]],
            name=task,
            line={"color": colour, "width": 1.6},
            fillcolor=mix(colour, SURFACES[theme], 0.7),
        )
        figure.add_scatter(
            x=[task],
            y=[group["kept"].mean()],
            mode="markers",
            showlegend=False,
            marker={"symbol": "star-diamond", "size": 11, "color": pick(HUES["ink"], theme)},
            hovertemplate=f"{task}: mean {kept[name]}<extra></extra>",
        )
    finish(
        figure,
        title="Share of the tokens kept",
        x="box: quartiles and 5 to 95 % of the prompts; mark: mean",
        y="tokens kept",
        theme=theme,
        height=400,
        legend=False,
    )
    figure.update_yaxes(tickformat=".3~p", rangemode="tozero")
    # The tasks in which most and least is kept.
    share = words.part(float(means["kept"].iloc[0])) if len(means) else ""
    caption = words.contrast(
        means.set_index(means["task"].map(words.with_spaces))["kept"],
        "The largest part of a prompt is kept in {most}, the smallest in {least}.",
        f"In every task, {share} of a prompt is kept.",
        f"On average, {share} of a prompt is kept.",
    )
    return Drawn("usage", figure, frame, caption, origin, claim)


def option_sweep(
    frame: pd.DataFrame,
    means: pd.DataFrame,
    option: str,
    origin: Provenance,
    claim: Claim | None,
    theme: Theme,
) -> Drawn:
    """Score, tokens kept and seconds by the values of one option, one line per task, with 95 % intervals.

    `frame` has the columns of a score table with `MEASURES`, and the option's; `means` has one row per value, in order.
    """
    figure = make_subplots(1, len(MEASURES), subplot_titles=list(MEASURES.values()), horizontal_spacing=0.08)
    values = frame[option].drop_duplicates().tolist()
    for index, (task, group) in enumerate(list(frame.groupby("task", sort=False))[:MOST_TASKS]):
        group = group.set_index(option).reindex([value for value in values if value in set(group[option])])
        colour = pick(HUES[TASK_HUES[index]], theme)
        marker = TASK_MARKERS[index]
        for column, measure in enumerate(MEASURES, 1):
            figure.add_scatter(
                x=group.index,
                y=group[measure],
                name=words.with_spaces(str(task)),
                legendgroup=str(task),
                showlegend=column == 1,
                mode="lines+markers",
                line={"color": colour, "width": 1.8},
                marker={"symbol": marker, "size": 7, "color": colour},
                error_y=interval_bars(group, measure),
                text=[line_text(line, measure) for _, line in group.iterrows()],
                hovertemplate=f"{task}, {option} %{{x}}: {MEASURES[measure]} %{{text}}<extra></extra>",
                row=1,
                col=column,
            )
    name = option.replace("_", " ")
    axis = f"{name} ({sample_note(frame)})"
    finish(figure, title=f"Effect of {name}", x=axis, y="", theme=theme, height=420)
    figure.update_xaxes(type="category", categoryarray=values).update_yaxes(rangemode="tozero")
    figure.update_yaxes(tickformat=".3~p", col=2)
    figure.update_annotations(font={"size": 13})
    figure.update_layout(margin={"t": 118}, legend={"y": 1.12})
    # How the score changes from the first to the last value.
    caption = f"Only one {words.with_spaces(option)} was measured."
    if len(means) > 1:
        first = float(means["score"].iloc[0])
        last = float(means["score"].iloc[-1])
        how = words.comparison_words(last, first, "becomes higher", "becomes lower", "stays about the same", 0.02)
        caption = f"From the first {words.with_spaces(option)} to the last, the score {how}."
        if not words.are_known(first, last):
            caption = words.NOT_RECORDED
    return Drawn("sweep", figure, frame, caption, origin, claim)


SAVES = "GVote needs half the memory of fixed budgets at the same accuracy."
FOLLOWS = "Different tasks need different budgets, and GVote finds them."
EVERYWHERE = "GVote's advantage holds across models."
DRAWS = 400
TWICE = Threshold(2.0, "half the memory, as the paper says: the others need twice as much")
DIFFERENT = Threshold(1.5, "half as much again: less than that one budget for all tasks could hold")


def memory_claim(means: pd.DataFrame, prompts: pd.DataFrame) -> Claim:
    """Memory of fixed budgets at GVote's score, relative to GVote's; the best of them decides.

    `means` has one row per arm and budget (`means_over_tasks`), `prompts` one row per prompt, arm and budget: task,
    prompt, method, arm, asked, score, kept.
    """
    ours = means[means["method"] == OURS]
    full = means[means["method"] == FULL.method]
    if ours.empty or full.empty:
        return Claim(SAVES, OPEN, "GVote and the full cache were not both evaluated on every task.")
    if full["score"].iloc[0] < evaluations.ABLE:
        beside = figures.line_text(full.iloc[0])
        return Claim(SAVES, OPEN, f"The full cache itself scores {beside} on these tasks.")
    rivals = means[~means["method"].isin((OURS, FULL.method))]
    if rivals.empty:
        return Claim(SAVES, OPEN, "No fixed budget was evaluated for comparison.")
    found = times_the_memory(prompts)
    score = float(ours["score"].iloc[0])
    parts = []
    for arm, group in rivals.groupby("arm", sort=False):
        line = group.sort_values("kept")
        enough = needed_usage(line["kept"].to_numpy(float), line["score"].to_numpy(float), score)
        never = f"not with {words.percent(group['kept'].max())}"
        parts.append(f"{arm} {words.percent(enough) if np.isfinite(enough) else never}")
    text = (
        "not measured on the same prompts" if found is None else mean_words(found.mean, found.low, found.high, found.n)
    )
    finding = (
        f"GVote scores {figures.line_text(ours.iloc[0])} with {figures.line_text(ours.iloc[0], 'kept', words.percent)} "
        f"of the tokens, the full cache {figures.line_text(full.iloc[0])}; to score as much the others need, by lines "
        f"through their means over the same tasks: {', '.join(parts)}. The best of them needs {text} times GVote's."
    )
    return judge(SAVES, found, TWICE, Basis(found.n if found else 0), finding)


def needed_usage(kept: np.ndarray, reached: np.ndarray, score: float) -> float:
    """Smallest usage at which the line through the points, sorted by `kept`, reaches `score`; infinite if never."""
    for place in range(len(kept)):
        if reached[place] >= score:
            if place == 0:
                return float(kept[0])
            share = (score - reached[place - 1]) / (reached[place] - reached[place - 1])
            return float(kept[place - 1] + share * (kept[place] - kept[place - 1]))
    return float("inf")


def times_the_memory(prompts: pd.DataFrame) -> Interval | None:
    """Memory of the best fixed budget at GVote's score, as a multiple of GVote's, with its interval over prompts.

    Prompts are resampled within tasks, for all arms at once. A line below the score needs the whole cache.
    """
    cells = prompts.assign(cell=list(zip(prompts["arm"], prompts["asked"], strict=True)))
    wide = cells.pivot_table(index=["task", "prompt"], columns="cell", values=["score", "kept"], aggfunc="first")
    wide = wide.dropna()
    methods = cells.drop_duplicates("cell").set_index("cell")["method"]
    ours = [cell for cell, method in methods.items() if method == OURS]
    lines: dict[str, list[tuple[str, str]]] = {}
    for cell, method in methods.items():
        if method not in (OURS, FULL.method):
            lines.setdefault(cell[0], []).append(cell)
    if wide.empty or not ours or not lines:
        return None

    cell_of = {cell: place for place, cell in enumerate(wide["kept"].columns)}
    scores, shares = (wide[name].to_numpy(float) for name in ("score", "kept"))
    mine = cell_of[ours[0]]
    budgets = [[cell_of[cell] for cell in line] for line in lines.values()]

    def best(weights: np.ndarray) -> float:
        score = weights @ scores
        kept = weights @ shares
        ordered = (sorted(line, key=kept.__getitem__) for line in budgets)
        needed = (needed_usage(kept[line], score[line], float(score[mine])) for line in ordered)
        return float(min(1.0, *needed) / kept[mine])

    return bootstrap(best, wide.index.get_level_values("task"))


def bootstrap(measure: Callable[[np.ndarray], float], tasks: pd.Index) -> Interval:
    """Bootstrap interval of a measure of means over tasks, resampling prompts within tasks; `measure` takes weights."""
    labels = pd.factorize(tasks)[0]
    groups = [np.flatnonzero(labels == label) for label in np.unique(labels)]
    random = np.random.default_rng(0)

    def weights(again: bool) -> np.ndarray:
        found = np.zeros(len(labels))
        for group in groups:
            times = random.multinomial(len(group), np.full(len(group), 1 / len(group))) if again else 1
            found[group] = times / len(group) / len(groups)
        return found

    low, high = np.quantile([measure(weights(True)) for _ in range(DRAWS)], [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(measure(weights(False)), float(low), float(high), len(labels))


def budget_claim(used: pd.DataFrame, means: pd.DataFrame) -> Claim:
    """Share kept in the task with the largest relative to that with the smallest.

    `used` has one row per prompt (task, kept), `means` GVote's rows of the score table.
    """
    if len(means) < 2:
        return Claim(FOLLOWS, OPEN, "Only one kind of prompt was evaluated.", Basis(len(used)))
    least = means.loc[means["kept"].idxmin()]
    most = means.loc[means["kept"].idxmax()]
    ends = used[used["task"].isin((least["task"], most["task"]))]
    kept = ends["kept"].to_numpy(float)
    is_most = (ends["task"] == most["task"]).to_numpy()
    ratio = bootstrap(
        lambda weights: float(weights[is_most] @ kept[is_most] / (weights[~is_most] @ kept[~is_most])),
        pd.Index(ends["task"]),
    )
    low, high = (f"{line['task']} ({words.percent(line['kept'])})" for line in (least, most))
    within = used.groupby("task", sort=False)["kept"].std().mean()
    factor = mean_words(ratio.mean, ratio.low, ratio.high, ratio.n, words.number)
    finding = (
        f"Of the tokens GVote keeps least in {low}, most in {high}: {factor} times as much; prompts of one kind differ "
        f"by {words.percent(within)} (standard deviation)."
    )
    return judge(FOLLOWS, ratio, DIFFERENT, Basis(ratio.n), finding)


def everywhere(claims: dict[str, Claim], here: str) -> Claim:
    """`memory_claim` on the model `here`, which takes a second model; the finding names the others' verdicts.

    Verdicts of several models are never combined into one.
    """
    judged = replace(claims[here], paper=EVERYWHERE)
    others = "; ".join(f"{claim.verdict} on {name}" for name, claim in claims.items() if name != here)
    if others:
        return replace(judged, finding=f"On {here}: {judged.finding} On the other models: {others}.")
    more = "evaluate another with --model into the same folder"
    return Claim(EVERYWHERE, OPEN, f"Only 1 model was evaluated ({here}): {more}.")


OURS = "gvote"
JUDGED_AT = "gvote/fig-4"
MEAN = "mean over tasks"
ARMS = tuple(evaluations.Arm(name) for name in (OURS, "streaming-llm", "snapkv", "adakv"))
SWEEP = (0.1, 0.2, 0.3, 0.4, 0.5)
EIGHT = (*evaluations.OWN_TASKS, "needle_multivalue", "needle_multiquery", "variable_tracking", "copy")
BY_LENGTH = evaluations.Experiment(
    "gvote-fig-1", ARMS, SWEEP, tasks=("needle", "key_value"), lengths=(512, 1024, 2048, 3584)
)
BY_TASK = evaluations.Experiment("gvote-fig-4", ARMS, SWEEP, tasks=EIGHT)
BY_MODEL = evaluations.Experiment("gvote-fig-5", ARMS, SWEEP)
SAMPLES = evaluations.Experiment("gvote-fig-6", evaluations.arms(OURS, "samples", 1, 2, 4, 8, 16, 32))
NUCLEUS = evaluations.Experiment("gvote-fig-7", evaluations.arms(OURS, "p_nuc", 0.8, 0.9, 0.95, 0.98))


def against_usage(
    experiment: evaluations.Experiment,
    name: Callable[[pd.DataFrame], pd.Series],
    mean: bool,
    title: str,
    panel: str = "task",
) -> Draw:
    """Scores against tokens kept, a panel per name of the rows, and GVote's usage; `panel`: what the names are."""

    def draw(sources: Sources, choice: Choice, theme: Theme) -> tuple[Drawn, ...] | Needs:
        rows = experiment.rows(sources)
        if rows.empty or not (rows["method"] == OURS).any():
            return experiment.needs(sources)
        # Under another task name, prompts of different tasks stay distinct.
        rows = rows.assign(content=rows["task"] + rows["content"], task=name(rows))
        # Only panels that show more than the full cache.
        rows = rows[rows["task"].isin(rows.loc[rows["method"] != FULL.method, "task"])]
        rows = rows.sort_values("length", kind="stable") if panel == "length" else rows
        table = score_table(rows)
        means = mean_rows(rows, table)
        shown = pd.concat([table, means], ignore_index=True) if mean else table
        figure = figures.score_against_budget(shown, theme, title)
        where = evaluations.origin_of(experiment.rows(sources))
        caption = evaluations.caption_by_budget(rows, table, panel)
        saves, follows = sources.once("gvote's claims", lambda: _judged(sources))
        if experiment is not BY_TASK:
            saves, follows = (replace(one, judged_at=JUDGED_AT) for one in (saves, follows))
        return (
            Drawn("scores", figure, shown, caption, where, saves),
            usage_by_task(usage_rows(rows), own_rows(table), where, follows, theme),
        )

    return draw


def _judged(sources: Sources) -> tuple[Claim, Claim]:
    rows = BY_TASK.rows(sources)
    if rows.empty or not (rows["method"] == OURS).any():
        why = "The tasks of figure 4, which decide it, were not evaluated."
        missing = BY_TASK.evaluation(sources)
        saves, follows = (Claim(says, OPEN, why, settle=missing) for says in (SAVES, FOLLOWS))
        return saves, follows
    saves = _saves(rows, BY_TASK.more_prompts(sources))
    return saves, budget_claim(usage_rows(rows), own_rows(score_table(rows)))


def own_rows(rows: pd.DataFrame, column: str = "options") -> pd.DataFrame:
    """GVote's rows under its paper's settings or the defaults; `column` holds the settings."""
    known = ["{}", canonical_json(evaluations.Arm(OURS).published)]
    return rows[(rows["method"] == OURS) & rows[column].isin(known)]


def mean_rows(rows: pd.DataFrame, table: pd.DataFrame) -> pd.DataFrame:
    """An extra panel: means over the tasks, for arms that have all of them."""
    means = means_over_tasks(rows, table)
    every = means[means["tasks"] == table.loc[table["higher"], "task"].nunique()]
    return every.assign(task=MEAN, metric="mean", higher=True).reset_index(drop=True)


def usage_rows(rows: pd.DataFrame) -> pd.DataFrame:
    """One row per prompt under GVote: task, index, prompt_tokens, kept."""
    voted = own_rows(rows, "hyper_parameters")
    kept = voted["slots"] / voted["logical_tokens"]
    return voted.assign(kept=kept)[["task", "index", "prompt_tokens", "kept"]].reset_index(drop=True)


def _saves(rows: pd.DataFrame, settle: Measurement | None = None) -> Claim:
    # The rows of prompts that all arms have at all budgets; all rows if there is none.
    cells = rows["method"] + rows["hyper_parameters"].fillna("") + rows["budget"].astype(str)
    counts = rows.assign(cell=cells).groupby(PROMPT, dropna=False)["cell"].nunique()
    common = counts[counts == cells.nunique()].reset_index()[PROMPT]
    rows = rows.merge(common, on=PROMPT) if len(common) else rows
    table = score_table(rows)
    # One row per prompt, arm and budget shown in the table.
    shown = table.loc[table["higher"], ["task", *NAMES]].drop_duplicates()
    measured = with_names(with_measures(rows)).merge(shown, on=["task", *NAMES])
    prompts = measured.groupby(PROMPT, dropna=False, sort=False).ngroup()
    of_prompts = measured.assign(prompt=prompts)[["task", "prompt", "method", "arm", "asked", "score", "kept"]]
    claim = memory_claim(mean_rows(rows, table), of_prompts)
    return replace(claim, settle=settle if claim.verdict == OPEN and claim.basis.prompts else None)


@draws("gvote/fig-5")
def draw_models(sources: Sources, choice: Choice, theme: Theme) -> tuple[Drawn, ...] | Needs:
    """Figure 5: one panel per model, scores averaged over the tasks; the claim is judged on the model in view."""
    here = sources.measured_model
    names = sources.evaluations["model"].unique() if len(sources.evaluations) else []
    parts = []
    asked = []
    claims = {}
    for model in sorted(map(str, names), key=lambda name: (name != here, name)):
        # The same evaluations, of which those of one model count.
        narrowed = replace(sources, run=None, runs=(), named=model)
        narrowed.__dict__["evaluations"] = sources.evaluations
        rows = BY_MODEL.rows(narrowed)
        if len(rows) and (rows["method"] == OURS).any():
            title = model_title(model)
            parts.append(mean_rows(rows, score_table(rows)).assign(task=title))
            claims[title] = _saves(rows, BY_MODEL.more_prompts(sources) if model == here else None)
            higher = rows[rows["metric"].map(higher_is_better)]
            asked.append(higher.assign(content=higher["task"] + higher["content"], task=title))
    if model_title(here) not in claims:
        return BY_MODEL.needs(sources)
    table = pd.concat(parts, ignore_index=True)
    figure = figures.score_against_budget(table, theme, "Score by tokens kept, mean over tasks, by model")
    caption = evaluations.caption_by_budget(pd.concat(asked, ignore_index=True), table, "model")
    claim = everywhere(claims, model_title(here))
    origin = evaluations.origin_of(BY_MODEL.rows(sources)).at(words.plural(len(parts), "model"))
    return (Drawn("models", figure, table, caption, origin, claim),)


def over_option(experiment: evaluations.Experiment, option: str, says: str) -> Draw:
    """Score, usage and seconds by the values of an option, judged by whether score and usage rise from the smallest to
    the largest value, prompt by prompt, means over tasks."""

    def draw(sources: Sources, choice: Choice, theme: Theme) -> tuple[Drawn, ...] | Needs:
        rows = experiment.rows(sources)
        table = experiment.scores(sources)
        if table.empty:
            return experiment.needs(sources)
        frame = option_column(table, option).sort_values(option, key=lambda values: values.astype(float), kind="stable")
        means = means_over_tasks(rows, frame, [option, "arm"])
        means = means.sort_values(option, key=lambda values: values.astype(float), kind="stable")
        best = means.loc[means["score"].idxmax()]
        if len(means) < 2:
            claim = Claim(says, OPEN, f"Only one value of {option} was evaluated.")
        elif best["score"] < evaluations.ABLE:
            shown = figures.line_text(best)
            claim = Claim(says, OPEN, f"No value of {option} scores above {shown} on these tasks.", effect="floor")
        else:
            first = means.iloc[0]
            last = means.iloc[-1]
            score, kept = (
                evaluations.gap(with_measures(rows), last["arm"], first["arm"], column=column)
                for column in ("score", "kept")
            )
            finding = (
                f"From {option} {first[option]} to {last[option]} the mean score changes by "
                f"{evaluations.gap_text(score)} and the tokens kept by "
                f"{evaluations.gap_text(kept, lambda share: f'{100 * share:+.3g} points')}."
            )
            gaps = {"score": score, "kept": kept}
            claim = evaluations.contest(says, gaps, finding, experiment.more_prompts(sources))
        return (option_sweep(frame, means, option, evaluations.origin_of(rows), claim, theme),)

    return draw


draws("gvote/fig-1")(
    against_usage(
        BY_LENGTH,
        lambda rows: rows["length"].map(lambda length: f"{length:,} tokens" if length else "own prompts"),
        False,
        "Score by tokens kept, by length",
        "length",
    )
)
draws("gvote/fig-4")(against_usage(BY_TASK, lambda rows: rows["task"], True, "Score by tokens kept, by task"))
draws("gvote/fig-6")(over_option(SAMPLES, "samples", "More samples give better accuracy with moderately higher usage."))
draws("gvote/fig-7")(over_option(NUCLEUS, "p_nuc", "A higher threshold gives higher accuracy and higher usage."))
