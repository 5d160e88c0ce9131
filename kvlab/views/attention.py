"""Attention of one head along the text at a step."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go

from kvlab.views.base.amounts import (
    part,
    sentence,
)
from kvlab.views.base.palette import MASS_COLOURS, Theme, pick
from kvlab.views.base.template import finish
from kvlab.views.base.words import visible

FLOOR = 1e-6
LOOKS = {"true": ("with nothing dropped", "regret"), "slot": ("with this cache", "kept")}


def attention_along_text(frame: pd.DataFrame, theme: Theme = "light") -> go.Figure:
    """Attention on each token with nothing dropped, and on each slot of this cache."""
    figure = go.Figure()
    words = [visible(text) for text in frame["text"]]
    for column, (name, look) in LOOKS.items():
        drawn = frame[column].where(frame[column] > 0).clip(lower=FLOOR)
        figure.add_scatter(
            x=frame["position"],
            y=drawn,
            name=name,
            mode="markers",
            customdata=words,
            marker={
                "color": pick(MASS_COLOURS[look], theme),
                "size": 5 if column == "true" else 7,
                "symbol": "circle" if column == "true" else "diamond-open",
            },
            hovertemplate=f"token %{{x}} %{{customdata}}: %{{y:.3%}} {name}<extra></extra>",
        )
    title = "Attention of this head along the text"
    finish(figure, title=title, x="token (position)", y="share of attention (log)", theme=theme, height=340)
    return figure.update_yaxes(type="log", tickformat=".6~%").update_layout(showlegend=True)


def caption_attention_along_text(frame: pd.DataFrame) -> str:
    """What the cache still holds of the attention with nothing dropped, and of the token that would be read most."""
    here = frame["slot"] > 0
    held = float(frame["true"].where(here, 0).sum())
    true = frame["true"]
    whole = float(true.sum())
    if whole <= 0:
        return "The attention with nothing dropped was not recorded here."
    among = "" if here[true.idxmax()] else "; the token that would get most is not among them"
    return sentence(
        f"with nothing dropped, {part(held / whole)} of the attention is on tokens that are read here{among}"
    )
