"""Fates of chosen tokens: by head, over steps, and the attention they would receive."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go

from kvlab.figures.simple import attention as simple
from kvlab.views.base.caption import with_simple
from kvlab.views.base.head_map import Place, head_map
from kvlab.views.base.lines import Line, add_area, add_lines
from kvlab.views.base.palette import FATES_OF_READING, STATE_COLOURS, Theme, fate_scale, pick
from kvlab.views.base.template import finish
from kvlab.views.base.words import percent, plural
from kvlab.views.frames.autopsy import step_of_most

MASSES = (
    Line("full", "full cache: on these tokens", "ink", "solid", "circle"),
    Line("true", "this run with nothing dropped: on these tokens", "grey", "dot", "square"),
    Line("received", "this run: on slots that hold them", "purple", "dash", "diamond"),
)


def survival_by_head(frame: pd.DataFrame, fate: str, theme: Theme = "light", focus: Place | None = None) -> go.Figure:
    """Share of the chosen tokens with this fate by layer and KV head, from `autopsy.survival`."""
    table = frame.pivot(index="layer", columns="head", values=fate)
    steps = frame["first_lost"]
    words = ["none dropped" if pd.isna(step) else f"first dropped at step {step}" for step in steps]
    lost = frame.assign(text=words).pivot(index="layer", columns="head", values="text")
    return head_map(
        table,
        "Fate of the chosen tokens by head",
        theme,
        bar=f"share {FATES_OF_READING[fate][0]}",
        hover=": %{z:.0%}<br>%{text}",
        bar_options={"tickformat": ".0%"},
        text=lost.to_numpy(),
        colours=fate_scale(fate, theme),
        focus=focus,
    )


@with_simple(simple.survival_by_head)
def caption_survival_by_head(frame: pd.DataFrame, moment: str = "") -> str:
    """Shares over all heads; `moment` names the step."""
    fates = {fate: words for fate, (words, *_) in FATES_OF_READING.items() if fate in frame}
    shares = ", ".join(f"{percent(frame[fate].mean())} {words}" for fate, words in fates.items())
    whole = int((frame["dropped"] == 0).sum())
    first = frame["first_lost"].min()
    when = "" if pd.isna(first) else f"; the first drop is at step {first}"
    return (
        f"Over all {plural(len(frame), 'head')}{f', {moment}' if moment else ''}: {shares}; {whole} of "
        f"{plural(len(frame), 'head')} dropped none{when}."
    )


def fates_over_steps(frame: pd.DataFrame, theme: Theme = "light") -> go.Figure:
    """Shares of all (layer, head, token) in each fate over the steps, stacked."""
    figure = go.Figure()
    for fate, (words, state, pattern) in FATES_OF_READING.items():
        if fate not in frame:
            continue
        look = {"shape": pattern, "size": 6, "solidity": 0.25}
        hover = f"step %{{x}}: %{{y:.1%}} {words}"
        add_area(figure, frame["step"], frame[fate], words, pick(STATE_COLOURS[state], theme), hover, look)
    finish(figure, title="Fate over the steps, all heads", x="step", y="share of heads and tokens", theme=theme)
    return figure.update_yaxes(range=[0, 1.02], tickformat=".0%")


@with_simple(simple.fates_over_steps)
def caption_fates_over_steps(frame: pd.DataFrame) -> str:
    """Shares after the prompt and after the last step."""
    first = frame.iloc[0]
    last = frame.iloc[-1]
    unread = ""
    if "not read" in frame and len(frame) > 1:
        unread = f" A decode step leaves {percent(frame['not read'].iloc[1:].mean())} of them unread."
    return (
        f"After the prompt's compression {percent(1 - first['dropped'])} of them remain; "
        f"after step {int(last['step'])}, {percent(1 - last['dropped'])}.{unread}"
    )


def needle_mass(frame: pd.DataFrame, theme: Theme = "light") -> go.Figure:
    """Attention on the chosen tokens over the steps: of the full cache's run, if recorded, of this run with nothing
    dropped, and on the slots that hold them."""
    lines = [line for line in MASSES if line.column != "full" or frame["full"].notna().any()]
    figure = add_lines(go.Figure(), frame["step"], frame, lines, theme, "step %{x}: {name} %{y:.4f}", size=5)
    finish(figure, title="Attention on the chosen tokens, this head", x="step", y="share of attention", theme=theme)
    return figure.update_yaxes(rangemode="tozero", tickformat=".3~p")


@with_simple(simple.needle_mass)
def caption_needle_mass(frame: pd.DataFrame) -> str:
    """The step with the most attention on them."""
    known = frame["full"].notna().any()
    column, whose = ("full", "the full cache") if known else ("true", "this run, with nothing dropped,")
    top = step_of_most(frame, column)
    lacks = "" if known else " The full cache's own attention on them was not recorded."
    if top[column] < 1e-4:
        least = "less than 0.01 % of this head's attention"
        return f"{whose[0].upper()}{whose[1:]} gives them {least} at each of {len(frame)} steps.{lacks}"
    most, undropped, received = (percent(float(top[name])) for name in (column, "true", "received"))
    between = f"with nothing dropped this run would give them {undropped}, and " if known else ""
    return (
        f"At step {int(top['step'])} {whose} attends to them most: {most} of this head's attention; {between}the slots "
        f"that hold them get {received} (merged slots count in full).{lacks}"
    )
