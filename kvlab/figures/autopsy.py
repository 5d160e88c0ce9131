"""What became of chosen tokens: by head, over the steps, and the attention they would get."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go

from kvlab.figures.base.by_head import map_of_heads
from kvlab.figures.base.lines import Line, add_area, add_lines
from kvlab.figures.base.palette import FATES, STATE_COLOURS, Theme, fate_scale, pick
from kvlab.figures.base.template import finish
from kvlab.figures.base.words import percent, plural

MASSES = (
    Line("true", "full cache: on these tokens", "ink", "solid", "circle"),
    Line("received", "this run: on the slots that hold them", "purple", "dash", "diamond"),
)


def survival_by_head(frame: pd.DataFrame, fate: str, theme: Theme = "light") -> go.Figure:
    """Share of the chosen tokens with this fate by layer and KV head, from `analysis.autopsy.survival`."""
    table = frame.pivot(index="layer", columns="head", values=fate)
    lost = frame.assign(text=[_lost(step) for step in frame["first_lost"]]).pivot(
        index="layer", columns="head", values="text"
    )
    return map_of_heads(
        table, "The chosen tokens by head", theme, bar=f"share {FATES[fate][0]}", hover=": %{z:.0%}<br>%{text}",
        tickformat=".0%", text=lost.to_numpy(), colours=fate_scale(fate, theme),
    )  # fmt: skip


def _lost(step: object) -> str:
    return "none was dropped" if pd.isna(step) else f"first one dropped at step {step}"


def read_survival_by_head(frame: pd.DataFrame, moment: str = "") -> str:
    """Over all heads in words; `moment` says after which step."""
    shares = ", ".join(f"{percent(frame[fate].mean())} {words}" for fate, (words, *_) in FATES.items())
    whole = int((frame["dropped"] == 0).sum())
    first = frame["first_lost"].min()
    when = "" if pd.isna(first) else f"; the first drop of the run is at step {first}"
    return (
        f"Over all {plural(len(frame), 'head')}{f', {moment}' if moment else ''}: {shares}; {whole} of "
        f"{plural(len(frame), 'head')} dropped none{when}."
    )


def fates_over_steps(frame: pd.DataFrame, theme: Theme = "light") -> go.Figure:
    """Shares of all (layer, head, token) in each fate over the steps, stacked."""
    figure = go.Figure()
    for fate, (words, state, pattern) in FATES.items():
        look = {"shape": pattern, "size": 6, "solidity": 0.25}
        hover = f"step %{{x}}: %{{y:.1%}} {words}"
        add_area(figure, frame["step"], frame[fate], words, pick(STATE_COLOURS[state], theme), hover, look)
    finish(figure, title="Their fate over the steps, all heads", x="step", y="share of heads and tokens", theme=theme)
    return figure.update_yaxes(range=[0, 1.02], tickformat=".0%")


def read_fates_over_steps(frame: pd.DataFrame) -> str:
    """First and last step in words."""
    first, last = frame.iloc[0], frame.iloc[-1]
    return (
        f"The prompt's compression alone leaves {percent(1 - first['dropped'])} of them; "
        f"after step {int(last['step'])} {percent(1 - last['dropped'])} are there."
    )


def needle_mass(frame: pd.DataFrame, theme: Theme = "light") -> go.Figure:
    """Attention the chosen tokens would get from the full cache, and what slots holding them get, over the steps."""
    figure = add_lines(go.Figure(), frame["step"], frame, MASSES, theme, "step %{x}: {name} %{y:.4f}", size=5)
    finish(figure, title="Attention on them, this head", x="step", y="share of attention", theme=theme)
    return figure.update_yaxes(rangemode="tozero", tickformat=".3~p")


def read_needle_mass(frame: pd.DataFrame) -> str:
    """The step that wants them most, in words."""
    top = frame.loc[frame["true"].idxmax()]
    if top["true"] < 1e-4:
        return f"The full cache gives them less than 0.01 % of this head's attention at any of {len(frame)} steps."
    return (
        f"Step {int(top['step'])} wants them most: {percent(top['true'])} of the full cache's attention. In this run "
        f"the slots that hold them get {percent(float(top['received']))}; a merged slot counts whole."
    )
