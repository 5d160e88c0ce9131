"""KeepKV, figures 2a to 2d: concentration, return of evicted tokens, temporal locality, predictability.

All four use the model's own attention, from any recorded run of a prompt, preferably the full cache's.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from kvlab.atlas.analysis.attention_rows import (
    TOP,
    Rows,
    concentration_of_heads,
    heads_with_attention,
    read_rows,
    variances,
)
from kvlab.atlas.analysis.evicted_attention import LAST_QUERY, WINDOW_MEAN, returning_of_head
from kvlab.atlas.analysis.predictors import CUMULATIVE, EMA, LAST, WINDOWED, prediction_errors
from kvlab.atlas.evidence import Evidence
from kvlab.atlas.prompt_means import basis_of, interval_of, mean_text, over_prompts
from kvlab.figures.base.words import number, percent
from kvlab.results.verdict import FAILS, LEAST_PROMPTS, OPEN, Claim, Threshold, decisive, judge
from kvlab.trace.reader import Run

MAJORITY, WINDOW = 0.5, 8

NOT_ALWAYS = "Retaining the top tokens does not always preserve the majority of the attention."
RETURNS = "Evicted tokens may become important later."
IN_TIME = "Attention scores are local in time: they vary less inside a window of steps than over all of them."
PREDICTS = "The moving average with bias correction predicts {what} better than cumulative attention and window means."
SOME = Threshold(0.0, "one head in which half the attention is lost is enough against always")
RETURNED = Threshold(0.1, "one evicted token in ten; the paper plots the share and prints no number")
LOCAL = Threshold(0.9, "a tenth less than with the steps in random order; without locality the two agree", at_most=True)
BETTER = Threshold(0.0, "a smaller error than the other predictor's, on the same rows", at_most=True)


def concentration(run: Run) -> pd.DataFrame:
    """One row per head: mean (`mass`) and minimum over queries (`least`) of the attention on the top fifth of the
    tokens."""
    frame = concentration_of_heads(run, heads_with_attention(run))
    return frame[np.isclose(frame["share"], TOP)].drop(columns="share").reset_index(drop=True)


def returning(run: Run) -> pd.DataFrame:
    """One row per head, for the prompt tokens outside the top fifth: share that is `ever` in the top fifth of a
    later step, mean `share` per step, and the full cache's attention on all of them (`mass`)."""
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
    """One row per head and kind of score: each predictor's median relative error over the decode steps."""
    rows = []
    for layer, head in heads_with_attention(run):
        rows += predictor_medians(read_rows(run, layer, head), {"layer": layer, "head": head})
    return pd.DataFrame(rows)


def predictor_medians(rows: Rows, place: dict[str, int]) -> list[dict[str, object]]:
    """One dictionary per recorded kind of score."""
    found: list[dict[str, object]] = []
    for kind in ("mass", "score"):
        errors = prediction_errors(rows, kind)
        if len(errors):
            found.append({**place, "kind": kind, **errors.groupby("predictor")["error"].median().to_dict()})
    return found


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
        f"In {mean_text(flat, percent)} of the heads some query gives the top {percent(TOP)} of the tokens less than "
        f"half; least {percent(least['least'])} (layer {int(least['layer'])}, head {int(least['head'])}); the median "
        f"head's mean is {percent(rows['mass'].median())}."
    )
    return Claim(NOT_ALWAYS, verdict, finding, basis_of(rows), flat, SOME)


def returns(rows: pd.DataFrame) -> Claim:
    """How many of the evictable tokens become important again."""
    if rows.empty:
        return Claim(RETURNS, OPEN, "No run decoded a step after its prompt.")
    ever, share, mass = (over_prompts(rows, name) for name in ("ever", "share", "mass"))
    finding = (
        f"{mean_text(ever, percent)} of the prompt tokens outside the top {percent(TOP)} enter it within "
        f"{int(rows['steps'].max())} steps, {mean_text(share, percent)} at any one step (chance {percent(TOP)}); the "
        f"full cache's attention on them is {mean_text(mass, percent)}, mean over heads."
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
        f"The variance inside {WINDOW} steps is {mean_text(ratio, number)} times that with the steps in random order, "
        f"mean over heads; {percent(float((known['ratio'] < LOCAL.value).mean()))} of the heads are below "
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
        f"{mean_text(errors[EMA], number)}, cumulative {mean_text(errors[CUMULATIVE], number)}, window "
        f"{mean_text(errors[WINDOWED], number)}; EMA minus these {mean_text(gaps[CUMULATIVE], number)} and "
        f"{mean_text(gaps[WINDOWED], number)}. Repeating the last score, which the paper does not compare, has "
        f"{mean_text(errors[LAST], number)}."
    )
    closest_first = sorted(gaps.values(), key=lambda one: 0.0 if one is None else -one.mean)
    verdict, decider, _ = decisive([(one, BETTER) for one in closest_first])
    return Claim(says, verdict, finding, basis_of(mine), decider, BETTER)
