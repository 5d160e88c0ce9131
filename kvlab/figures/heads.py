"""Heads by their fingerprints: principal component plot and head map of groups."""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from kvlab.analysis.attention.fingerprints import FEATURES
from kvlab.figures.simple import vectors as simple
from kvlab.views.base.caption import with_simple
from kvlab.views.base.head_map import Place, head_map
from kvlab.views.base.lines import add_points
from kvlab.views.base.palette import HUES, SURFACES, Theme, pick, stepped_scale
from kvlab.views.base.template import QUIET, finish
from kvlab.views.base.words import percent, plural

LOOK = (
    ("blue", "circle"), ("orange", "diamond"), ("green", "square"), ("purple", "cross"), ("red", "x"),
    ("gold", "triangle-up"), ("sky", "star"), ("grey", "pentagon"),
)  # fmt: skip
HOVER = (
    "layer %{customdata[0]:.0f}, head %{customdata[1]:.0f}<br>sink %{customdata[2]:.3f}, local %{customdata[3]:.3f}<br>"
    "key cosine %{customdata[4]:.3f}, regret %{customdata[5]:.3f}"
)
FEATURE_NAMES = {"sink": "sink mass", "local": "local mass", "alike": "key similarity", "regret": "regret"}


def heads_plane(
    table: pd.DataFrame,
    places: np.ndarray,
    directions: np.ndarray,
    shares: np.ndarray,
    names: list[str],
    theme: Theme = "light",
) -> go.Figure:
    """Every head as a point, from `fingerprints.plane`, with arrows for the features; `table` has `group`."""
    figure = go.Figure()
    for group in sorted(table["group"].unique()):
        inside = (table["group"] == group).to_numpy()
        hue, marker = LOOK[group % len(LOOK)]
        add_points(
            figure,
            places[inside, 0],
            places[inside, 1],
            f"{group + 1}: {names[group]}",
            pick(HUES[hue], theme),
            HOVER,
            size=10,
            marker_symbol=marker,
            customdata=table.loc[inside, ["layer", "head", *FEATURES]].to_numpy(),
        )
    reach = float(np.abs(places).max()) if places.size else 1.0
    for feature, (x, y) in zip(FEATURES, directions * reach * 0.9, strict=True):
        figure.add_annotation(
            x=x,
            y=y,
            ax=0,
            ay=0,
            xref="x",
            yref="y",
            axref="x",
            ayref="y",
            showarrow=True,
            arrowhead=3,
            arrowsize=1.2,
            arrowwidth=1.3,
            arrowcolor=QUIET[theme],
            text="",
        )
        figure.add_annotation(
            x=x,
            y=y,
            xref="x",
            yref="y",
            showarrow=False,
            text=FEATURE_NAMES[feature],
            xshift=10 if x >= 0 else -10,
            yshift=8 if y >= 0 else -8,
            xanchor="left" if x >= 0 else "right",
            bgcolor=SURFACES[theme],
            opacity=0.9,
            font={"size": 12, "color": QUIET[theme]},
        )
    x = f"first axis ({percent(float(shares[0]))} of the variance)"
    y = f"second axis ({percent(float(shares[1]))})"
    return finish(figure, title="Heads by their fingerprints", x=x, y=y, theme=theme, height=520)


@with_simple(simple.heads_plane)
def caption_heads_plane(table: pd.DataFrame, groups: pd.DataFrame) -> str:
    """List of the groups."""
    parts = [f"{int(row['group']) + 1} ({plural(row['heads'], 'head')}): {row['name']}" for _, row in groups.iterrows()]
    return f"{plural(len(table), 'head')} in {plural(len(groups), 'group')}. " + "; ".join(parts) + "."


def groups_by_head(table: pd.DataFrame, theme: Theme = "light", focus: Place | None = None) -> go.Figure:
    """The group of every head by layer and KV head; the number is on the cell, or on the bar if cells are small."""
    wide = table.pivot(index="layer", columns="head", values="group")
    count = int(table["group"].max()) + 1
    colours = [pick(HUES[LOOK[group % len(LOOK)][0]], theme) for group in range(count)]
    numbers = wide.map(lambda group: "" if pd.isna(group) else f"{group + 1:.0f}").to_numpy(object)
    key = {"tickvals": list(range(count)), "ticktext": [str(group + 1) for group in range(count)]}
    return head_map(
        wide,
        "Where the groups are",
        theme,
        bar="group",
        hover=": group %{text}",
        low=-0.5,
        high=count - 0.5,
        colours=stepped_scale(colours),
        bar_options=key,
        text=numbers,
        words=numbers,
        focus=focus,
    )


@with_simple(simple.groups_by_head)
def caption_groups_by_head(table: pd.DataFrame) -> str:
    """Whether groups follow layers."""
    same = table.groupby("layer")["group"].agg(lambda groups: groups.value_counts(normalize=True).iloc[0]).mean()
    return f"On average {percent(float(same))} of a layer's heads belong to the group most common in that layer."
