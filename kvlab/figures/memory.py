"""Bytes and slots of one run."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go

from kvlab.common.formatting import in_range
from kvlab.figures.base.head_map import Place, head_map
from kvlab.figures.base.palette import HUES, Theme, pick
from kvlab.figures.base.template import finish
from kvlab.figures.base.words import byte_size, byte_unit, percent, plural

LINES = (
    ("full_bytes", "uncompressed", "ink", "solid"),
    ("peak_bytes", "peak", "red", "dot"),
    ("allocated_bytes", "allocated", "orange", "dash"),
    ("live_bytes", "live", "blue", "solid"),
)


def memory_over_steps(frame: pd.DataFrame, theme: Theme = "light") -> go.Figure:
    """Live, allocated and peak bytes with the uncompressed cache's, from `memory.over_steps`."""
    factor, unit = byte_unit(float(frame["full_bytes"].max()))
    figure = go.Figure()
    for column, name, hue, dash in LINES:
        figure.add_scatter(
            x=frame["step"],
            y=frame[column] / factor,
            name=name,
            mode="lines" if len(frame) > 1 else "markers",
            line={"color": pick(HUES[hue], theme), "dash": dash, "width": 1.8},
            hovertemplate=f"step %{{x}}: {name} %{{y:.4g}} {unit}<extra></extra>",
        )
    finish(figure, title="Bytes of the cache", x="step", y=f"all layers ({unit})", theme=theme)
    return figure.update_yaxes(rangemode="tozero")


def read_memory_over_steps(frame: pd.DataFrame) -> str:
    """The last step."""
    last = frame.iloc[-1]
    return (
        f"At the end {byte_size(last['live_bytes'])} are live and {byte_size(last['allocated_bytes'])} allocated, "
        f"{percent(last['allocated_bytes'] / last['full_bytes'])} of the "
        f"{byte_size(last['full_bytes'])} of the uncompressed cache."
    )


def slots_by_head(frame: pd.DataFrame, theme: Theme = "light", focus: Place | None = None) -> go.Figure:
    """Live slots by layer and KV head, from `memory.budgets_by_layer`."""
    table = frame.pivot(index="layer", columns="head", values="live_slots")
    high = float(frame["live_slots"].max())
    hover = ": %{z:,} slots"
    return head_map(table, "Slots of each head", theme, bar="live slots", hover=hover, high=high, focus=focus)


def read_slots_by_head(frame: pd.DataFrame) -> str:
    """Smallest, largest and mean."""
    slots, kept = frame["live_slots"], percent(frame["share"].mean())
    if slots.min() == slots.max():
        return f"All {plural(len(slots), 'head')} hold {slots.max():,.0f} slots, {kept} of the tokens read."
    mean, low, high = in_range(float(slots.mean()), int(slots.min()), int(slots.max()), "{:,.0f}".format)
    return f"Heads hold {low} to {high} slots, {mean} on average ({kept} of the tokens read)."
