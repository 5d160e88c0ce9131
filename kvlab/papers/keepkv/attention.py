"""KeepKV, figures 2a to 2d, with the claims: concentration, return of evicted tokens, locality in time, predictability.

All four use the model's own attention, from any recorded run of a prompt, preferably the full cache's.
"""

import math

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from kvlab.papers.attention_rows import (
    CUMULATIVE,
    EMA,
    LAST,
    LAST_QUERY,
    OWN,
    TOP,
    WINDOW_MEAN,
    WINDOWED,
    concentration_of_heads,
    heads_with_attention,
    prediction_errors,
    prediction_errors_of_heads,
    read_rows,
    returning_of_head,
    returning_of_heads,
    variances,
)
from kvlab.papers.evidence import Evidence, basis_of, comparison, gather, interval_of, mean_text, over_prompts
from kvlab.papers.exhibit import Choice, Drawn, Needs, draws
from kvlab.papers.keepkv.merging import COMPARED as RULES
from kvlab.results.sources import Sources
from kvlab.results.verdict import FAILS, LEAST_PROMPTS, OPEN, Claim, Threshold, decisive, judge
from kvlab.trace.reader import Run
from kvlab.views.base import words
from kvlab.views.base.head_map import head_map
from kvlab.views.base.lines import add_band, add_line, add_points
from kvlab.views.base.palette import HUES, LOSS, SURFACES, Theme, mix, pick
from kvlab.views.base.provenance import Provenance, join_sources, of_run
from kvlab.views.base.template import QUIET, finish, log_axis
from kvlab.views.frames.lineage import token_texts

MAX_POINTS = 1500
KINDS = {"mass": "attention", "score": "exp scores as printed"}
LOOKS = (
    ("blue", "solid", "circle"),
    ("orange", "dash", "diamond"),
    ("green", "dot", "square"),
    ("grey", "dashdot", "x"),
)


MAJORITY = 0.5
WINDOW = 8

NOT_ALWAYS = "Retaining the top tokens does not always preserve the majority of the attention."
RETURNS = "Evicted tokens may become important later."
IN_TIME = "Attention scores are local in time: they vary less inside a window of steps than over all of them."
PREDICTS = "The moving average with bias correction predicts {what} better than cumulative attention and window means."
SOME = Threshold(0.0, "one head in which half the attention is lost is enough against always")
RETURNED = Threshold(0.1, "one evicted token in ten; the paper plots the share and prints no number")
LOCAL = Threshold(0.9, "a tenth less than with the steps in random order; without locality the two agree", at_most=True)
BETTER = Threshold(0.0, "a smaller error than the other predictor's, on the same rows", at_most=True)


def concentration(run: Run) -> pd.DataFrame:
    """One row per head: mean (`mass`) and minimum over queries (`least`) of the top fifth's attention."""
    frame = concentration_of_heads(run, heads_with_attention(run))
    return frame[np.isclose(frame["share"], TOP)].drop(columns="share").reset_index(drop=True)


def returning(run: Run) -> pd.DataFrame:
    """One row per head, for the prompt tokens outside the top fifth: share that is `ever` in the top fifth of a
    later step, mean `share` per step, and the attention on all of them with nothing dropped (`mass`)."""
    parts = [(place, returning_of_head(run, None, *place)) for place in heads_with_attention(run)]
    rows = []
    for (layer, head), frame in parts:
        if len(frame):
            kind = WINDOW_MEAN if WINDOW_MEAN in set(frame["kind"]) else LAST_QUERY
            mine = frame[frame["kind"] == kind]
            last = mine[mine["step"] == mine["step"].max()]
            found = {"ever": last["ever"].mean(), "share": mine["share"].mean(), "mass": mine["mass"].mean()}
            rows.append({"layer": layer, "head": head, "steps": int(mine["step"].max()), **found})
    return pd.DataFrame(rows)


def in_time(run: Run) -> pd.DataFrame:
    """One row per head: `recorded` and `shuffled` (`variance_ratios`)."""
    rows = []
    for layer, head in heads_with_attention(run):
        frame = variances(read_rows(run, layer, head), WINDOW)
        if len(frame):
            recorded, shuffled = variance_ratios(frame)
            rows.append({"layer": layer, "head": head, "recorded": recorded, "shuffled": shuffled})
    return pd.DataFrame(rows)


def variance_ratios(frame: pd.DataFrame) -> tuple[float, float]:
    """Variance inside windows relative to that over all steps, summed over tokens; and the same with shuffled steps.

    NaN for constant attention.
    """
    whole = float(frame["variance"].sum()) or float("nan")
    return float(frame["window_variance"].sum()) / whole, float(frame["shuffled"].sum()) / whole


def predicting(run: Run) -> pd.DataFrame:
    """One row per head and kind of score that was recorded: each predictor's median relative error over the steps."""
    rows = []
    for layer, head in heads_with_attention(run):
        recorded = read_rows(run, layer, head)
        for kind in ("mass", "score"):
            errors = prediction_errors(recorded, kind)
            if len(errors):
                medians = errors.groupby("predictor")["error"].median().to_dict()
                rows.append({"layer": layer, "head": head, "kind": kind, **medians})
    return pd.DataFrame(rows)


CONCENTRATION = Evidence("concentration", concentration)
RETURNING = Evidence("returning", returning)
IN_TIME_ROWS = Evidence("in-time", in_time)
PREDICTING = Evidence("predicting", predicting)


def majority(rows: pd.DataFrame) -> Claim:
    """Share of heads in which some query gives the top fifth less than half of its attention."""
    if rows.empty:
        return Claim(NOT_ALWAYS, OPEN, "No run recorded its attention.")
    flat = over_prompts(rows.assign(flat=(rows["least"] < MAJORITY).astype(float)), "flat")
    least = rows.loc[rows["least"].idxmin()]
    verdict = SOME.side(flat)
    if flat is not None and flat.mean == 0 and flat.n >= LEAST_PROMPTS:
        verdict = FAILS
    finding = (
        f"In {mean_text(flat, words.percent)} of the heads some query gives the top {words.percent(TOP)} of the tokens "
        f"less than half; least {words.percent(least['least'])} (layer {int(least['layer'])}, head "
        f"{int(least['head'])}); the median head's mean is {words.percent(rows['mass'].median())}."
    )
    return Claim(NOT_ALWAYS, verdict, finding, basis_of(rows), flat, SOME)


def returns(rows: pd.DataFrame) -> Claim:
    """How many of the evictable tokens become important again."""
    if rows.empty:
        return Claim(RETURNS, OPEN, "No run decoded a step after its prompt.")
    ever, share, mass = (over_prompts(rows, name) for name in ("ever", "share", "mass"))
    finding = (
        f"{mean_text(ever, words.percent)} of the prompt tokens outside the top {words.percent(TOP)} enter it within "
        f"{int(rows['steps'].max())} steps, {mean_text(share, words.percent)} at any one step (chance "
        f"{words.percent(TOP)}); with nothing dropped, the attention on them is {mean_text(mass, words.percent)}, "
        "mean over heads."
    )
    return judge(RETURNS, ever, RETURNED, basis_of(rows), finding)


def locality(rows: pd.DataFrame) -> Claim:
    """Variance inside windows relative to that with shuffled steps."""
    if rows.empty:
        return Claim(IN_TIME, OPEN, f"Windows of {WINDOW} steps need more than {WINDOW} decode steps.")
    known = rows.assign(ratio=rows["recorded"] / rows["shuffled"].where(rows["shuffled"] > 0)).dropna(subset="ratio")
    if known.empty:
        return Claim(IN_TIME, OPEN, "In no head does attention vary from step to step.", basis_of(rows))
    ratio = over_prompts(known, "ratio")
    finding = (
        f"The variance inside {WINDOW} steps is {mean_text(ratio, words.number)} times that with the steps in random "
        f"order, mean over heads; {words.percent(float((known['ratio'] < LOCAL.value).mean()))} of the heads are below "
        f"{LOCAL.value:g}. (With variances that divide by n the printed comparison holds for any data; these divide "
        "by n - 1.)"
    )
    return judge(IN_TIME, ratio, LOCAL, basis_of(known), finding)


def predicts(rows: pd.DataFrame, kind: str, what: str) -> Claim:
    """EMA against the cumulative mean and the window mean on the same rows; the last score is reported as well."""
    mine = rows[rows["kind"] == kind] if "kind" in rows else rows.iloc[:0]
    says = PREDICTS.format(what=what)
    if mine.empty:
        return Claim(says, OPEN, f"No run recorded {what}.")
    means = mine.groupby("prompt", sort=False)[[EMA, CUMULATIVE, WINDOWED, LAST]].mean()
    gaps = {name: interval_of((means[EMA] - means[name]).tolist()) for name in (CUMULATIVE, WINDOWED)}
    errors = {name: interval_of(means[name].tolist()) for name in means}
    finding = (
        f"Relative error of the next step's {what} (median of a head's steps, mean over heads): EMA "
        f"{mean_text(errors[EMA], words.number)}, cumulative {mean_text(errors[CUMULATIVE], words.number)}, window "
        f"{mean_text(errors[WINDOWED], words.number)}; EMA minus these {mean_text(gaps[CUMULATIVE], words.number)} and "
        f"{mean_text(gaps[WINDOWED], words.number)}. Repeating the last score, which the paper does not compare, has "
        f"{mean_text(errors[LAST], words.number)}."
    )
    closest_first = sorted(gaps.values(), key=lambda one: 0.0 if one is None else -one.mean)
    verdict, decider, _ = decisive([(one, BETTER) for one in closest_first])
    return Claim(says, verdict, finding, basis_of(mine), decider, BETTER)


def attention_run(sources: Sources) -> Run | Needs:
    """The comparison's full-cache run if it recorded attention, else the current one, else any that did.

    The full cache's attention is the model's own; under another method later layers already see its errors.
    """
    candidates = [run for run in (sources.run_of("full"), sources.run, *sources.runs) if run is not None]
    found = next((run for run in candidates if heads_with_attention(run)), None)
    if found is not None:
        return found
    why = "No run of this comparison recorded its attention." if candidates else "There are no recorded runs yet."
    return Needs(why, comparison(sources, RULES))


def chosen_head(run: Run, layer: int, head: int) -> tuple[int, int]:
    """The user's head if its attention was recorded, else the first that has."""
    heads = heads_with_attention(run)
    return (layer, head) if (layer, head) in heads else heads[0]


@draws("keepkv/fig-2a")
def draw_concentration(sources: Sources, choice: Choice, theme: Theme) -> tuple[Drawn, ...] | Needs:
    """Figure 2a: attention held by the most attended tokens against their share of all."""
    run = attention_run(sources)
    if isinstance(run, Needs):
        return run
    layer, head = place = chosen_head(run, choice.layer, choice.head)
    frame = concentration_of_heads(run, list(dict.fromkeys([*heads_with_attention(run), place])))
    # The median head with a band of most heads, the chosen one, and the diagonal of equal attention.
    spread = frame.groupby("share")["mass"].quantile([0.1, 0.5, 0.9]).unstack()
    head_rows = frame[(frame["layer"] == layer) & (frame["head"] == head)]
    figure = go.Figure()
    band = mix(pick(HUES["blue"], theme), SURFACES[theme], 0.75)
    add_band(figure, spread.index, spread[0.1], spread[0.9], band, "8 in 10 heads")
    for x, y, name, (hue, dash, _) in (
        (spread.index, spread[0.5], "median head", LOOKS[0]),
        (head_rows["share"], head_rows["mass"], f"layer {layer}, head {head}", LOOKS[1]),
        ([0, 1], [0, 1], "uniform", LOOKS[3]),
    ):
        hover = f"{name}: the top %{{x:.0%}} of the tokens hold %{{y:.1%}}"
        add_line(figure, x, y, name, pick(HUES[hue], theme), dash, hover)
    figure.add_vline(x=TOP, line={"color": QUIET[theme], "dash": "dot", "width": 1.2})
    finish(
        figure,
        title="Attention held by the most attended tokens",
        x="share of the tokens kept",
        y="share of attention they hold",
        theme=theme,
        height=400,
    )
    figure.update_xaxes(tickformat=".0%", range=[0, 1]).update_yaxes(tickformat=".0%", range=[0, 1.02])
    held = words.part(float(frame[np.isclose(frame["share"], TOP)]["mass"].median()))
    caption = words.sentence(f"in a typical head, {held} of the attention is on the few tokens read most")
    claim = majority(gather(sources, CONCENTRATION))
    return (Drawn("cumulative attention", figure, frame, caption, of_run(run), claim),)


@draws("keepkv/fig-2b")
def draw_return(sources: Sources, choice: Choice, theme: Theme) -> tuple[Drawn, ...] | Needs:
    """Figure 2b: evictable prompt tokens that later enter the most attended."""
    run = attention_run(sources)
    if isinstance(run, Needs):
        return run
    full = (one for one in sources.runs if one.record.level == "full")
    evicting = next((one for one in full if one.steps["evicted"].sum() > 0), None)
    method = sources.run if sources.run and sources.run.record.method != "full" else evicting
    heads = heads_with_attention(run)
    if method is not None:
        heads = [place for place in heads if place in heads_with_attention(method)]
    frame = returning_of_heads(run, method, heads)
    if frame.empty:
        return Needs("This run decoded no step after the prompt.", comparison(sources, RULES))
    kinds = list(frame["kind"].unique())
    shown = WINDOW_MEAN if WINDOW_MEAN in kinds else kinds[0]
    last = frame[frame["kind"] == shown].sort_values("step").groupby(["layer", "head"]).last().reset_index()
    where = of_run(run)
    if method and OWN in kinds:
        where = join_sources(where, Provenance(f"evictions of {method.record.label}"))
    # Mean over heads of the tokens that are back at a step, and of those that ever were so far.
    figure = go.Figure()
    for (kind, group), (hue, _, marker) in zip(frame.groupby("kind", sort=False), LOOKS, strict=False):
        means = group.groupby("step")[["share", "ever"]].mean()
        colour = pick(HUES[hue], theme)
        for column, dash, what in (("share", "solid", "at this step"), ("ever", "dash", "at any step so far")):
            name = f"{kind}, {what}"
            hover = f"{kind}<br>step %{{x}}: %{{y:.1%}} {what}"
            add_line(
                figure, means.index, means[column], name, colour, dash, hover, marker=marker, marker_maxdisplayed=8
            )
    line = {"color": QUIET[theme], "dash": "dot", "width": 1.2}
    figure.add_hline(y=TOP, line=line, annotation_text="chance", annotation_position="top left")
    title = f"Evicted prompt tokens that return to the top {words.percent(TOP)}"
    finish(figure, title=title, x="decode step", y="share of the evicted tokens", theme=theme, height=440)
    figure.update_layout(margin={"t": 128}, legend={"entrywidth": 0.47, "entrywidthmode": "fraction"})
    figure.update_yaxes(tickformat=".3~p", rangemode="tozero")
    back = words.part(float(frame[frame["step"] == frame["step"].max()]["ever"].mean()))
    caption = words.sentence(f"{back} of what could be dropped becomes important again later")
    # Share of the evictable tokens that return at least once, by layer and KV head.
    by_head = last[["layer", "head", "ever"]]
    heads_figure = head_map(
        100 * by_head.pivot(index="layer", columns="head", values="ever"),
        "Evicted tokens that return at least once, by head",
        theme,
        bar="returned (%)",
        hover=": %{z:.1f} % return",
        high=100,
        colours=LOSS[theme],
    )
    of_heads = words.NOT_RECORDED
    if by_head["ever"].notna().any():
        text = f"{words.part(float(by_head['ever'].mean()))} of what could be dropped becomes important again later"
        same = words.near(float(by_head["ever"].min()), float(by_head["ever"].max()))
        of_heads = words.sentence(text if same else f"{text}, in some heads more than in others")
    return (
        Drawn("by step", figure, frame, caption, where, returns(gather(sources, RETURNING))),
        Drawn("by head", heads_figure, by_head, of_heads, of_run(run)),
    )


@draws("keepkv/fig-2c")
def draw_variance(sources: Sources, choice: Choice, theme: Theme) -> tuple[Drawn, ...] | Needs:
    """Figure 2c: variance of each token's attention over all steps and within windows."""
    run = attention_run(sources)
    if isinstance(run, Needs):
        return run
    layer, head = chosen_head(run, choice.layer, choice.head)
    frame = variances(read_rows(run, layer, head), WINDOW)
    if frame.empty:
        why = f"Variances in windows of {WINDOW} steps need more than {WINDOW} decode steps."
        return Needs(why, comparison(sources, RULES))
    # A point per token and kind of variance, of the most attended tokens.
    texts = token_texts(run.tokens, run.record.prompt_tokens)
    shown = frame.nlargest(MAX_POINTS, "mean").sort_values("token")
    labels = [words.visible(texts[token]) if token < len(texts) else "" for token in shown["token"]]
    figure = go.Figure()
    for column, name, (hue, _, marker) in (
        ("variance", "over all steps", LOOKS[0]),
        ("window_variance", "within a sliding window (mean)", LOOKS[1]),
    ):
        add_points(
            figure,
            shown["token"],
            shown[column].where(shown[column] > 0),
            name,
            pick(HUES[hue], theme),
            f"token %{{x}} %{{customdata}}: variance {name} %{{y:.3g}}",
            size=5,
            marker_symbol=marker,
            marker_opacity=0.65,
            customdata=labels,
        )
    title = "Variance of each token's attention while decoding"
    finish(figure, title=title, x="position of the token", y="variance (log)", theme=theme, height=400)
    figure.update_yaxes(**log_axis(shown[["variance", "window_variance"]].stack()))
    # Whether attention changes less within a short time.
    ratio, shuffled = variance_ratios(frame)
    caption = "How much attention changes was not recorded."
    if math.isfinite(ratio):
        how = words.comparison_words(ratio, shuffled, "more", "less", "no less", 0.05)
        drawn = words.shown_of(MAX_POINTS, len(frame), "token", "the most attended")
        caption = f"Within a short time, a token's attention changes {how} than over steps in random order.{drawn}"
    where = of_run(run).at(f"layer {layer}, head {head}")
    return (Drawn("variance by token", figure, frame, caption, where, locality(gather(sources, IN_TIME_ROWS))),)


@draws("keepkv/fig-2d")
def draw_prediction(sources: Sources, choice: Choice, theme: Theme) -> tuple[Drawn, ...] | Needs:
    """Figure 2d: relative error of the predictors."""
    run = attention_run(sources)
    if isinstance(run, Needs):
        return run
    frame = prediction_errors_of_heads(run, heads_with_attention(run))
    if frame.empty:
        return Needs("This run decoded no step after the prompt.", comparison(sources, RULES))
    rows = gather(sources, PREDICTING)
    drawn = []
    for kind, errors in frame.groupby("kind", sort=False):
        what = KINDS[str(kind)]
        medians = errors.groupby(["predictor", "step"], sort=False)["error"].median()
        figure = go.Figure()
        for name, (hue, dash, marker) in zip(medians.index.get_level_values(0).unique(), LOOKS, strict=False):
            line = medians[name]
            colour = pick(HUES[hue], theme)
            hover = f"{name}<br>step %{{x}}: relative error %{{y:.3g}}"
            add_line(figure, line.index, line, str(name), colour, dash, hover, marker=marker, marker_maxdisplayed=10)
        finish(
            figure,
            title=f"Error of predicting the next step's {'attention' if kind == 'mass' else 'exp score'}",
            x="decode step",
            y="relative error (median over heads, log)",
            theme=theme,
            height=400,
        )
        figure.update_yaxes(**log_axis(medians))
        caption = words.contrast(
            errors.groupby("predictor", sort=False)["error"].median(),
            "The next attention is predicted best by {least}, and worst by {most}.",
            "All predict equally well.",
            "Only {only} is shown.",
            "There was nothing to predict.",
        )
        drawn.append(Drawn(what, figure, errors, caption, of_run(run), predicts(rows, str(kind), what)))
    return tuple(drawn)
