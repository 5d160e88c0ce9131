"""A probed prompt: hidden states against the normal distribution, and sampled against true queries."""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from kvlab.atlas.analysis.probe import ALL
from kvlab.atlas.figures.simple import probe as simple
from kvlab.views.base.caption import with_simple
from kvlab.views.base.lines import add_band, add_line, add_points
from kvlab.views.base.palette import HUES, SEQUENTIAL, SURFACES, Theme, mix, pick
from kvlab.views.base.template import QUIET, colour_bar, finish
from kvlab.views.base.words import number, percent, plural, shown_of, token_label, token_text
from kvlab.views.frames.float16 import block_edges


def histograms(frame: pd.DataFrame, layer: int, theme: Theme = "light") -> go.Figure:
    """Density of each shown channel in standard deviations, of all channels pooled, and of the normal distribution."""
    first = frame[frame["channel"] == ALL]
    normal = first.rename(columns={"density": "own", "normal": "density"})
    figure = _channels(frame, "deviation", "density", theme)
    _line(figure, normal, "deviation", "density", "normal distribution", "orange", "dash", theme)
    return finish(
        figure,
        title=f"Hidden states of layer {layer} by channel",
        x="standard deviations from the mean",
        y="density",
        theme=theme,
        height=400,
    )


@with_simple(simple.histograms)
def caption_histograms(frame: pd.DataFrame, layer: int) -> str:
    """Deviation of the pooled density from the normal distribution."""
    first = frame[frame["channel"] == ALL]
    step = first["deviation"].iloc[1] - first["deviation"].iloc[0]
    off = float((first["density"] - first["normal"]).abs().sum() * step / 2)
    beyond = float(first.loc[first["deviation"].abs() > 3, "density"].sum() * step)
    return (
        f"Layer {layer}: the pooled channels overlap a normal distribution by {percent(1 - off)} of the area, "
        f"with {percent(beyond)} beyond three standard deviations (0.27 % of a normal one)."
    )


def quantile_pairs(frame: pd.DataFrame, layer: int, theme: Theme = "light") -> go.Figure:
    """Quantiles of each shown channel against the normal distribution's."""
    figure = _channels(frame, "normal", "quantile", theme)
    ends = pd.DataFrame({"normal": [-2.5, 2.5], "quantile": [-2.5, 2.5]})
    _line(figure, ends, "normal", "quantile", "a normal distribution", "orange", "dash", theme)
    return finish(
        figure,
        title=f"Quantiles of layer {layer} against the normal's",
        x="quantile of a normal distribution",
        y="quantile of the channel",
        theme=theme,
        height=400,
    )


@with_simple(simple.quantile_pairs)
def caption_quantile_pairs(frame: pd.DataFrame, layer: int) -> str:
    """The channels furthest from and closest to the diagonal."""
    off = (frame["quantile"] - frame["normal"]).abs().groupby(frame["channel"], sort=False).max()
    single = off.drop(ALL)
    return (
        f"Layer {layer}: the pooled channels deviate from the diagonal by at most {number(off[ALL], 2)} standard "
        f"deviations; of those shown {single.idxmax()} by {number(single.max(), 2)}, {single.idxmin()} by "
        f"{number(single.min(), 2)}."
    )


def moments_by_layer(frame: pd.DataFrame, theme: Theme = "light") -> go.Figure:
    """Skew and excess kurtosis of the channels of each layer: quartiles, and 5 % to 95 %."""
    figure = go.Figure()
    for column, name, hue in (("skew", "skew", "blue"), ("kurtosis", "excess kurtosis", "orange")):
        q = frame.groupby("layer")[column].quantile([0.05, 0.25, 0.5, 0.75, 0.95]).unstack()
        colour = pick(HUES[hue], theme)
        figure.add_box(
            x=q.index,
            q1=q[0.25],
            median=q[0.5],
            q3=q[0.75],
            lowerfence=q[0.05],
            upperfence=q[0.95],
            name=name,
            boxpoints=False,
            line={"color": colour, "width": 1.5},
            fillcolor=mix(colour, SURFACES[theme], 0.7),
            offsetgroup=column,
        )
    figure.add_hline(y=0, line={"color": QUIET[theme], "dash": "dot", "width": 1.2})
    finish(
        figure,
        title="Skew and excess kurtosis of the channels by layer",
        x="layer",
        y="value (0 if normal)",
        theme=theme,
    )
    figure.update_xaxes(dtick=max(1, frame["layer"].nunique() // 16))
    return figure.update_layout(boxmode="group", showlegend=True)


@with_simple(simple.moments_by_layer)
def caption_moments_by_layer(frame: pd.DataFrame) -> str:
    """Share of nearly normal channels, and the layer with the fewest."""
    share = frame.groupby("layer")["close"].mean()
    worst = frame.loc[frame["kurtosis"].abs().idxmax()]
    return (
        f"{percent(frame['close'].mean())} of {plural(len(frame), 'channel')} have a skew below 0.5 and an excess "
        f"kurtosis below 1; fewest in layer {int(share.idxmin())} ({percent(share.min())}). Largest excess kurtosis "
        f"{number(worst['kurtosis'])} in layer {int(worst['layer'])}, channel {int(worst['channel'])}."
    )


def _channels(frame: pd.DataFrame, x: str, y: str, theme: Theme) -> go.Figure:
    """A faint line per channel in one trace, and a bold one for all."""
    single = frame[frame["channel"] != ALL]
    parts = [group for _, group in single.groupby("channel", sort=False)]
    gap = [np.nan]
    xs = np.concatenate([np.concatenate([part[x], gap]) for part in parts])
    ys = np.concatenate([np.concatenate([part[y], gap]) for part in parts])
    names = [name for part in parts for name in [*part["channel"], ""]]
    figure = go.Figure()
    figure.add_scatter(
        x=xs,
        y=ys,
        name=f"{len(parts)} channels",
        mode="lines",
        customdata=names,
        line={"color": mix(pick(HUES["blue"], theme), SURFACES[theme], 0.45), "width": 1},
        hovertemplate="%{customdata}: %{y:.3f} at %{x:.2f}<extra></extra>",
    )
    _line(figure, frame[frame["channel"] == ALL], x, y, ALL, "ink", "solid", theme)
    return figure


def _line(figure: go.Figure, frame: pd.DataFrame, x: str, y: str, name: str, hue: str, dash: str, theme: Theme) -> None:
    hover = f"{name}: %{{y:.3f}} at %{{x:.2f}}"
    add_line(figure, frame[x], frame[y], name, pick(HUES[hue], theme), dash, hover, width=2)


MAX_BLOCKS = 512
MAX_POINTS = 1500
FLOOR = 1e-7


def overlap_and_usage(frame: pd.DataFrame, prefix: str = "", theme: Theme = "light") -> go.Figure:
    """Two maps by layer and KV head, from `by_head`; `prefix` is "" or "inner_" (without sinks)."""
    overlap = f"{prefix}overlap"
    usage = f"{prefix}usage"
    titles = [f"overlap (mean {frame[overlap].mean():.3f})", f"tokens used (mean {frame[usage].mean():.3f})"]
    figure = make_subplots(1, 2, subplot_titles=titles, horizontal_spacing=0.14)
    for column, (name, what) in enumerate(((overlap, "of the true attention"), (usage, "of the prompt")), 1):
        table = frame.pivot(index="layer", columns="head", values=name)
        figure.add_trace(
            go.Heatmap(
                z=table.to_numpy(np.float32),
                x=table.columns.to_numpy(),
                y=table.index.to_numpy(),
                zmin=0,
                zmax=1,
                xgap=1,
                ygap=1,
                colorscale=SEQUENTIAL[theme],
                showscale=column == 2,
                colorbar=colour_bar("share", theme),
                hovertemplate=f"layer %{{y}}, head %{{x}}: %{{z:.1%}} {what}<extra></extra>",
            ),
            1,
            column,
        )
        few = dict(enumerate(table.columns)) if len(table.columns) <= 16 else {}
        figure.update_xaxes(**({"tickvals": list(few.values())} if few else {}), col=column)
    sinks = " (without sinks)" if prefix else ""
    finish(
        figure,
        title=f"Do sampled queries attend like the true one?{sinks}",
        x="KV head",
        y="layer",
        theme=theme,
        height=420,
        legend=False,
    )
    figure.update_layout(margin={"t": 96})
    figure.update_annotations(font={"size": 13})
    layers = sorted(frame["layer"].unique().tolist())
    return figure.update_yaxes(tickvals=layers[:: max(1, -(-len(layers) // 16))], autorange="reversed")


@with_simple(simple.overlap_and_usage)
def caption_overlap_and_usage(frame: pd.DataFrame, prefix: str = "") -> str:
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
    """Share of the prompt kept, and of the next query's attention covered, by number of samples."""
    figure = go.Figure()
    for column, name, hue, dash, marker in (
        ("covered", "true attention covered", "blue", "solid", "circle"),
        ("kept", "prompt kept", "orange", "dash", "diamond"),
    ):
        colour = pick(HUES[hue], theme)
        for edge in ("low", "high"):
            figure.add_scatter(
                x=frame["samples"],
                y=frame[f"{column}_{edge}"],
                mode="lines",
                hoverinfo="skip",
                showlegend=False,
                line={"width": 1, "dash": "dot", "color": colour},
            )
        told = f"{name} (thin: 8 in 10 heads between)"
        hover = f"%{{x}} samples: %{{y:.1%}} {name}"
        add_line(figure, frame["samples"], frame[column], told, colour, dash, hover, marker=marker, size=7, width=2)
    finish(
        figure,
        title="Kept set by number of samples",
        x="samples (0: protected slots only)",
        y="share, mean over heads",
        theme=theme,
    )
    return figure.update_yaxes(tickformat=".0%", range=[0, 1.02]).update_xaxes(dtick=max(1, len(frame) // 12))


@with_simple(simple.growth_by_samples)
def caption_growth_by_samples(frame: pd.DataFrame) -> str:
    """First and last sample."""
    first = frame.iloc[min(1, len(frame) - 1)]
    last = frame.iloc[-1]
    return (
        f"One sample keeps {percent(first['kept'])} of the prompt and covers {percent(first['covered'])} of the next "
        f"query's attention; {int(last['samples'])} keep {percent(last['kept'])} and cover {percent(last['covered'])}."
    )


def coverage_ahead(frame: pd.DataFrame, theme: Theme = "light") -> go.Figure:
    """Attention of each later query on the kept set, mean over heads."""
    figure = go.Figure()
    colour = pick(HUES["blue"], theme)
    add_band(figure, frame["ahead"], frame["low"], frame["high"], mix(colour, SURFACES[theme], 0.8))
    name = "mean over heads (band: 8 in 10)"
    hover = "query %{x} after the prompt: %{y:.1%} covered"
    add_line(figure, frame["ahead"], frame["covered"], name, colour, "solid", hover, marker="circle", width=2)
    finish(
        figure,
        title="Later queries' prompt attention on the kept set",
        x="query after the prompt",
        y="share of its attention to the prompt",
        theme=theme,
    )
    return figure.update_yaxes(tickformat=".0%", range=[0, 1.02]).update_layout(showlegend=True)


@with_simple(simple.coverage_ahead)
def caption_coverage_ahead(frame: pd.DataFrame) -> str:
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
        z=values,
        x=edges[:-1],
        y=["true next query", "mean of the samples"],
        zmin=-6,
        zmax=0,
        ygap=3,
        colorscale=SEQUENTIAL[theme],
        customdata=np.array(rows),
        colorbar=colour_bar("attention", theme, tickvals=[*ticks], ticktext=[*ticks.values()]),
        hovertemplate="%{y}, tokens from %{x}: %{customdata:.3g}<extra></extra>",
    )
    figure = finish(
        go.Figure(heat),
        title=f"Attention over the prompt ({place})",
        x="position in the prompt",
        y="query",
        theme=theme,
        height=260,
        legend=False,
    )
    return figure.update_yaxes(autorange="reversed")


@with_simple(simple.attention_strips)
def caption_attention_strips(frame: pd.DataFrame, texts: list[str]) -> str:
    """The most attended token of each."""
    true, synthetic = (frame.loc[frame[name].idxmax()] for name in ("true", "synthetic"))
    places = [int(row["position"]) for row in (true, synthetic)]
    most, sampled = (f"“{token_text(texts[place])}” (token {place})" for place in places)
    blocks = f" A cell is the sum over about {len(frame) / MAX_BLOCKS:.1f} tokens." if len(frame) > MAX_BLOCKS else ""
    return (
        f"The true query attends most to {most} ({percent(true['true'])}), the samples to {sampled} "
        f"({percent(synthetic['synthetic'])}).{blocks}"
    )


def scatter_of_rows(frame: pd.DataFrame, texts: list[str], correlation: float, theme: Theme = "light") -> go.Figure:
    """One point per prompt token: attention of the true next query against the samples' mean, log axes."""
    shown = frame.assign(either=frame[["true", "synthetic"]].max(axis=1)).nlargest(MAX_POINTS, "either")
    figure = go.Figure()
    x, y = (shown[name].clip(lower=FLOOR) for name in ("true", "synthetic"))
    words = [(token_label(row.position, texts[row.position]), row.true, row.synthetic) for row in shown.itertuples()]
    hover = "%{customdata[0]}<br>true %{customdata[1]:.3g}, samples %{customdata[2]:.3g}"
    add_points(
        figure,
        x,
        y,
        "tokens",
        pick(HUES["blue"], theme),
        hover,
        size=5,
        marker_symbol="circle",
        marker_opacity=0.6,
        customdata=words,
    )
    line = {"color": QUIET[theme], "dash": "dot", "width": 1.2}
    figure.add_shape(type="line", x0=FLOOR, y0=FLOOR, x1=1, y1=1, line=line)
    finish(
        figure,
        title=f"True against sampled attention by token (r = {number(correlation)})",
        x="attention of the true next query (log)",
        y="mean of the samples (log)",
        theme=theme,
        height=420,
        legend=False,
    )
    axis = {"type": "log", "dtick": 1, "exponentformat": "power", "range": [np.log10(FLOOR), 0.05]}
    return figure.update_xaxes(**axis).update_yaxes(**axis)


@with_simple(simple.scatter_of_rows)
def caption_scatter_of_rows(correlation: float, inner: float, tokens: int) -> str:
    """Both correlations."""
    return (
        f"Pearson's r over {tokens:,} prompt tokens: {number(correlation)}, {number(inner)} without the sinks. "
        f"Values below {number(FLOOR)} are drawn at {number(FLOOR)}."
        f"{shown_of(MAX_POINTS, tokens, 'token', 'the most attended')}"
    )
