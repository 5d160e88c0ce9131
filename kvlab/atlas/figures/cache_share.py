"""What a compressed cache takes of the full one, beside what a paper says it takes."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go

from kvlab.figures.base.palette import HUES, SURFACES, Theme, mix, pick
from kvlab.figures.base.template import finish
from kvlab.figures.base.words import percent

BARS = (("ours", "this benchmark", "blue", ""), ("paper", "the paper", "grey", "/"))


def cache_share(frame: pd.DataFrame, theme: Theme = "light") -> go.Figure:
    """Bars of bytes over the full cache's, by model and budget; columns row, ours, paper."""
    figure = go.Figure()
    for column, name, hue, pattern in BARS:
        colour = pick(HUES[hue], theme)
        shape = {"shape": pattern, "size": 5, "fgcolor": colour, "bgcolor": mix(colour, SURFACES[theme], 0.6)}
        figure.add_bar(
            x=frame["row"],
            y=frame[column],
            name=name,
            text=[percent(value) if value == value else "" for value in frame[column]],
            textposition="outside",
            marker={"color": colour, "pattern": shape if pattern else {}},
            hovertemplate=f"%{{x}}<br>{name}: %{{y:.1%}} of the full cache<extra></extra>",
        )
    title = "What the compressed cache takes of the full one"
    finish(figure, title=title, x="model and budget", y="bytes / bytes of the full cache", theme=theme, height=400)
    figure.update_layout(barmode="group", bargap=0.25)
    return figure.update_yaxes(range=[0, 1.08], tickformat=".0%").update_xaxes(showgrid=False)


def read_cache_share(frame: pd.DataFrame) -> str:
    """Ours and the paper's, in words."""
    parts = [f"{row.row} {percent(row.ours)} (paper {percent(row.paper)})" for row in frame.itertuples()]
    return f"Bytes of the cache over those of the full one: {', '.join(parts)}."
