"""How a token's share of its slot decays with merges."""

from __future__ import annotations

import math

import pandas as pd
import plotly.graph_objects as go

from kvlab.figures.base.palette import DASHES, HUES, SURFACES, Theme, mix, pick
from kvlab.figures.base.template import MANY_LINES, PALE, finish, log_axis
from kvlab.figures.base.words import number, percent, plural, shown_of, token_label

HUE_ORDER = ("blue", "orange", "green", "purple", "red", "gold", "sky", "grey")
MOST_LINES = 12


def influence_decay(frame: pd.DataFrame, half: float, theme: Theme = "light") -> go.Figure:
    """Share of a token left in its slot by number of merges, from `influence.decay_by_merges`; `half` is marked."""
    colour = pick(HUES["purple"], theme)
    figure = go.Figure()
    band = {"mode": "lines", "line": {"width": 0}, "showlegend": False, "hoverinfo": "skip"}
    figure.add_scatter(x=frame["merges"], y=frame["high"], **band)
    fill = mix(colour, SURFACES[theme], 0.75)
    figure.add_scatter(x=frame["merges"], y=frame["low"], fill="tonexty", fillcolor=fill, **band)
    figure.add_scatter(
        x=frame["merges"],
        y=frame["share"],
        name="median token (band: middle 50 %)",
        mode="lines+markers",
        line={"color": colour, "width": 2},
        customdata=frame["tokens"],
        hovertemplate="after %{x} merges: %{y:.3g} of the token left<br>%{customdata:,} cases<extra></extra>",
    )
    ink = pick(HUES["ink"], theme)
    ends = [frame["merges"].min(), frame["merges"].max()]
    figure.add_scatter(
        x=ends, y=[0.5, 0.5], name="half", mode="lines", line={"color": ink, "dash": "dot", "width": 1.2}
    )
    if math.isfinite(half):
        figure.add_vline(x=half, line={"color": ink, "dash": "dash", "width": 1.2})
    finish(
        figure,
        title="What is left of a token in its slot",
        x="merges its slot went through",
        y="share of the slot's value (log)",
        theme=theme,
    )
    if ends[1] <= 20:
        figure.update_xaxes(dtick=1)
    return figure.update_yaxes(**log_axis(pd.concat([frame["low"], pd.Series([1.0, 0.4])]).clip(lower=1e-6)))


def read_influence_decay(frame: pd.DataFrame, half: float) -> str:
    """The half-life."""
    last = frame.iloc[-1]
    rest = f"after {plural(last['merges'], 'merge')}, the most here, the median share is {percent(last['share'])}"
    if math.isinf(half):
        return f"More than half of a token always remains: {rest}."
    when = f"after {number(half, 2)} merges" if half >= 1 else "with its first merge"
    return f"Half of a token is gone {when}; {rest}."


def members_over_steps(frame: pd.DataFrame, slot: int, theme: Theme = "light") -> go.Figure:
    """Share of each token of a slot over the steps, from `influence.members_over_steps`.

    The first `MOST_LINES` tokens are drawn; among many, the token with the largest final share is in focus.
    """
    frame = frame[frame["token"].isin(frame["token"].unique()[:MOST_LINES])]
    figure, last = go.Figure(), frame[frame["step"] == frame["step"].max()]
    focus = last.loc[last["share"].idxmax(), "token"] if len(last) else slot
    for index, (token, part) in enumerate(frame.groupby("token", sort=False)):
        name = token_label(int(token), part["text"].iloc[0], 14)  # type: ignore[call-overload]
        pale = frame["token"].nunique() > MANY_LINES and token != focus
        figure.add_scatter(
            x=part["step"],
            y=part["share"],
            name=name,
            mode="lines+markers" if len(part) < 3 else "lines",
            opacity=PALE if pale else 1.0,
            line={
                "color": pick(HUES[HUE_ORDER[index % len(HUE_ORDER)]], theme),
                "dash": DASHES[index % len(DASHES)],
                "width": 1.2 if pale else 2.4,
                "shape": "hv",
            },
            hovertemplate=f"{name}<br>step %{{x}}: %{{y:.3g}}<extra></extra>",
        )
    title = f"Tokens represented by slot {slot}"
    finish(figure, title=title, x="step", y="share of the value (log)", theme=theme)
    return figure.update_yaxes(**log_axis(frame["share"].clip(lower=1e-6)))


def read_members_over_steps(frame: pd.DataFrame) -> str:
    """The token with the largest share."""
    last = frame[frame["step"] == frame["step"].max()].sort_values("share", ascending=False)
    top = last.iloc[0]
    drawn = last["share"].iloc[:MOST_LINES].sum()
    few = shown_of(MOST_LINES, len(last), "token", f"which make up {percent(drawn)} of it")
    return (
        f"At step {int(top['step'])} token {int(top['token'])} is the largest part of the slot's value, "
        f"{percent(top['share'])}; its {plural(len(last), 'token')} make up {percent(last['share'].sum())} of it.{few}"
    )
