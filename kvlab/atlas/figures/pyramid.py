"""Layer budgets with a straight line, the three axes of compression, and pooled windows."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from kvlab.atlas.figures.simple import budgets as simple
from kvlab.views.base.animation import frames_of, with_slider
from kvlab.views.base.caption import with_simple
from kvlab.views.base.cells import cell_text
from kvlab.views.base.palette import HUES, SEQUENTIAL, STATE_COLOURS, SURFACES, Theme, mix, pick
from kvlab.views.base.template import CLEAR, finish
from kvlab.views.base.words import number, percent, plural, shown_of


def budgets_by_layer(frame: pd.DataFrame, sinks: int, theme: Theme = "light") -> go.Figure:
    """Slots per head in each layer, with sinks and the requested budget, from `pyramid.layer_budgets`."""
    kept = pick(STATE_COLOURS["kept"], theme)
    sink = pick(STATE_COLOURS["sink"], theme)
    figure = go.Figure()
    figure.add_bar(
        x=frame["layer"],
        y=np.minimum(frame["live"], sinks),
        name=f"sinks ({sinks} first tokens)",
        marker={"color": sink, "pattern": {"shape": "x"}},
        hovertemplate="layer %{x}: %{y:.3g} sinks<extra></extra>",
    )
    figure.add_bar(
        x=frame["layer"],
        y=(frame["live"] - sinks).clip(lower=0),
        name="other slots in use",
        marker={"color": kept},
        hovertemplate="layer %{x}: %{y:.4g} other slots<extra></extra>",
    )
    ink = pick(HUES["ink"], theme)
    figure.add_scatter(
        x=frame["layer"],
        y=frame["asked"],
        name="requested budget",
        mode="markers",
        marker={"symbol": "line-ew", "size": 30, "line": {"width": 3, "color": ink}},
        hovertemplate="layer %{x}: %{y:.4g} slots requested<extra></extra>",
    )
    figure.add_scatter(
        x=frame["layer"],
        y=frame["line"],
        name="straight line through the budgets",
        mode="lines",
        line={"color": pick(HUES["red"], theme), "dash": "dash", "width": 1.6},
        hoverinfo="skip",
    )
    finish(figure, title="Slots of each layer", x="layer", y="slots (mean over KV heads)", theme=theme)
    return figure.update_layout(barmode="stack", bargap=0.35).update_xaxes(dtick=1 if len(frame) <= 24 else None)


@with_simple(simple.budgets_by_layer)
def caption_budgets_by_layer(frame: pd.DataFrame) -> str:
    """First and last layer, and budget utilisation."""
    first = frame.iloc[0]
    last = frame.iloc[-1]
    times = f", {number(first['asked'] / last['asked'])} to 1" if last["asked"] else ""
    return (
        f"Layer {first['layer']:.0f} was allotted {first['asked']:,.0f} slots and layer {last['layer']:.0f} "
        f"{last['asked']:,.0f}{times}; "
        f"{percent(frame['live'].sum() / frame['asked'].sum())} of all budgets is in use."
    )


def three_axes(frame: pd.DataFrame, theme: Theme = "light") -> go.Figure:
    """Slots by layer and KV head as colours, with their means as bars; `frame` from `memory.budgets_by_layer`.

    The colour is the sequence axis: how much of the text a head keeps.
    """
    table = frame.pivot(index="layer", columns="head", values="live_slots")
    figure = make_subplots(
        2,
        2,
        column_widths=[0.72, 0.28],
        row_heights=[0.3, 0.7],
        horizontal_spacing=0.03,
        vertical_spacing=0.05,
        shared_xaxes="columns",
        shared_yaxes="rows",
    )
    layers = [f"layer {name}" for name in table.index]
    heads = [f"head {name}" for name in table.columns]
    heat = go.Heatmap(
        z=table.to_numpy(np.float32),
        x=heads,
        y=layers,
        xgap=2,
        ygap=2,
        colorscale=SEQUENTIAL[theme],
        zmin=0,
        zmax=float(table.to_numpy().max()),
        showscale=False,
        hovertemplate="%{y}, %{x}: %{z:,} slots<extra></extra>",
    )
    figure.add_trace(heat, row=2, col=1)
    if table.size <= 300:
        figure.add_trace(cell_text(heat, table.round().astype(int).astype(str).to_numpy(), 12), row=2, col=1)
    blue = pick(HUES["blue"], theme)
    green = pick(HUES["green"], theme)
    figure.add_bar(
        x=heads,
        y=table.mean(),
        marker={"color": green, "pattern": {"shape": "/"}},
        name="heads",
        row=1,
        col=1,
        hovertemplate="%{x}: %{y:.4g} slots on average<extra></extra>",
    )
    figure.add_bar(
        x=table.mean(axis=1),
        y=layers,
        orientation="h",
        marker={"color": blue},
        name="layers",
        row=2,
        col=2,
        hovertemplate="%{y}: %{x:.4g} slots on average<extra></extra>",
    )
    finish(
        figure,
        title="The three axes of compression",
        x="",
        y="",
        theme=theme,
        legend=False,
        height=280 + 26 * min(len(layers), 24),
    )
    figure.update_yaxes(autorange="reversed", title_text="layers", row=2, col=1)
    figure.update_xaxes(title_text="KV heads", row=2, col=1).update_xaxes(title_text="slots of a layer", row=2, col=2)
    figure.update_yaxes(title_text="slots of a head", row=1, col=1)
    return figure.update_layout(plot_bgcolor=CLEAR)


@with_simple(simple.three_axes)
def caption_three_axes(frame: pd.DataFrame) -> str:
    """How much of each axis remains."""
    layers = frame.groupby("layer")["live_slots"].mean()
    low = int(frame["live_slots"].min())
    high = int(frame["live_slots"].max())
    read = f"Of {frame['tokens_seen'].max():,} tokens"
    share = percent(frame["share"].mean())
    if low == high:
        return f"{read} every head keeps {low:,} slots ({share})."
    least = layers.min()
    differ = f"layers differ by {number(layers.max() / least)} to 1" if least else "one layer keeps none"
    return f"{read} a head keeps {low:,} to {high:,} slots ({share} on average); {differ}."


MOST_EDGES = 120  # with more bars, edges are omitted
MOST_DEEP = 6  # end of the colour scale


def windows(spans: Mapping[int, pd.DataFrame], theme: Theme = "light") -> go.Figure:
    """Every slot of a head as a bar over the tokens it holds, higher the more often they were pooled.

    `spans` maps each shown step to `pyramid.spans`; the slider moves between them.
    """
    steps = list(spans)
    bars = [_bars(spans[step], theme) for step in steps]
    deepest = max(int(table["generation"].max()) for table in spans.values())
    figure = go.Figure(bars[-1], frames=frames_of(steps, [[bar] for bar in bars]))
    end = max(int(table["last"].max()) for table in spans.values())
    finish(
        figure,
        title="Windows of tokens that share a slot",
        x="position in the text",
        y="times pooled (at least)",
        theme=theme,
        height=330,
        legend=False,
    )
    figure.update_yaxes(range=[-0.6, deepest + 0.7], dtick=1).update_xaxes(range=[-0.01 * end, 1.01 * end])
    return with_slider(figure, "step ", len(steps) - 1, theme)


@with_simple(simple.windows)
def caption_windows(spans: Mapping[int, pd.DataFrame], most: int, steps: int) -> str:
    """The last step's slots; at most `most` of them and some of `steps` steps are drawn."""
    step, table = list(spans.items())[-1]
    pooled = table[table["tokens"] > 1]
    largest = f", the largest {pooled['tokens'].max():,}" if len(pooled) else ""
    return (
        f"After step {step}, {len(pooled):,} of {plural(len(table), 'slot')} hold "
        f"{plural(pooled['tokens'].sum(), 'pooled token')}{largest}; the deepest was pooled at least "
        f"{plural(table['generation'].max(), 'time')}.{shown_of(most, len(table), 'slot', 'with the most tokens')}"
        f"{shown_of(len(spans), steps, 'step', 'evenly chosen')}"
    )


def _bars(spans: pd.DataFrame, theme: Theme) -> go.Bar:
    shallow = pick(HUES["sky"], theme)
    deep = pick(HUES["red"], theme)
    shares = spans["generation"].clip(upper=MOST_DEEP) / MOST_DEEP
    return go.Bar(
        x=spans["last"] - spans["first"] + 1,
        base=spans["first"] - 0.5,
        y=spans["generation"],
        orientation="h",
        width=0.75,
        marker={
            "color": [mix(shallow, deep, share) for share in shares],
            "line": {"width": 0.6 if len(spans) <= MOST_EDGES else 0, "color": SURFACES[theme]},
        },
        customdata=spans[["position", "tokens"]].to_numpy(),
        hovertemplate="slot %{customdata[0]}: %{customdata[1]} tokens from %{base:.0f}, pooled at least %{y} times"
        "<extra></extra>",
    )
