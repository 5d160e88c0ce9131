"""PyramidPool, figures 2 to 5: axes, budgets of the layers, windows pooled again, and locality by layer."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from kvlab.analysis.lineage import fold
from kvlab.atlas.analysis.attended_distance import by_layer
from kvlab.atlas.analysis.pyramid import (
    age_and_tokens,
    layer_budgets,
    ratio,
    spans,
    spread_by_axis,
    straight,
    touched_sinks,
)
from kvlab.atlas.evidence import Evidence
from kvlab.atlas.prompt_means import basis_of, interval_of, over_prompts, words_of
from kvlab.common.intervals import Interval
from kvlab.figures.base.words import number, percent
from kvlab.results.verdict import FAILS, OPEN, Basis, Claim, Threshold, judge, never
from kvlab.trace.reader import Run

OURS = "pyramid-pool"
KEEPS_ONE = ("best", "max-norm")
TWO_AXES = "PyramidPool compresses along the sequence and the layers, not along the heads."
FALLS = "Budgets fall linearly from L0 to L0 / beta over the layers, and the sinks are never compressed."
OLDER = "The oldest tokens are compressed most and the most recent are kept as they are."
LOCALISES = "Attention gets more local from layer to layer."
STRAIGHT, UNEQUAL = 0.99, 1.02
WHY_STRAIGHT = "rounding to whole slots bends a line by less than a hundredth of its variance"
WHY_UNEQUAL = "of layers, and not of heads: rounding to whole slots makes both differ by up to a fiftieth"
TREND = "half of a perfect rank correlation, in size; below it a figure shows no trend"
GROWS, SINKS_IN = Threshold(0.5, TREND), Threshold(-0.5, TREND, at_most=True)


def axes(run: Run) -> pd.DataFrame:
    """One row: `layers` and `heads`, the largest over the smallest number of slots along each, at the last step."""
    steps = run.steps
    return pd.DataFrame([spread_by_axis(steps, int(steps["step"].max()))]) if len(steps) else pd.DataFrame()


def layer_lines(run: Run) -> pd.DataFrame:
    """One row: how many `layers`, how straight their budgets fall (`explained`), the `ratio` of the first to the last,
    their `total`, `beta`, and how many `sinks` there are and were `touched`."""
    steps = run.steps
    if steps.empty:
        return pd.DataFrame()
    frame = layer_budgets(steps, int(steps["step"].max()))
    asked = frame["asked"].tolist()
    sinks, beta = (run.record.hyper_parameters.get(name) for name in ("sinks", "beta"))
    touched, every = touched_sinks(run, sinks if isinstance(sinks, int) else 0)
    line = {
        "layers": len(asked),
        "explained": straight(frame["layer"].to_numpy(float), frame["asked"].to_numpy(float))[1],
        "ratio": ratio(asked[0], asked[-1]),
        "total": sum(asked),
        "beta": float(beta) if isinstance(beta, int | float) else float("nan"),
        "sinks": every,
        "touched": touched,
    }
    return pd.DataFrame([line])


def windows(run: Run) -> pd.DataFrame:
    """A row a head: `trend`, the rank correlation of a slot's age with its tokens at the last step, and how many tokens
    the `newest` slot stands for. A run that keeps one token of a window pools nothing, and has no rows."""
    if run.record.hyper_parameters.get("pooling") in KEEPS_ONE:
        return pd.DataFrame()
    model, rows = run.record.model, []
    window = run.record.hyper_parameters.get("window", 4)
    for layer in range(model.num_hidden_layers):
        for head in range(model.num_key_value_heads):
            steps = run.select("steps", layer, head)
            if len(steps):
                lineage = fold(run.select("events", layer, head), steps)
                table = spans(lineage, int(lineage.steps[-1]), window if isinstance(window, int) else 4)
                newest = int(table["tokens"].to_numpy()[np.argmax(table["first"].to_numpy())])
                rows.append({"layer": layer, "head": head, "trend": age_and_tokens(table), "newest": newest})
    return pd.DataFrame(rows)


def distances(run: Run) -> pd.DataFrame:
    """A row a head: `share` of the text that it looks back over, and more of `attended_distance.by_layer`."""
    return by_layer(run)


AXES = Evidence("axes", axes, (OURS,))
LINES = Evidence("layer-lines", layer_lines, (OURS, "pool"))
WINDOWS = Evidence("windows", windows, (OURS, "pool"))
DISTANCES = Evidence("distances", distances)


def two_axes(rows: pd.DataFrame) -> Claim:
    """Layers differ and heads do not, in every prompt."""
    if rows.empty:
        return Claim(TWO_AXES, OPEN, "There is no run of PyramidPool.")
    basis = Basis(rows["prompt"].nunique())
    broken = int((~((rows["layers"] > UNEQUAL) & (rows["heads"] <= UNEQUAL))).sum())
    finding = (
        f"Largest over smallest layer {words_of(over_prompts(rows, 'layers'), number)}, largest over smallest head of "
        f"a layer {words_of(over_prompts(rows, 'heads'), number)}."
    )
    return Claim(TWO_AXES, never(broken, basis), finding, basis, threshold=Threshold(UNEQUAL, WHY_UNEQUAL))


def falls(rows: pd.DataFrame) -> Claim:
    """Straight, falling, and no sink touched, in every prompt."""
    if rows.empty:
        return Claim(FALLS, OPEN, "There is no run of PyramidPool.")
    basis = Basis(rows["prompt"].nunique())
    finding = (
        f"A straight line explains {_at_least(rows['explained'].min())} of how the budgets vary; first over last layer "
        f"{words_of(over_prompts(rows, 'ratio'), number)}"
        f"{f' (beta {rows.beta.iloc[0]:g})' if rows['beta'].notna().any() else ''}; {int(rows['touched'].sum()):,} of "
        f"{int(rows['sinks'].sum()):,} sinks took part in a merge or left."
    )
    if rows["layers"].min() < 3:
        return Claim(FALLS, OPEN, f"{finding} Fewer than three layers make no line.", basis)
    falling = (rows["ratio"] > 1) | (rows["beta"] == 1)
    broken = int((~((rows["explained"] >= STRAIGHT) & falling & (rows["touched"] == 0))).sum())
    return Claim(FALLS, never(broken, basis), finding, basis, threshold=Threshold(STRAIGHT, WHY_STRAIGHT))


def _at_least(share: float) -> str:
    """A share of one or less in words, never more than it is."""
    return "all" if share == 1 else f"at least {math.floor(1000 * share) / 10:g} %"


def older(rows: pd.DataFrame) -> Claim:
    """Older slots stand for more tokens, and the newest for one."""
    known = rows.dropna(subset="trend") if "trend" in rows else rows.iloc[:0]
    if known.empty:
        return Claim(OLDER, OPEN, "No slot stands for more than one token.")
    trend, basis = over_prompts(known, "trend"), basis_of(known)
    single = int((rows["newest"] == 1).sum())
    finding = (
        f"Rank correlation of a slot's age with its tokens {words_of(trend, number)}, mean over heads; the newest slot "
        f"stands for one token in {single:,} of {len(rows):,} heads."
    )
    if never(len(rows) - single, basis) == FAILS:  # then the trend decides nothing
        return Claim(OLDER, FAILS, finding, basis)
    return judge(OLDER, trend, GROWS, basis, finding)


def _of_halves(means: pd.DataFrame, trend: Interval | None) -> str:
    """How far back both halves of the layers look, where that goes the way of the trend; else the two extreme layers.

    A single layer, the first or the last, may go against the trend of all.
    """
    half = means.shape[1] // 2
    early, late = (means.iloc[:, part].mean(axis=1) for part in (slice(half), slice(-half, None)))
    if trend is None or (late.mean() - early.mean()) * trend.mean >= 0:
        first, second = (words_of(interval_of(part.tolist()), percent) for part in (early, late))
        return f"{first} of the text back in the first half of the layers, {second} in the second"
    layers = means.mean()
    far, near = (words_of(interval_of(means[layer].tolist()), percent) for layer in (layers.idxmax(), layers.idxmin()))
    return f"{far} of the text back in layer {layers.idxmax()}, the furthest, {near} in layer {layers.idxmin()}"


def localises(rows: pd.DataFrame) -> Claim:
    """The rank correlation of layer with attended distance, prompt by prompt."""
    if rows.empty:
        return Claim(LOCALISES, OPEN, "No run recorded its attention.")
    means = rows.groupby(["prompt", "layer"])["share"].mean().unstack("layer")
    if means.shape[1] < 3:
        return Claim(LOCALISES, OPEN, f"{means.shape[1]} layers are too few for a trend.", basis_of(rows))
    layers = pd.Series(range(means.shape[1]), index=means.columns, dtype=float)
    trend = interval_of([float(layers.corr(line.rank())) for _, line in means.iterrows()])
    finding = (
        f"Rank correlation of layer with attended distance {words_of(trend, number)} over {means.shape[1]} layers; "
        f"{_of_halves(means, trend)}."
    )
    return judge(LOCALISES, trend, SINKS_IN, basis_of(rows), finding)
