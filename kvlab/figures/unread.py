"""What the steps of one head read of the text, and the attention that they missed."""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from kvlab.figures.simple import attention as simple
from kvlab.views.base.caption import with_simple
from kvlab.views.base.palette import HUES, LOSS, SURFACES, Theme, mix, pick
from kvlab.views.base.template import colour_bar, finish, token_ticks
from kvlab.views.base.words import percent, plural, token_labels

LEAST = 2e-3  # missed attention of a block that is coloured
SHADE = 0.62  # of the background in the colour of a block that was read


def reading_map(frame: pd.DataFrame, texts: list[str], theme: Theme = "light", step: int | None = None) -> go.Figure:
    """Blocks of tokens (rows) by step (columns), from `analysis.attention.unread.reading_map`.

    Shaded by the share of a block's slots that the step read, under a colour for the attention that it missed there.
    """
    held = frame["held"].where(frame["held"] > 0)
    table = frame.assign(share=frame["read"] / held)
    share, missed = (table.pivot(index="first", columns="step", values=name) for name in ("share", "missed"))
    labels = token_labels(share.index, texts)
    steps = share.columns.to_numpy()
    shade = mix(pick(HUES["blue"], theme), SURFACES[theme], SHADE)
    read = go.Heatmap(
        z=share.to_numpy(np.float32),
        x=steps,
        y=labels,
        zmin=0,
        zmax=1,
        showscale=False,
        colorscale=[(0.0, SURFACES[theme]), (1.0, shade)],
        hovertemplate="step %{x}<br>from token %{y}<br>%{z:.0%} of its slots read<extra></extra>",
    )
    lost = missed.where(missed >= LEAST).to_numpy(np.float32)
    top = float(np.nanmax(lost)) if np.isfinite(lost).any() else LEAST
    loss = go.Heatmap(
        z=lost,
        x=steps,
        y=labels,
        zmin=0,
        zmax=top,
        colorscale=LOSS[theme],
        colorbar=colour_bar("attention not read", theme, tickformat=".1~%"),
        hovertemplate="step %{x}<br>from token %{y}<br>%{z:.1%} of the true attention not read<extra></extra>",
    )
    figure = go.Figure([read, loss])
    if step is not None and len(steps) > 1:
        figure.add_vline(x=step, line={"width": 1.5, "dash": "dot", "color": pick(HUES["ink"], theme)})
    marker = {"size": 11, "symbol": "square", "color": shade}
    figure.add_scatter(x=[None], y=[None], mode="markers", name="read", marker=marker, hoverinfo="skip")
    title = "What each step read, and what it missed"
    y = "block from token"
    finish(figure, title=title, x="step", y=y, theme=theme, height=480)
    figure.update_yaxes(autorange="reversed", showgrid=False, **token_ticks(labels, 16))
    return figure.update_xaxes(showgrid=False)


@with_simple(simple.reading_map)
def caption_reading_map(frame: pd.DataFrame) -> str:
    """Share of the slots read, attention missed, and where most of it was missed."""
    if frame.empty:
        return "No decode step left slots unread in this head (0 steps)."
    of_steps = frame.groupby("step")[["held", "read", "true", "missed"]].sum()
    top = frame.loc[frame["missed"].idxmax()]
    read = percent(float((of_steps["read"] / of_steps["held"]).mean()))
    worst = (
        f"; most at step {int(top['step'])}, {percent(float(top['missed']))} in tokens {int(top['first'])} to "
        f"{int(top['last'])}"
    )
    return (
        f"Over {plural(len(of_steps), 'step')} this head read {read} of the slots it held and missed "
        f"{percent(float(of_steps['missed'].mean()))} of its attention with nothing dropped"
        f"{worst if top['missed'] > 0 else ''}."
    )
