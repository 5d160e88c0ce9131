"""A probed prompt: hidden states against the normal distribution, and sampled against true queries."""

import math
from statistics import NormalDist

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from kvlab.trace.reader import Run
from kvlab.views.base.lines import add_band, add_line, add_points
from kvlab.views.base.palette import HUES, SEQUENTIAL, SURFACES, Theme, mix, pick
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
    token_text,
)
from kvlab.views.frames.float16 import block_edges

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


def densities(run: Run, layer: int) -> pd.DataFrame:
    """Histograms in standard deviations: columns channel (`ALL`, then the shown ones), deviation, density, normal."""
    arrays = run.probe("hidden", layer)
    edges = np.linspace(-EDGE, EDGE, arrays["histogram"].shape[1] + 1)
    centres = (edges[1:] + edges[:-1]) / 2
    normal = np.exp(-(centres**2) / 2) / np.sqrt(2 * np.pi)
    return _shown(arrays, "histogram", {"deviation": centres, "normal": normal}, "density")


def quantiles(run: Run, layer: int) -> pd.DataFrame:
    """Quantile pairs in standard deviations: columns channel, normal, quantile."""
    arrays = run.probe("hidden", layer)
    count = arrays["quantiles"].shape[1]
    normal = [NormalDist().inv_cdf((index + 0.5) / count) for index in range(count)]
    return _shown(arrays, "quantiles", {"normal": np.array(normal)}, "quantile")


def _shown(arrays: dict[str, np.ndarray], name: str, shared: dict[str, np.ndarray], column: str) -> pd.DataFrame:
    hidden = len(arrays["mean"])
    rows = arrays[name]
    chosen = np.linspace(0, hidden - 1, len(rows) - 1).round().astype(int)
    labels = [ALL, *(f"channel {index}" for index in chosen)]
    parts = [pd.DataFrame({"channel": label, **shared, column: row}) for label, row in zip(labels, rows, strict=True)]
    return pd.concat(parts, ignore_index=True)


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


def later_coverage(run: Run) -> pd.DataFrame:
    """Attention of each later query on kept tokens, over all heads: columns ahead, covered, low, high."""
    layers = [run.probe("sampled", layer)["future"] for layer in probed_layers(run, "sampled")]
    values = np.concatenate(layers)
    low, high = np.quantile(values, [0.1, 0.9], axis=0)
    ahead = np.arange(1, values.shape[1] + 1)
    return pd.DataFrame({"ahead": ahead, "covered": values.mean(0), "low": low, "high": high})


def rows_of_head(run: Run, layer: int, head: int) -> pd.DataFrame:
    """One row per prompt token: columns position, true, synthetic (mean of the samples), ballots."""
    arrays = run.probe("sampled", layer)
    columns = {name: arrays[name][head] for name in ("true", "synthetic", "ballots")}
    return pd.DataFrame({"position": np.arange(len(columns["true"])), **columns})


def pearson(first: np.ndarray, second: np.ndarray) -> float:
    """Pearson's correlation; NaN if one side is constant."""
    if len(first) < 3 or first.std() == 0 or second.std() == 0:
        return float("nan")
    return float(np.corrcoef(first.astype(np.float64), second.astype(np.float64))[0, 1])


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


def caption_histograms(frame: pd.DataFrame, layer: int) -> str:
    """Whether the channels are nearly normal."""
    off = frame[frame["channel"] == frame["channel"].iloc[0]]
    step = float(off["deviation"].iloc[1] - off["deviation"].iloc[0])
    overlap = 1 - float((off["density"] - off["normal"]).abs().sum()) * step / 2
    bounds = ((0.8, "hardly"), (0.9, "roughly"), (0.97, "closely"))
    how = next((word for bound, word in bounds if overlap < bound), "very closely")
    return f"All channels together {how} follow a bell curve."


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


def caption_quantile_pairs(frame: pd.DataFrame, layer: int) -> str:
    """The channels nearest to and furthest from a bell curve."""
    off = (frame["quantile"] - frame["normal"]).abs().groupby(frame["channel"], sort=False).max()
    return contrast(
        off,
        "Nearest to a bell curve: {least}; furthest from it: {most}.",
        "All channels are equally near to a bell curve.",
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


def caption_moments_by_layer(frame: pd.DataFrame) -> str:
    """How many channels are nearly normal."""
    share = part(float(frame["close"].mean()))
    which = {"none": "no", "all": "all"}.get(share, f"{share} of the")
    return sentence(f"{which} channels are shaped nearly like a bell curve")


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


def caption_overlap_and_usage(frame: pd.DataFrame, prefix: str = "") -> str:
    """How much of the next query's attention a sample finds."""
    share = part(float(frame[f"{prefix}overlap"].mean()))
    return sentence(f"on average, a guessed query finds {share} of the next query's attention")


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
    return figure.update_yaxes(tickformat=".0%", range=[0, 1.02]).update_xaxes(dtick=max(1, len(frame) // 12))


def caption_growth_by_samples(frame: pd.DataFrame) -> str:
    """Tokens kept and attention covered as samples are added."""
    first = frame.iloc[min(1, len(frame) - 1)]
    last = frame.iloc[-1]
    if not are_known(float(first["covered"]), float(last["covered"])):
        return NOT_RECORDED
    if near(float(first["covered"]), float(last["covered"])):
        return "More guessed queries find no more of the next query's attention."
    how = "more" if last["covered"] > first["covered"] else "less"
    return f"With more guessed queries, {how} of the next query's attention is found."


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


def caption_coverage_ahead(frame: pd.DataFrame) -> str:
    """How much of later queries' attention is kept."""
    return sentence(f"on average, {part(float(frame['covered'].mean()))} of later attention is on what was kept")


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


def caption_attention_strips(frame: pd.DataFrame, texts: list[str]) -> str:
    """Whether samples and the true query read the same token most."""
    true, guessed = (texts[int(frame.loc[frame[name].idxmax(), "position"])] for name in ("true", "synthetic"))
    same = int(frame["true"].idxmax()) == int(frame["synthetic"].idxmax())
    if same:
        return f"The true query and the guessed ones look at the same token most: “{token_text(true.strip())}”."
    read = token_text(true.strip())
    sampled = token_text(guessed.strip())
    return f"The true query looks most at “{read}”, the guessed ones look most at “{sampled}”."


def scatter_of_rows(frame: pd.DataFrame, texts: list[str], correlation: float, theme: Theme = "light") -> go.Figure:
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
    return figure.update_xaxes(**axis).update_yaxes(**axis)


def caption_scatter_of_rows(correlation: float, inner: float, tokens: int) -> str:
    """How well samples agree with the true query."""
    if not math.isfinite(correlation):
        return "Guessed and true attention cannot be compared."
    bounds = ((0.2, "hardly"), (0.5, "loosely"), (0.8, "roughly"))
    how = next((phrase for bound, phrase in bounds if correlation < bound), "closely")
    drawn = shown_of(MAX_POINTS, tokens, "token", "the most attended")
    return f"Guessed attention {how} follows the true attention.{drawn}"
