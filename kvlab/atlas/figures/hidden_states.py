"""Hidden states against the normal distribution: histograms, quantiles, and moments by layer."""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from kvlab.atlas.analysis.hidden_states import ALL
from kvlab.figures.base.lines import add_line
from kvlab.figures.base.palette import HUES, SURFACES, Theme, mix, pick
from kvlab.figures.base.template import QUIET, finish
from kvlab.figures.base.words import number, percent, plural


def histograms(frame: pd.DataFrame, layer: int, theme: Theme = "light") -> go.Figure:
    """Density of each shown channel in standard deviations, of all channels pooled, and of the normal distribution."""
    first = frame[frame["channel"] == ALL]
    normal = first.rename(columns={"density": "own", "normal": "density"})
    figure = _channels(frame, "deviation", "density", theme)
    _line(figure, normal, "deviation", "density", "normal distribution", "orange", "dash", theme)
    return finish(figure, title=f"Hidden states of layer {layer} by channel",
                  x="standard deviations from the mean", y="density", theme=theme, height=400)  # fmt: skip


def read_histograms(frame: pd.DataFrame, layer: int) -> str:
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
    return finish(figure, title=f"Quantiles of layer {layer} against the normal's",
                  x="quantile of a normal distribution", y="quantile of the channel",
                  theme=theme, height=400)  # fmt: skip


def read_quantile_pairs(frame: pd.DataFrame, layer: int) -> str:
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
            x=q.index, q1=q[0.25], median=q[0.5], q3=q[0.75], lowerfence=q[0.05], upperfence=q[0.95], name=name,
            boxpoints=False, line={"color": colour, "width": 1.5}, fillcolor=mix(colour, SURFACES[theme], 0.7),
            offsetgroup=column,
        )  # fmt: skip
    figure.add_hline(y=0, line={"color": QUIET[theme], "dash": "dot", "width": 1.2})
    finish(figure, title="Skew and excess kurtosis of the channels by layer", x="layer",
           y="value (0 if normal)", theme=theme)  # fmt: skip
    figure.update_xaxes(dtick=max(1, frame["layer"].nunique() // 16))
    return figure.update_layout(boxmode="group", showlegend=True)


def read_moments_by_layer(frame: pd.DataFrame) -> str:
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
        x=xs, y=ys, name=f"{len(parts)} channels", mode="lines", customdata=names,
        line={"color": mix(pick(HUES["blue"], theme), SURFACES[theme], 0.45), "width": 1},
        hovertemplate="%{customdata}: %{y:.3f} at %{x:.2f}<extra></extra>",
    )  # fmt: skip
    _line(figure, frame[frame["channel"] == ALL], x, y, ALL, "ink", "solid", theme)
    return figure


def _line(figure: go.Figure, frame: pd.DataFrame, x: str, y: str, name: str, hue: str, dash: str, theme: Theme) -> None:
    hover = f"{name}: %{{y:.3f}} at %{{x:.2f}}"
    add_line(figure, frame[x], frame[y], name, pick(HUES[hue], theme), dash, hover, width=2)
