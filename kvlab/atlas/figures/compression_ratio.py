"""Layer compression ratios of merge sets by prompt and by threshold."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go

from kvlab.figures.base.palette import DASHES, FALLBACK_MARKERS, HUES, Theme, pick
from kvlab.figures.base.template import finish
from kvlab.figures.base.words import number, percent
from kvlab.figures.scores import line_text

PROMPT_HUES = ("blue", "orange", "green", "purple", "ink", "red", "sky", "grey")
MARKERS = ("circle", "square", "diamond", "cross", "x", "triangle-up", *FALLBACK_MARKERS)


def ratio_by_layer(frame: pd.DataFrame, theme: Theme = "light") -> go.Figure:
    """Slots per token in each layer, one line per prompt; columns prompt, layer, ratio (mean over heads)."""
    figure = go.Figure()
    for rank, (prompt, group) in enumerate(frame.groupby("prompt", sort=False)):
        figure.add_scatter(
            x=group["layer"],
            y=group["ratio"],
            name=str(prompt),
            mode="lines+markers",
            line={"color": pick(HUES[PROMPT_HUES[rank % 8]], theme), "dash": DASHES[rank % 6], "width": 1.8},
            marker={"symbol": MARKERS[rank % len(MARKERS)], "size": 8},
            hovertemplate=f"{prompt}<br>layer %{{x}}: %{{y:.3f}}<extra></extra>",
        )
    prompts = frame["prompt"].nunique()
    height = 380 + 22 * prompts
    finish(figure, title="Compression ratio of merge sets by layer", x="layer", y="sets / tokens", theme=theme)
    figure.update_layout(height=height, margin={"t": 56 + 22 * prompts})
    figure.update_layout(legend={"orientation": "v"}, showlegend=True)
    layers = sorted(frame["layer"].unique())
    figure.update_xaxes(tickvals=layers[:: max(1, -(-len(layers) // 16))], showgrid=False)
    return figure.update_yaxes(range=[0, 1.03])


def read_ratio_by_layer(means: pd.DataFrame) -> str:
    """The layers that shrink most and least; `means` has one row per layer, with intervals over the prompts."""
    least, most = means.loc[means["ratio"].idxmin()], means.loc[means["ratio"].idxmax()]
    low, high = (line_text(line, "ratio", percent) for line in (least, most))
    return (
        f"Layer {least['layer']:.0f} shrinks most, to {low} of its tokens, and layer {most['layer']:.0f} least, to "
        f"{high}, means over heads."
    )


def ratio_by_threshold(frame: pd.DataFrame, chosen: float, theme: Theme = "light") -> go.Figure:
    """Slots per token at each threshold, one faint line per layer and their mean; columns as `ratios`."""
    figure, quiet = go.Figure(), pick(HUES["grey"], theme)
    layers = frame.groupby(["layer", "threshold"])["ratio"].mean().reset_index()
    for layer, group in layers.groupby("layer"):
        figure.add_scatter(
            x=group["threshold"],
            y=group["ratio"],
            mode="lines",
            line={"color": quiet, "width": 1},
            opacity=0.55,
            name="each layer",
            legendgroup="layers",
            showlegend=bool(layer == layers["layer"].iloc[0]),
            hovertemplate=f"layer {layer}, threshold %{{x}}: %{{y:.3f}}<extra></extra>",
        )
    mean = frame.groupby("threshold")["ratio"].mean()
    figure.add_scatter(
        x=mean.index,
        y=mean,
        mode="lines+markers",
        name="all heads",
        line={"color": pick(HUES["blue"], theme), "width": 2.4},
        marker={"size": 7},
        hovertemplate="threshold %{x}: %{y:.3f}<extra></extra>",
    )
    figure.add_vline(
        x=chosen,
        line={"color": pick(HUES["ink"], theme), "width": 1, "dash": "dot"},
        annotation={"text": "the paper's threshold", "font": {"size": 11}, "xanchor": "left", "y": 0.04},
    )
    title = "Compression ratio by threshold"
    finish(figure, title=title, x="threshold (cosine with the anchor)", y="sets / tokens", theme=theme)
    return figure.update_yaxes(range=[0, 1.03])


def read_ratio_by_threshold(frame: pd.DataFrame, chosen: float) -> str:
    """Ratios at the paper's threshold and at the extremes."""
    mean = frame.groupby("threshold")["ratio"].mean()
    return (
        f"At {number(chosen)} merging alone leaves {percent(mean[chosen])} of the tokens; at "
        f"{number(mean.index.min())} {percent(mean.iloc[0])}, at {number(mean.index.max())} {percent(mean.iloc[-1])}."
    )
