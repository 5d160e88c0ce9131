"""Sag and KeepKV's bound on the output's change (theorem 5), computed from one head's recorded data.

For one query head: if every score is predicted to a relative error of at most epsilon < 1 and values differ by at most
gamma, merging changes the output by less than 2 epsilon (1 + epsilon) gamma / (1 - epsilon)^2. A run records the
attention-weighted mean of that relative error (`score_error`), not its maximum, and relative changes of the output; so
the bound uses the mean and is divided by the norm of the true output. It covers merging only, not eviction, and not
query heads that share a slot, whose error remains even with exact scores (docs/grouped-queries.md).
"""

from contextlib import suppress
from typing import NamedTuple

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from kvlab.core.errors import UserError
from kvlab.trace.reader import Run
from kvlab.views.base.head_map import Place, head_map
from kvlab.views.base.lines import Line, add_lines, add_points
from kvlab.views.base.palette import HUES, LOSS, SEQUENTIAL, Theme, pick
from kvlab.views.base.template import finish, log_axis
from kvlab.views.base.view import view
from kvlab.views.base.words import NOT_RECORDED, near, plural, sentence, some_of
from kvlab.views.frames.float16 import TOKENS_AT_ONCE, as_float32, token_blocks, weighted_sums
from kvlab.views.frames.head_states import recorded_layers
from kvlab.views.frames.lineage import keep_by_run

MOST_PAIRS = 16_000_000
ROWS_AT_ONCE = 512
COLUMNS = ("step", "sag", "perturbation", "output_error", "regret", "merged", "epsilon", "gamma", "bound", "flag")
LINES = (
    Line("bound", "KeepKV's bound", "ink", "solid"),
    Line("output_error", "output error, all steps so far", "blue", "solid", "circle"),
    Line("perturbation", "perturbation by this step alone", "orange", "dash", "diamond"),
    Line("sag", "absolute sag", "red", "dot", "triangle-down"),
)
MEASURES = {
    "bounded": ("Bound exists", "share of steps with epsilon < 1"),
    "above": ("Above the bound", "share of steps"),
    "epsilon": ("Prediction error", "median epsilon (at most 2 shown)"),
}
FLOOR = 1e-7
BOUNDS = {
    "bounded": "share of steps for which the theorem promises something",
    "above": "share of steps that change by more than the bound",
}


class HeadArrays(NamedTuple):
    """Unit values (tokens, head_dim), their norms (tokens,) and true masses (steps, tokens), float16 as recorded.

    Slot masses (steps, tokens) are read only if the method predicts no scores.
    """

    unit: np.ndarray
    norm: np.ndarray
    true_mass: np.ndarray
    slot_mass: np.ndarray | None


def predicts_scores(steps: pd.DataFrame) -> bool:
    """Whether the method predicts attention scores, judged by rows of `steps`."""
    return bool(steps["score_error"].notna().any())


def value_spread(unit: np.ndarray, norm: np.ndarray, merged: np.ndarray, mean: np.ndarray) -> float:
    """gamma: largest distance from the value of a token in `merged` (positions) to any value; NaN if none is.

    Values are `unit` (tokens, head_dim) times `norm` (tokens,). Up to `MOST_PAIRS` pairs are compared exactly; beyond
    that, the sum of the two largest distances to their `mean` (head_dim,) is an upper bound (triangle inequality).
    """
    if not len(merged):
        return float("nan")
    if len(merged) * len(unit) > MOST_PAIRS:
        away = distance_to_mean(unit, norm, mean)
        return float(away[merged].max() + away.max())
    values = as_float32(unit) * as_float32(norm)[:, None]
    some = values[merged]
    squares = np.einsum("td,td->t", values, values)
    largest = 0.0
    for start in range(0, len(some), ROWS_AT_ONCE):
        rows = some[start : start + ROWS_AT_ONCE]
        squared = (rows**2).sum(1)[:, None] + squares - 2 * rows @ values.T
        largest = max(largest, float(squared.max()))
    return float(np.sqrt(largest))


def distance_to_mean(unit: np.ndarray, norm: np.ndarray, mean: np.ndarray) -> np.ndarray:
    """(tokens,) distance of each value, `unit` times `norm`, to the `mean` (head_dim,) of all.

    The square is expanded to avoid a copy of the values (64 MB at 128k tokens).
    """
    squares = np.empty(len(unit), np.float32)
    room = np.empty(TOKENS_AT_ONCE * unit.shape[1], np.int32)
    for block in token_blocks(len(unit)):
        some = as_float32(unit[block], room)
        length = as_float32(norm[block])
        squares[block] = np.einsum("td,td->t", some, some) * length**2 - 2 * length * (some @ mean) + mean @ mean
    return np.sqrt(squares.clip(0))


def persistence_error(slot_mass: np.ndarray) -> np.ndarray:
    """(steps,) relative error of predicting each slot's attention by that of the previous step; NaN for the first step.

    This is the simplest predictor, implicit in every method that merges by present attention: absolute errors over the
    slots alive before, divided by the attention they received; NaN if they received none.
    """
    slot_mass = as_float32(slot_mass)
    before = slot_mass[:-1]
    now = slot_mass[1:]
    alive = before > 0
    received = (now * alive).sum(1)
    error = (np.abs(now - before) * alive).sum(1) / np.where(received > 0, received, np.nan)
    return np.concatenate([[np.nan], error])


def keepkv_bound(epsilon: np.ndarray, gamma: float | np.ndarray) -> np.ndarray:
    """2 epsilon (1 + epsilon) gamma / (1 - epsilon)^2 (KeepKV, theorem 5); NaN if epsilon >= 1."""
    known = np.where(epsilon < 1, epsilon, np.nan)
    return 2 * known * (1 + known) * gamma / (1 - known) ** 2


def bound_over_steps(
    steps: pd.DataFrame, events: pd.DataFrame, arrays: HeadArrays | None, query_heads: int = 1
) -> pd.DataFrame:
    """One row per step of one head, columns `COLUMNS`: its attention changes, and the bound relative to |o|.

    `epsilon` is the method's own (`score_error`) if it predicts, else from `persistence_error`. `flag` is empty if the
    output changed by less than the bound or no bound exists; otherwise "above", or what the theorem does not cover:
    "above, tokens dropped" after any eviction, or "above, heads share slots" if `query_heads` per KV head exceed 1.
    """
    steps = steps.sort_values("step")
    changed = events.groupby("step")["perturbation"].max().reindex(steps["step"])
    table = steps[["step", "output_error", "regret", "merged"]].reset_index(drop=True)
    table = table.assign(sag=steps["sag"].abs().to_numpy(), perturbation=changed.to_numpy())
    count = len(table)
    epsilon = steps["score_error"].to_numpy(np.float64)
    gamma = float("nan")
    length = np.full(count, np.nan)
    if arrays is not None:
        rows = min(count, len(arrays.true_mass))
        tokens = len(arrays.unit)
        sums = weighted_sums(arrays.true_mass[:rows], arrays.unit, arrays.norm)
        length[:rows] = np.linalg.norm(sums[:-1], axis=1)
        merges = events[events["target"] >= 0]
        merged = np.unique(merges[["source", "target"]].to_numpy())
        gamma = value_spread(arrays.unit, arrays.norm, merged, sums[-1] / tokens)
        if arrays.slot_mass is not None and np.isnan(epsilon).all():
            epsilon = np.append(persistence_error(arrays.slot_mass[:rows]), np.full(count - rows, np.nan))
    bound = keepkv_bound(epsilon, gamma) / np.where(length > 0, length, np.nan)
    change = table[["perturbation", "output_error"]].max(axis=1).to_numpy(np.float64)
    broken = np.isfinite(bound) & (change > bound)
    dropped = (table["regret"].fillna(0).cummax() > 0).to_numpy()
    kept = "above" if query_heads == 1 else "above, heads share slots"
    flag = np.where(broken, np.where(dropped, "above, tokens dropped", kept), "")
    return table.assign(epsilon=epsilon, gamma=gamma, bound=bound, flag=flag)[list(COLUMNS)]


@view("bound", title="Sag, output change and KeepKV's bound", needs="full", page="attention", by_step=True)
def bound_of_head(run: Run, layer: int, head: int) -> pd.DataFrame:
    """`bound_over_steps` of one layer and KV head, from what the run recorded; empty if it has no steps."""
    steps = run.select("steps", layer, head)
    if steps.empty:
        return pd.DataFrame(columns=list(COLUMNS))
    arrays = None
    with suppress(UserError):  # not recorded
        values = run.values(layer, head)
        # Slot masses are read only if the method predicts no scores.
        masses = (run.true_mass(layer, head), None) if predicts_scores(steps) else run.attention(layer, head)
        arrays = HeadArrays(*values, *masses)
    return bound_over_steps(steps, run.select("events", layer, head), arrays, query_heads_per_slot(run))


@keep_by_run(2)
def bound_by_head_frame(run: Run, layers: tuple[int, ...] | None = None) -> pd.DataFrame:
    """`bound_over_steps` of every KV head of these layers (default: all), with columns layer and head."""
    parts = []
    for layer in recorded_layers(run) if layers is None else layers:
        for head in range(run.record.model.num_key_value_heads):
            table = bound_of_head(run, layer, head)
            if len(table):
                parts.append(table.assign(layer=layer, head=head))
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=[*COLUMNS, "layer", "head"])


def typical_perturbation(run: Run) -> float | None:
    """Median relative output change of a head caused by one merging decision; None if there is none."""
    events = run.select("events", columns=["step", "layer", "head", "target", "perturbation"])
    merged = events[(events["target"] >= 0) & events["perturbation"].notna()]
    found = merged.groupby(["step", "layer", "head"])["perturbation"].max()
    return float(found.median()) if len(found) else None


@view("bound_medians", title="Sag, output change and KeepKV's bound", needs="full", page="attention", by_step=True)
def bound_medians(run: Run, layers: tuple[int, ...] | None = None) -> pd.DataFrame:
    """Median over heads per step, the share of heads with a bound (`bounded`) and of heads above it (`above`)."""
    names = ["sag", "perturbation", "output_error", "regret", "epsilon", "gamma", "bound"]
    groups = bound_by_head_frame(run, layers).groupby("step")
    above = groups["flag"].agg(lambda flags: float((flags != "").mean()))
    bounded = groups["bound"].agg(lambda values: float(values.notna().mean()))
    medians = groups[names].median().join(groups["merged"].sum())
    return medians.assign(bounded=bounded, above=above).reset_index()


@view("bound_by_head", title="KeepKV's bound by head", needs="full", page="attention")
def bound_of_heads(run: Run, layers: tuple[int, ...] | None = None) -> pd.DataFrame:
    """One row per layer and head: how often a bound exists and is exceeded, and median epsilon and gamma."""
    groups = bound_by_head_frame(run, layers).groupby(["layer", "head"])
    return pd.DataFrame(
        {
            "bounded": groups["bound"].agg(lambda values: float(values.notna().mean())),
            "above": groups["flag"].agg(lambda flags: float((flags != "").mean())),
            "epsilon": groups["epsilon"].median(),
            "gamma": groups["gamma"].first(),
            "output_error": groups["output_error"].median(),
        }
    ).reset_index()


def query_heads_per_slot(run: Run) -> int:
    """Query heads per KV head; above 1, no merged slot can be exact for all of them (docs/grouped-queries.md)."""
    return run.record.model.num_attention_heads // run.record.model.num_key_value_heads


@bound_medians.figure
@bound_of_head.figure
def sag_against_bound(frame: pd.DataFrame, theme: Theme = "light") -> go.Figure:
    """The three measures and the bound over the steps of one head (`bound_over_steps`) or as medians over heads
    (`bound_medians`); steps above the bound are marked."""
    # On a log axis: floored, and nothing where values are not positive.
    values = frame[[line.column for line in LINES]].astype(np.float64)
    drawn = values.where(values > 0).clip(lower=FLOOR)
    figure = go.Figure()
    for line in LINES:
        if drawn[line.column].notna().any():
            width = 2.4 if line.column == "bound" else 1.6
            hover = "step %{x}: {name} %{y:.3g}"
            add_lines(figure, frame["step"], drawn, [line], theme, hover, size=5, width=width)
    broken = frame[frame["flag"] != ""] if "flag" in frame else frame.iloc[:0]
    if len(broken):
        largest = broken[["perturbation", "output_error"]].max(axis=1)
        add_points(
            figure,
            broken["step"],
            largest,
            "above the bound",
            pick(HUES["red"], theme),
            "step %{x}: %{customdata}",
            size=12,
            marker_symbol="x-open",
            marker_line_width=2.5,
            customdata=broken["flag"],
        )
    if not figure.data:
        figure.add_scatter(x=frame["step"], y=frame["output_error"], name="output error", mode="lines")
    title = "Sag, output change and KeepKV's bound"
    finish(figure, title=title, x="step", y="share of attention, relative change (log)", theme=theme, height=430)
    figure.layout.showlegend = True
    return figure.update_yaxes(**log_axis(drawn.to_numpy()))


@bound_medians.caption
@bound_of_head.caption
def caption_sag_against_bound(frame: pd.DataFrame) -> str:
    """Whether KeepKV's theorem applies, and whether its bound holds, in one head or in medians over heads."""
    medians = "above" in frame
    over = "Medians over heads. " if medians else ""
    if not frame["gamma"].notna().any():
        return f"{over}KeepKV's bound on the change cannot be computed here."
    if not frame["bound"].notna().any():
        return f"{over}The condition of KeepKV's theorem is never met here, so it promises nothing."
    above = frame["above"].mean() > 0 if medians else bool((frame["flag"] != "").any())
    changes = "some changes are" if above else "no change is"
    return f"{over}Where KeepKV's theorem applies, {changes} larger than its bound."


@bound_of_heads.figure
def bound_by_head(
    frame: pd.DataFrame, theme: Theme = "light", measure: str = "bounded", focus: Place | None = None
) -> go.Figure:
    """One of `MEASURES` by layer and KV head, from `bound_of_heads`."""
    title, unit = MEASURES[measure]
    table = frame.assign(epsilon=frame["epsilon"].clip(upper=2)).pivot(index="layer", columns="head", values=measure)
    largest = 2.0 if measure == "epsilon" else 1.0
    colours = SEQUENTIAL[theme] if measure == "bounded" else LOSS[theme]
    hover = f"<br>{unit} %{{z:.3g}}"
    return head_map(table, title, theme, bar=unit, hover=hover, high=largest, colours=colours, focus=focus)


@bound_of_heads.caption
def caption_bound_by_head(frame: pd.DataFrame, measure: str = "bounded") -> str:
    """In which heads the theorem applies, or the head with the largest share."""
    if measure == "epsilon":
        count = int((frame["epsilon"] < 1).sum())
        return sentence(f"the condition of KeepKV's theorem is met in {some_of(count, len(frame), 'head')}")
    if not frame[measure].notna().any():
        return NOT_RECORDED
    values = frame[measure].fillna(0)
    if near(float(values.min()), float(values.max())):
        return sentence(f"the {BOUNDS[measure]} is the same in every head")
    top = frame.loc[values.idxmax()]
    return sentence(f"the {BOUNDS[measure]} is largest in layer {int(top['layer'])}, head {int(top['head'])}")


def verdict(frame: pd.DataFrame, label: str, place: Place) -> str:
    """At how many steps KeepKV's bound exists, and at how many the output changed by more."""
    where = f"layer {place[0]}, head {place[1]} of {label}"
    if not frame["gamma"].notna().any():
        why = "its values or attention rows are missing" if frame["merged"].any() else "nothing was merged there"
        return f"KeepKV's bound cannot be computed for {where}: {why}."
    bounded = int(frame["bound"].notna().sum())
    steps = f"{bounded:,} of {plural(len(frame), 'step')}"
    if not bounded:
        return f"KeepKV's bound promises nothing for {where}: its condition is met at no step."
    above = int((frame["flag"] != "").sum())
    more = f"{above:,}" if above else "none"
    return f"KeepKV's bound exists for {steps} of {where}; the output changed by more at {more}."
