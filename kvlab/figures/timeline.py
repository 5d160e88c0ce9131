"""Token states of one head over time: the mosaic, and token counts by state."""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from kvlab.figures.simple import merging as simple
from kvlab.views.base.caption import with_simple
from kvlab.views.base.lines import add_area
from kvlab.views.base.palette import STATE_COLOURS, STATE_NAMES, Theme, pick, state_scale
from kvlab.views.base.template import CLEAR, finish, token_ticks
from kvlab.views.base.words import number, percent, plural, shown_of, token_labels
from kvlab.views.frames.lineage import STATES

MAX_HOVER_CELLS = 60_000


def token_mosaic(frame: pd.DataFrame, texts: list[str], theme: Theme = "light", step: int | None = None) -> go.Figure:
    """The state of every token (rows) at every step (columns), from `analysis.lineage.mosaic`; a line marks `step`."""
    labels = token_labels(frame.index, texts)
    codes = frame.to_numpy(np.uint8)
    names = np.array([STATE_NAMES[state] for state in STATES])
    hover = {"text": names[codes]} if codes.size <= MAX_HOVER_CELLS else {}
    heat = go.Heatmap(
        z=codes,
        x=frame.columns.to_numpy(),
        y=labels,
        zmin=-0.5,
        zmax=len(STATES) - 0.5,
        colorscale=state_scale(theme),
        showscale=False,
        **hover,
        hovertemplate=f"step %{{x}}<br>token %{{y}}<br>{'%{text}' if hover else ''}<extra></extra>",
    )
    figure = go.Figure([heat, *state_legend(np.unique(codes), theme)])
    if step is not None and len(frame.columns) > 1:
        figure.add_vline(x=step, line={"width": 1.5, "dash": "dot", "color": pick(("#1F2430", "#F2F4F8"), theme)})
    title = "Token states over the steps"
    y = "token (position and text)"
    finish(figure, title=title, x="step", y=y, theme=theme, height=560)
    figure.update_yaxes(autorange="reversed", showgrid=False, **token_ticks(labels, 16))
    return figure.update_xaxes(showgrid=False, **({"tickvals": [0]} if len(frame.columns) == 1 else {}))


@with_simple(simple.token_mosaic)
def caption_token_mosaic(frame: pd.DataFrame, counts: pd.DataFrame) -> str:
    """Shares at the last step, from the `counts` of all tokens (`state_counts`), and the size of a cell."""
    last = counts.iloc[-1]
    tokens = int(last[["unseen", "own", "pivot", "absorbed", "evicted"]].sum())
    share = {state: percent(last[state] / tokens) for state in ("own", "evicted")}
    return (
        f"After step {int(last['step'])}: {share['own']} of the tokens have their own slot, "
        f"{percent((last['pivot'] + last['absorbed']) / tokens)} share one with "
        f"others, {share['evicted']} were evicted.{block_note(len(frame), tokens)}"
        f"{shown_of(frame.shape[1], len(counts), 'step', 'evenly chosen')}"
    )


def block_note(rows: int, tokens: int) -> str:
    """A sentence on the size of a cell if it covers several tokens."""
    if tokens <= rows:
        return ""
    return (
        f" A cell is a block of about {number(tokens / rows, 2)} tokens, in their most common state; sinks always show."
    )


def state_totals(frame: pd.DataFrame, theme: Theme = "light") -> go.Figure:
    """Tokens in each state over the steps, stacked, from `state_counts`."""
    figure = go.Figure()
    for column, state in (("own", "kept"), ("pivot", "pivot"), ("absorbed", "absorbed"), ("evicted", "evicted")):
        if not frame[column].any():
            continue
        name = "own slot" if column == "own" else STATE_NAMES[state]
        hover = f"step %{{x}}: %{{y:,}} tokens {name}"
        add_area(figure, frame["step"], frame[column], name, pick(STATE_COLOURS[state], theme), hover)
    return finish(figure, title="Tokens by state", x="step", y="tokens", theme=theme)


@with_simple(simple.state_totals)
def caption_state_totals(frame: pd.DataFrame) -> str:
    """Counts at the last step."""
    last = frame.iloc[-1]
    slots = last["own"] + last["pivot"]
    seen = slots + last["absorbed"] + last["evicted"]
    shared = last["absorbed"] + last["pivot"]
    merged = f"{plural(last['pivot'], 'merged slot')} hold {shared:,.0f} of them" if shared else "no slot is shared"
    return (
        f"After step {int(last['step'])}, {plural(slots, 'slot')} hold {plural(seen - last['evicted'], 'token')} "
        f"of {seen:,.0f} read; {merged}."
    )


def state_legend(codes: np.ndarray, theme: Theme) -> list[go.Scatter]:
    """Empty traces for the legend, which heat maps do not have."""
    marker = {"size": 11, "symbol": "square", "line": {"width": 1, "color": pick(("#9AA1AC", "#5A6270"), theme)}}
    colours = {state: pick(STATE_COLOURS[state], theme) if state != "unseen" else CLEAR for state in STATES}
    return [
        go.Scatter(
            x=[None],
            y=[None],
            mode="markers",
            name=STATE_NAMES[state],
            hoverinfo="skip",
            marker={**marker, "color": colours[state]},
        )
        for state in (STATES[code] for code in codes)
    ]
