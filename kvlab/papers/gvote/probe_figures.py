"""A probed prompt: hidden states against the normal distribution, and sampled against true queries."""

import math
from statistics import NormalDist

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from kvlab.papers.exhibit import Drawn
from kvlab.results.verdict import Claim
from kvlab.trace.reader import Run
from kvlab.views.base.lines import add_line, add_points
from kvlab.views.base.palette import HUES, SEQUENTIAL, SURFACES, Theme, mix, pick
from kvlab.views.base.provenance import Provenance
from kvlab.views.base.template import QUIET, colour_bar, finish
from kvlab.views.base.words import (
    NOT_RECORDED,
    are_known,
    contrast,
    near,
    number,
    part,
    sentence,
    shown_of,
    token_label,
)

# GVote, section 3.3
PAPER_OVERLAP = 0.929
PAPER_USAGE = 0.594
PAPER_TRUE_USAGE = 0.4
PAPER_CORRELATION = 0.7759
PAPER_VALUES = (
    ("overlap, mean over heads", PAPER_OVERLAP, "Figure 3a"),
    ("tokens used, mean over heads", PAPER_USAGE, "Figure 3a"),
    ("tokens the true query needs", PAPER_TRUE_USAGE, "section 3.3, about"),
    ("correlation of one head", PAPER_CORRELATION, "Figure 3b"),
)
MOST_SKEW = 0.5
MOST_KURTOSIS = 1.0
EDGE = 6.0  # range of the histograms in standard deviations
ALL = "all channels"


def probed_layers(run: Run, name: str) -> list[int]:
    """The layers with `hidden` or `sampled` arrays."""
    files = (run.path / "arrays").glob(f"{name}-layer-*.safetensors")
    return sorted(int(path.stem.rpartition("-")[2]) for path in files)


def channels(run: Run) -> pd.DataFrame:
    """One row per layer and channel: skew, kurtosis (excess), kurtosis_with_sinks, distance (Kolmogorov-Smirnov).

    `close`: absolute skew below 0.5 and absolute excess kurtosis below 1. Constant channels are left out.
    """
    parts = []
    for layer in probed_layers(run, "hidden"):
        arrays = run.probe("hidden", layer)
        names = ("skew", "kurtosis", "kurtosis_with_sinks", "distance")
        table = pd.DataFrame({name: arrays[name] for name in names})
        table.insert(0, "layer", layer)
        table.insert(1, "channel", np.arange(len(table)))
        parts.append(table)
    frame = pd.concat(parts).dropna(subset=["skew", "kurtosis"]).reset_index(drop=True)
    return frame.assign(close=(frame["skew"].abs() < MOST_SKEW) & (frame["kurtosis"].abs() < MOST_KURTOSIS))


def channel_shapes(run: Run, layer: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Histograms and quantile pairs in standard deviations, of `ALL` channels and then of the shown ones.

    Columns channel, deviation, normal, density; and channel, normal, quantile.
    """
    arrays = run.probe("hidden", layer)
    edges = np.linspace(-EDGE, EDGE, arrays["histogram"].shape[1] + 1)
    centres = (edges[1:] + edges[:-1]) / 2
    normal = np.exp(-(centres**2) / 2) / np.sqrt(2 * np.pi)
    count = arrays["quantiles"].shape[1]
    of_normal = np.array([NormalDist().inv_cdf((index + 0.5) / count) for index in range(count)])
    shown = np.linspace(0, len(arrays["mean"]) - 1, len(arrays["histogram"]) - 1).round().astype(int)
    densities = []
    quantiles = []
    rows = zip([ALL, *(f"channel {index}" for index in shown)], arrays["histogram"], arrays["quantiles"], strict=True)
    for channel, histogram, pairs in rows:
        density = {"channel": channel, "deviation": centres, "normal": normal, "density": histogram}
        densities.append(pd.DataFrame(density))
        quantiles.append(pd.DataFrame({"channel": channel, "normal": of_normal, "quantile": pairs}))
    return pd.concat(densities, ignore_index=True), pd.concat(quantiles, ignore_index=True)


SINKS = 4


def by_head(run: Run) -> pd.DataFrame:
    """One row per layer and KV head, averaged over samples.

    Columns overlap, usage (share of the prompt in a sample's nucleus), true_usage, the same without sinks
    (`inner_...`), correlation and inner_correlation (Pearson, mean of the samples against the true row), step_budget,
    kept (share of the prompt), covered (the next query's true attention on kept tokens), later (of later queries).
    """
    rows = []
    for layer in probed_layers(run, "sampled"):
        arrays = run.probe("sampled", layer)
        for head in range(len(arrays["true"])):
            true = arrays["true"][head]
            synthetic = arrays["synthetic"][head]
            shares = {
                name: float(np.mean(arrays[name][head]))
                for name in ("overlap", "usage", "true_usage", "inner_overlap", "inner_usage", "inner_true_usage")
            }
            rows.append(
                {
                    "layer": layer,
                    "head": head,
                    **shares,
                    "correlation": pearson(true, synthetic),
                    "inner_correlation": pearson(true[SINKS:], synthetic[SINKS:]),
                    "step_budget": float(arrays["step_budget"][head]),
                    "kept": float(arrays["union"][head, -1]),
                    "covered": float(arrays["covered"][head, -1]),
                    "later": float(arrays["future"][head].mean()),
                }
            )
    return pd.DataFrame(rows)


def growth(run: Run) -> pd.DataFrame:
    """Share kept and covered by number of samples, over all heads: columns samples, and mean, low and high (10 % and
    90 % of heads) of `kept` and `covered`; 0 samples keep only the protected slots."""
    arrays = [run.probe("sampled", layer) for layer in probed_layers(run, "sampled")]
    kept, covered = (np.concatenate([layer[name] for layer in arrays]) for name in ("union", "covered"))
    table = {"samples": np.arange(kept.shape[1])}
    for name, values in (("kept", kept), ("covered", covered)):
        low, high = np.quantile(values, [0.1, 0.9], axis=0)
        table |= {name: values.mean(0), f"{name}_low": low, f"{name}_high": high}
    return pd.DataFrame(table)


def pearson(first: np.ndarray, second: np.ndarray) -> float:
    """Pearson's correlation; NaN if one side is constant."""
    if len(first) < 3 or first.std() == 0 or second.std() == 0:
        return float("nan")
    return float(np.corrcoef(first.astype(np.float64), second.astype(np.float64))[0, 1])


def histograms(frame: pd.DataFrame, layer: int, origin: Provenance, claim: Claim | None, theme: Theme) -> Drawn:
    """Density of each shown channel in standard deviations, of all channels pooled, and of the normal distribution."""
    pooled = frame[frame["channel"] == ALL]
    normal = pooled.assign(density=pooled["normal"])
    figure = _channels(frame, "deviation", "density", theme)
    _line(figure, normal, "deviation", "density", "normal distribution", "orange", "dash", theme)
    title = f"Hidden states of layer {layer} by channel"
    finish(figure, title=title, x="standard deviations from the mean", y="density", theme=theme, height=400)
    # Whether the channels are nearly normal: the area that both densities share.
    step = float(pooled["deviation"].iloc[1] - pooled["deviation"].iloc[0])
    shared = 1 - float((pooled["density"] - pooled["normal"]).abs().sum()) * step / 2
    bounds = ((0.8, "hardly"), (0.9, "roughly"), (0.97, "closely"))
    how = next((word for bound, word in bounds if shared < bound), "very closely")
    return Drawn("histograms", figure, frame, f"All channels together {how} follow a bell curve.", origin, claim)


def quantile_pairs(frame: pd.DataFrame, layer: int, origin: Provenance, theme: Theme) -> Drawn:
    """Quantiles of each shown channel against the normal distribution's."""
    figure = _channels(frame, "normal", "quantile", theme)
    ends = pd.DataFrame({"normal": [-2.5, 2.5], "quantile": [-2.5, 2.5]})
    _line(figure, ends, "normal", "quantile", "a normal distribution", "orange", "dash", theme)
    finish(
        figure,
        title=f"Quantiles of layer {layer} against the normal's",
        x="quantile of a normal distribution",
        y="quantile of the channel",
        theme=theme,
        height=400,
    )
    caption = contrast(
        (frame["quantile"] - frame["normal"]).abs().groupby(frame["channel"], sort=False).max(),
        "Nearest to a bell curve: {least}; furthest from it: {most}.",
        "All channels are equally near to a bell curve.",
    )
    return Drawn("quantiles", figure, frame, caption, origin)


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


def overlap_and_usage(
    frame: pd.DataFrame, prefix: str, origin: Provenance, theme: Theme, claim: Claim | None = None
) -> Drawn:
    """Two maps by layer and KV head, from `by_head`; `prefix` is "" or "inner_" (without sinks).

    What the paper prints stands beside the figure with the claim.
    """
    overlap = f"{prefix}overlap"
    usage = f"{prefix}usage"
    titles = [f"overlap (mean {frame[overlap].mean():.3f})", f"tokens used (mean {frame[usage].mean():.3f})"]
    figure = make_subplots(1, 2, subplot_titles=titles, horizontal_spacing=0.14)
    for column, (measure, what) in enumerate(((overlap, "of the true attention"), (usage, "of the prompt")), 1):
        table = frame.pivot(index="layer", columns="head", values=measure)
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
    figure.update_yaxes(tickvals=layers[:: max(1, -(-len(layers) // 16))], autorange="reversed")
    found = part(float(frame[overlap].mean()))
    caption = sentence(f"on average, a guessed query finds {found} of the next query's attention")
    grey = pd.DataFrame(PAPER_VALUES, columns=["quantity", "paper", "source"]) if claim else None
    name = "without sinks" if prefix else "overlap and usage"
    return Drawn(name, figure, frame, caption, origin, claim, grey)


def growth_by_samples(frame: pd.DataFrame, origin: Provenance, theme: Theme) -> Drawn:
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
        text = f"{name} (thin: 8 in 10 heads between)"
        hover = f"%{{x}} samples: %{{y:.1%}} {name}"
        add_line(figure, frame["samples"], frame[column], text, colour, dash, hover, marker=marker, size=7, width=2)
    finish(
        figure,
        title="Kept set by number of samples",
        x="samples (0: protected slots only)",
        y="share, mean over heads",
        theme=theme,
    )
    figure.update_yaxes(tickformat=".0%", range=[0, 1.02]).update_xaxes(dtick=max(1, len(frame) // 12))
    # Attention covered as samples are added.
    first = float(frame["covered"].iloc[min(1, len(frame) - 1)])
    last = float(frame["covered"].iloc[-1])
    if not are_known(first, last):
        caption = NOT_RECORDED
    elif near(first, last):
        caption = "More guessed queries find no more of the next query's attention."
    else:
        how = "more" if last > first else "less"
        caption = f"With more guessed queries, {how} of the next query's attention is found."
    return Drawn("union", figure, frame, caption, origin)


def scatter_of_rows(
    frame: pd.DataFrame,
    texts: list[str],
    correlation: float,
    origin: Provenance,
    claim: Claim | None,
    theme: Theme,
) -> Drawn:
    """One point per prompt token: attention of the true next query against the samples' mean, log axes."""
    shown = frame.assign(either=frame[["true", "synthetic"]].max(axis=1)).nlargest(MAX_POINTS, "either")
    figure = go.Figure()
    x, y = (shown[name].clip(lower=FLOOR) for name in ("true", "synthetic"))
    hovers = [(token_label(row.position, texts[row.position]), row.true, row.synthetic) for row in shown.itertuples()]
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
        customdata=hovers,
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
    figure.update_xaxes(**axis).update_yaxes(**axis)
    # How well samples agree with the true query.
    caption = "Guessed and true attention cannot be compared."
    if math.isfinite(correlation):
        bounds = ((0.2, "hardly"), (0.5, "loosely"), (0.8, "roughly"))
        how = next((phrase for bound, phrase in bounds if correlation < bound), "closely")
        drawn = shown_of(MAX_POINTS, len(frame), "token", "the most attended")
        caption = f"Guessed attention {how} follows the true attention.{drawn}"
    return Drawn("scatter", figure, frame, caption, origin, claim)
