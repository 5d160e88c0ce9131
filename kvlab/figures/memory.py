"""One run's bytes and slots."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go

from kvlab.common.formatting import in_range
from kvlab.figures.base.by_head import map_of_heads
from kvlab.figures.base.palette import HUES, Theme, pick
from kvlab.figures.base.template import finish
from kvlab.figures.base.words import byte_size, byte_unit, percent, plural

LINES = (
    ("full_bytes", "keys and values of the whole text", "ink", "solid"),
    ("peak_bytes", "peak", "red", "dot"),
    ("allocated_bytes", "allocated", "orange", "dash"),
    ("live_bytes", "live", "blue", "solid"),
)


def memory_truth(frame: pd.DataFrame, theme: Theme = "light") -> go.Figure:
    """Live, allocated and peak bytes beside the uncompressed cache's, from `analysis.memory.over_steps`."""
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


def read_memory_truth(frame: pd.DataFrame) -> str:
    """The last step in words."""
    last = frame.iloc[-1]
    return (
        f"At the end {byte_size(last['live_bytes'])} are live and {byte_size(last['allocated_bytes'])} allocated, "
        f"{percent(last['allocated_bytes'] / last['full_bytes'])} of the "
        f"{byte_size(last['full_bytes'])} of the whole text."
    )


def budget_anatomy(frame: pd.DataFrame, theme: Theme = "light") -> go.Figure:
    """Live slots by layer and KV head, from `analysis.memory.budgets_by_layer`."""
    table = frame.pivot(index="layer", columns="head", values="live_slots")
    high = float(frame["live_slots"].max())
    return map_of_heads(table, "Slots of each head", theme, bar="live slots", hover=": %{z:,} slots", high=high)


def read_budget_anatomy(frame: pd.DataFrame) -> str:
    """Smallest, largest and mean in words."""
    slots, kept = frame["live_slots"], percent(frame["share"].mean())
    if slots.min() == slots.max():
        return f"All {plural(len(slots), 'head')} hold {slots.max():,.0f} slots, {kept} of the tokens read."
    mean, low, high = in_range(float(slots.mean()), int(slots.min()), int(slots.max()), "{:,.0f}".format)
    return f"Heads hold {low} to {high} slots, {mean} on average ({kept} of the tokens read)."
