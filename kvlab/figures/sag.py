"""Effect of compression on attention, by step and by head."""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from kvlab.figures.simple import attention as simple
from kvlab.views.base.caption import with_simple
from kvlab.views.base.head_map import Place, head_map
from kvlab.views.base.lines import Line, add_area, add_line, add_lines, hatch
from kvlab.views.base.palette import DIVERGING, HUES, LOSS, MASS_COLOURS, Theme, pick
from kvlab.views.base.template import finish, log_axis
from kvlab.views.base.words import lost_share, number, percent, plural

MEASURES = {
    "sag": ("Sag by head", "sag (share of attention)"),
    "regret": ("Regret by head", "regret (share of attention)"),
    "output_error": ("Output error by head", "relative output error"),
    "guard_activations": ("Guard activations by head", "activations"),
    "max_votes": ("Largest votes by head", "votes"),
}
SHARES = ("sag", "regret", "output_error")  # shown as percentages
MASSES = (
    Line("merged_true_mass", "true mass of merged tokens", "ink", "solid"),
    Line("merged_mass", "mass received by their slots", "purple", "dash"),
    Line("sag", "sag (the difference)", "red", "dot"),
)
ERRORS = (
    Line("output_error", "output error", "blue", "solid"),
    Line("regret", "regret", "grey", "dash"),
    Line("sag", "absolute sag", "red", "dot"),
)


def mass_over_steps(frame: pd.DataFrame, theme: Theme = "light") -> go.Figure:
    """Attention with nothing dropped, on kept tokens, merged tokens and dropped tokens, which sum to one."""
    figure = go.Figure()
    parts = (
        ("kept", frame["kept_mass"], "tokens with their own slot", ""),
        ("merged", frame["merged_true_mass"], "tokens in merged slots", ""),
        ("regret", frame["regret"], "dropped tokens (regret)", "/"),
    )
    for key, values, name, pattern in parts:
        colour = pick(MASS_COLOURS[key], theme)
        hover = f"step %{{x}}: %{{y:.3f}} to {name}"
        add_area(figure, frame["step"], values, name, colour, hover, hatch(pattern, colour, theme, pale=0.5))
    received = frame["kept_mass"] + frame["merged_mass"]
    if frame["merged_true_mass"].fillna(0).max() > 0:
        name = "kept + received by merged slots"
        ink = pick(HUES["ink"], theme)
        add_line(figure, frame["step"], received, name, ink, "dot", "step %{x}: %{y:.3f}", width=1.6)
    title = "Attention with nothing dropped, by fate of the token"
    finish(figure, title=title, x="step", y="share of attention", theme=theme)
    return figure.update_yaxes(range=[0, 1.02], tickformat=".0%")


@with_simple(simple.mass_over_steps)
def caption_mass_over_steps(frame: pd.DataFrame) -> str:
    """Mean shares."""
    means = frame[["kept_mass", "merged_true_mass", "regret"]].mean()
    return (
        f"On average over {plural(len(frame), 'step')} {percent(means['kept_mass'])} of the attention with nothing "
        f"dropped goes to tokens that kept a slot, "
        f"{percent(means['merged_true_mass'])} to merged ones and {percent(means['regret'])} to tokens already dropped."
    )


def sag_over_steps(frame: pd.DataFrame, theme: Theme = "light") -> go.Figure:
    """True mass of merged tokens, mass received by their slots, and the difference: sag."""
    figure = add_lines(go.Figure(), frame["step"], frame, MASSES, theme, "step %{x}: {name} %{y:.4f}")
    finish(figure, title="Attention sag", x="step", y="share of attention", theme=theme)
    return figure.update_yaxes(tickformat=".3~p")


@with_simple(simple.sag_over_steps)
def caption_sag_over_steps(frame: pd.DataFrame) -> str:
    """Mean and largest sag."""
    if not frame["merged_true_mass"].fillna(0).any():
        return "There are no merged slots, so there is no sag; this method's loss is regret."
    mean = float(frame["sag"].mean())
    top = frame.loc[frame["sag"].abs().idxmax()]
    share = mean / frame["merged_true_mass"].mean()
    way = "less" if mean >= 0 else "more"
    return (
        f"Merged slots get {percent(abs(share))} {way} than their tokens would: on average over "
        f"{plural(len(frame), 'step')} {lost_share(mean)} of the head's attention, at most "
        f"{lost_share(float(top['sag']))} at step {int(top['step'])}. Sag is positive where attention is lost."
    )


def errors_over_steps(frame: pd.DataFrame, theme: Theme = "light") -> go.Figure:
    """Output error, regret and sag on one log axis."""
    sizes = frame[[line.column for line in ERRORS]].abs()
    sizes = sizes.where(sizes > 0)
    known = [line for line in ERRORS if sizes[line.column].notna().any()]
    figure = add_lines(go.Figure(), frame["step"], sizes, known, theme, "step %{x}: {name} %{y:.2e}")
    title = "Error of the attention output"
    y = "relative error, share of attention"
    if not known:
        figure.add_scatter(x=frame["step"], y=frame["output_error"], name="output error", mode="lines")
        return finish(figure, title=title, x="step", y=y, theme=theme)
    finish(figure, title=title, x="step", y=f"{y} (log)", theme=theme)
    return figure.update_yaxes(**log_axis(sizes.stack())).update_layout(showlegend=True)


@with_simple(simple.errors_over_steps)
def caption_errors_over_steps(frame: pd.DataFrame) -> str:
    """The output error."""
    error = frame["output_error"]
    if not error.notna().any():
        return "The output error was not measured in this run."
    if not error.fillna(0).any():
        return "The attention output is at every step what it would be with nothing dropped."
    worst = frame.loc[error.idxmax()]
    peak = f"{percent(worst['output_error'])} at its worst, step {int(worst['step'])}"
    return f"The mean output error over {plural(error.count(), 'step')} is {percent(error.mean())}, {peak}."


def guard_over_steps(frame: pd.DataFrame, theme: Theme = "light") -> go.Figure:
    """Guard activations in each step."""
    marker = {"color": pick(HUES["gold"], theme), "line": {"width": 0}}
    hover = "step %{x}: %{y:,} activations"
    figure = go.Figure().add_bar(
        x=frame["step"], y=frame["guard_activations"], marker=marker, hovertemplate=f"{hover}<extra></extra>"
    )
    return finish(figure, title="Guard activations", x="step", y="activations", theme=theme, height=300, legend=False)


@with_simple(simple.guard_over_steps)
def caption_guard_over_steps(frame: pd.DataFrame) -> str:
    """Totals."""
    total = frame["guard_activations"].sum()
    merged = frame["merged"].sum()
    if not total:
        return "The guard was never activated (or this method has none)."
    share = f", for {percent(total / merged)} of the merges" if merged else ""
    return (
        f"The guard was activated {total:,.0f} times{share}, where the method's key formula would have been unstable."
    )


def measure_by_head(frame: pd.DataFrame, measure: str, theme: Theme = "light", focus: Place | None = None) -> go.Figure:
    """One measure by layer and KV head, averaged over the steps; `measure` is a key of `MEASURES`."""
    title, unit = MEASURES[measure]
    table = frame.pivot(index="layer", columns="head", values=measure)
    values = table.to_numpy(np.float32)
    largest = float(np.nanmax(np.abs(values))) if np.isfinite(values).any() else 1.0
    signed = measure == "sag"
    share = measure in SHARES
    return head_map(
        table,
        title,
        theme,
        bar=unit,
        hover=f"<br>{unit} %{{z:.3~{'p' if share else 'g'}}}",
        low=-largest if signed else 0,
        high=largest or 1.0,
        colours=DIVERGING[theme][::-1] if signed else LOSS[theme],
        bar_options={"tickformat": ".3~p"} if share else None,
        focus=focus,
    )


@with_simple(simple.measure_by_head)
def caption_measure_by_head(frame: pd.DataFrame, measure: str) -> str:
    """The head with the largest value."""
    values = frame[measure]
    if not values.notna().any():
        return "This was not measured in this run."
    if not values.any():
        return f"Zero in all {plural(len(frame), 'head')}."
    top = frame.loc[values.abs().idxmax()]
    place = f"layer {int(top['layer'])}, head {int(top['head'])}"
    shown = percent if measure in SHARES else number
    return f"Largest in {place}: {shown(top[measure])}; mean {shown(values.mean())} over {plural(len(frame), 'head')}."
