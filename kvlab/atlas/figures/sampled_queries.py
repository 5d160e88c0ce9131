"""Sampled queries against true ones: overlap by head, the kept set sample by sample, and one head's attention rows."""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from kvlab.analysis.similarity.float16 import block_edges
from kvlab.figures.base.lines import add_line
from kvlab.figures.base.palette import HUES, SEQUENTIAL, SURFACES, Theme, mix, pick
from kvlab.figures.base.template import QUIET, colour_bar, finish
from kvlab.figures.base.words import drawn_of, number, percent, plural, token_label, token_text

MAX_BLOCKS, MAX_POINTS = 512, 1500
FLOOR = 1e-7


def overlap_and_usage(frame: pd.DataFrame, prefix: str = "", theme: Theme = "light") -> go.Figure:
    """Two maps by layer and KV head, from `by_head`; `prefix` is "" or "inner_" (sinks left out)."""
    overlap, usage = f"{prefix}overlap", f"{prefix}usage"
    titles = [f"overlap (mean {frame[overlap].mean():.3f})", f"tokens used (mean {frame[usage].mean():.3f})"]
    figure = make_subplots(1, 2, subplot_titles=titles, horizontal_spacing=0.14)
    for column, (name, what) in enumerate(((overlap, "of the true attention"), (usage, "of the prompt")), 1):
        table = frame.pivot(index="layer", columns="head", values=name)
        figure.add_trace(
            go.Heatmap(
                z=table.to_numpy(np.float32), x=table.columns.to_numpy(), y=table.index.to_numpy(), zmin=0, zmax=1,
                xgap=1, ygap=1, colorscale=SEQUENTIAL[theme], showscale=column == 2,
                colorbar=colour_bar("share", theme),
                hovertemplate=f"layer %{{y}}, head %{{x}}: %{{z:.1%}} {what}<extra></extra>",
            ), 1, column,
        )  # fmt: skip
        few = dict(enumerate(table.columns)) if len(table.columns) <= 16 else {}
        figure.update_xaxes(**({"tickvals": list(few.values())} if few else {}), col=column)
    sinks = " (sinks left out)" if prefix else ""
    finish(figure, title=f"Does a sampled query look where the true one does?{sinks}", x="KV head", y="layer",
           theme=theme, height=420, legend=False)  # fmt: skip
    figure.update_layout(margin={"t": 96})
    figure.update_annotations(font={"size": 13})
    layers = sorted(frame["layer"].unique().tolist())
    return figure.update_yaxes(tickvals=layers[:: max(1, -(-len(layers) // 16))], autorange="reversed")


def read_overlap_and_usage(frame: pd.DataFrame, prefix: str = "") -> str:
    """Means and extremes."""
    overlap, usage, true = (frame[f"{prefix}{name}"] for name in ("overlap", "usage", "true_usage"))
    low = frame.loc[overlap.idxmin()]
    return (
        f"A sample's own 95 % set holds {percent(overlap.mean())} of the next query's attention on average over "
        f"{plural(len(frame), 'head')}, from {percent(overlap.min())} (layer {int(low['layer'])}, head "
        f"{int(low['head'])}) to {percent(overlap.max())}, "
        f"and {percent(usage.mean())} of the prompt; the next query itself needs {percent(true.mean())}."
    )


def growth_by_samples(frame: pd.DataFrame, theme: Theme = "light") -> go.Figure:
    """Share of the prompt kept, and of the next query's attention covered, after each sample."""
    figure = go.Figure()
    for column, name, hue, dash, marker in (
        ("covered", "true attention covered", "blue", "solid", "circle"),
        ("kept", "prompt kept", "orange", "dash", "diamond"),
    ):
        colour = pick(HUES[hue], theme)
        _edges(figure, frame["samples"], frame[f"{column}_low"], frame[f"{column}_high"], colour)
        told, hover = f"{name} (thin: 8 in 10 heads between)", f"%{{x}} samples: %{{y:.1%}} {name}"
        add_line(figure, frame["samples"], frame[column], told, colour, dash, hover, marker=marker, size=7, width=2)
    finish(figure, title="The kept set, sample by sample", x="samples (0: protected slots alone)",
           y="share, mean over heads", theme=theme)  # fmt: skip
    return figure.update_yaxes(tickformat=".0%", range=[0, 1.02]).update_xaxes(dtick=max(1, len(frame) // 12))


def read_growth_by_samples(frame: pd.DataFrame) -> str:
    """First and last sample."""
    first, last = frame.iloc[min(1, len(frame) - 1)], frame.iloc[-1]
    return (
        f"One sample keeps {percent(first['kept'])} of the prompt and covers {percent(first['covered'])} of the next "
        f"query's attention; {int(last['samples'])} keep {percent(last['kept'])} and cover {percent(last['covered'])}."
    )


def coverage_ahead(frame: pd.DataFrame, theme: Theme = "light") -> go.Figure:
    """Attention of each later query to what is kept, mean over heads."""
    figure, colour = go.Figure(), pick(HUES["blue"], theme)
    _band(figure, frame["ahead"], frame["low"], frame["high"], colour, theme)
    name, hover = "mean over heads (band: 8 in 10)", "query %{x} after the prompt: %{y:.1%} covered"
    add_line(figure, frame["ahead"], frame["covered"], name, colour, "solid", hover, marker="circle", width=2)
    finish(figure, title="Later queries' prompt attention that the kept set holds", x="query after the prompt",
           y="share of its attention to the prompt", theme=theme)  # fmt: skip
    return figure.update_yaxes(tickformat=".0%", range=[0, 1.02]).update_layout(showlegend=True)


def read_coverage_ahead(frame: pd.DataFrame) -> str:
    """First, mean and worst."""
    worst = frame.loc[frame["covered"].idxmin()]
    return (
        f"The kept set holds {percent(frame['covered'].iloc[0])} of the first query's attention to the prompt, "
        f"{percent(frame['covered'].mean())} on average over {len(frame)}, least {percent(worst['covered'])} "
        f"at query {int(worst['ahead'])}."
    )


def attention_strips(frame: pd.DataFrame, place: str, theme: Theme = "light") -> go.Figure:
    """Attention over the prompt in blocks: the true next query above the mean of the samples, log colours."""
    edges = block_edges(0, len(frame), MAX_BLOCKS)
    rows = [np.add.reduceat(frame[name].to_numpy(float), edges[:-1]) for name in ("true", "synthetic")]
    values = np.log10(np.maximum(np.array(rows), FLOOR)).astype(np.float32)
    ticks = {-6: "10⁻⁶", -4: "10⁻⁴", -2: "0.01", 0: "1"}
    heat = go.Heatmap(
        z=values, x=edges[:-1], y=["true next query", "mean of the samples"], zmin=-6, zmax=0, ygap=3,
        colorscale=SEQUENTIAL[theme], customdata=np.array(rows),
        colorbar=colour_bar("attention", theme, tickvals=[*ticks], ticktext=[*ticks.values()]),
        hovertemplate="%{y}, tokens from %{x}: %{customdata:.3g}<extra></extra>",
    )  # fmt: skip
    figure = finish(go.Figure(heat), title=f"Attention over the prompt ({place})", x="position in the prompt",
                    y="query", theme=theme, height=260, legend=False)  # fmt: skip
    return figure.update_yaxes(autorange="reversed")


def read_attention_strips(frame: pd.DataFrame, texts: list[str]) -> str:
    """The token each looks at most."""
    true, synthetic = (frame.loc[frame[name].idxmax()] for name in ("true", "synthetic"))
    places = [int(row["position"]) for row in (true, synthetic)]
    most, sampled = (f"“{token_text(texts[place])}” (token {place})" for place in places)
    blocks = f" A cell is the sum over about {len(frame) / MAX_BLOCKS:.1f} tokens." if len(frame) > MAX_BLOCKS else ""
    return (
        f"The true query gives most to {most} ({percent(true['true'])}), the samples to {sampled} "
        f"({percent(synthetic['synthetic'])}).{blocks}"
    )


def scatter_of_rows(frame: pd.DataFrame, texts: list[str], correlation: float, theme: Theme = "light") -> go.Figure:
    """One point a prompt token: attention of the true next query against the samples' mean, log axes."""
    shown = frame.assign(either=frame[["true", "synthetic"]].max(axis=1)).nlargest(MAX_POINTS, "either")
    figure = go.Figure()
    figure.add_scatter(
        x=shown["true"].clip(lower=FLOOR), y=shown["synthetic"].clip(lower=FLOOR), mode="markers", name="tokens",
        marker={"symbol": "circle", "size": 5, "color": pick(HUES["blue"], theme), "opacity": 0.6},
        customdata=[
            (token_label(row.position, texts[row.position]), row.true, row.synthetic) for row in shown.itertuples()
        ],
        hovertemplate="%{customdata[0]}<br>true %{customdata[1]:.3g}, samples %{customdata[2]:.3g}<extra></extra>",
    )  # fmt: skip
    line = {"color": QUIET[theme], "dash": "dot", "width": 1.2}
    figure.add_shape(type="line", x0=FLOOR, y0=FLOOR, x1=1, y1=1, line=line)
    finish(figure, title=f"True against sampled attention, token by token (r = {number(correlation)})",
           x="attention of the true next query (log)", y="mean of the samples (log)", theme=theme, height=420,
           legend=False)  # fmt: skip
    axis = {"type": "log", "dtick": 1, "exponentformat": "power", "range": [np.log10(FLOOR), 0.05]}
    return figure.update_xaxes(**axis).update_yaxes(**axis)


def read_scatter_of_rows(correlation: float, inner: float, tokens: int) -> str:
    """Both correlations."""
    return (
        f"Pearson's r over {tokens:,} prompt tokens: {number(correlation)}, {number(inner)} without the sinks. "
        f"Values below {number(FLOOR)} are drawn at {number(FLOOR)}."
        f"{drawn_of(MAX_POINTS, tokens, 'token', 'the most attended')}"
    )


def _edges(figure: go.Figure, x: pd.Series, low: pd.Series, high: pd.Series, colour: str) -> None:
    for edge in (low, high):
        figure.add_scatter(
            x=x, y=edge, mode="lines", line={"width": 1, "dash": "dot", "color": colour}, hoverinfo="skip",
            showlegend=False,
        )  # fmt: skip


def _band(figure: go.Figure, x: pd.Series, low: pd.Series, high: pd.Series, colour: str, theme: Theme) -> None:
    edge = {"mode": "lines", "line": {"width": 0}, "hoverinfo": "skip", "showlegend": False}
    figure.add_scatter(x=x, y=high, **edge)
    fill = mix(colour, SURFACES[theme], 0.8)
    figure.add_scatter(x=x, y=low, fill="tonexty", fillcolor=fill, **edge)
