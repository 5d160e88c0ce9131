"""Attention of one head along the text at a step."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go

from kvlab.figures.simple import attention as simple
from kvlab.views.base.caption import with_simple
from kvlab.views.base.palette import MASS_COLOURS, Theme, pick
from kvlab.views.base.template import finish
from kvlab.views.base.words import percent, plural, token_text, visible

FLOOR = 1e-6
LOOKS = {"true": ("with nothing dropped", "regret"), "slot": ("with this cache", "kept")}


def attention_along_text(frame: pd.DataFrame, theme: Theme = "light") -> go.Figure:
    """Attention on each token with nothing dropped, and on each slot of this cache, from `analysis.attention_at`."""
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


@with_simple(simple.attention_along_text)
def caption_attention_along_text(frame: pd.DataFrame) -> str:
    """What the slots hold of the query's attention with nothing dropped, and the token that it would read most."""
    held = frame["true"].where(frame["slot"] > 0, 0).sum()
    top = frame.loc[frame["true"].idxmax()]
    most = f"token {int(top['position'])} “{token_text(top['text'])}” ({percent(float(top['true']))})"
    kept = "is" if top["slot"] > 0 else "is not"
    slots = plural(int((frame["slot"] > 0).sum()), "slot")
    return (
        f"{slots} get attention; their tokens would have {percent(float(held))} of this query's attention with nothing "
        f"dropped. It would read {most} most, which {kept} among them."
    )
