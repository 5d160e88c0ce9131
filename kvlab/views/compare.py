"""Compare runs: closeness to the full cache along the text, bytes over the steps, and slots by layer."""

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from kvlab.views.base import words
from kvlab.views.base.lines import End, each_run, label_ends, labelled_height
from kvlab.views.base.palette import Theme
from kvlab.views.base.template import HEIGHT, QUIET, axis_height, finish, layer_axis, log_axis
from kvlab.views.base.view import view
from kvlab.views.frames import compare as frames
from kvlab.views.memory import PEAK_NOT_RECORDED

FLOOR = 1e-6
SLOTS_ALIKE = 1.02  # ratio of the most and the fewest slots of layers that count as equal
TALLEST = 400  # pixels of the axis of layers

kl = view("kl_along_text", title="Distance from the full cache, token by token", page="result")(frames.along_text)
agreement = view("agreement_along_text", title="Top-1 agreement with the full cache", page="result")(frames.along_text)
extra_nll = view("nll_along_text", title="Likelihood lost on the full cache's text", page="result")(frames.along_text)
memory = view("memory_by_run", title="Bytes of the cache", page="result")(frames.memory_over_steps)
slots = view("slots_by_layer", title="Slots of each layer at the end", page="result")(frames.slots_by_layer)


@kl.figure
def kl_along_text(frame: pd.DataFrame, theme: Theme = "light") -> go.Figure:
    """KL divergence from the full cache at every token of the forced continuation, on a log axis."""
    frame = frame.assign(drawn=frame["kl"].clip(lower=FLOOR))
    title = "Distance from the full cache, token by token"
    y = "KL (nats, log)"
    known = np.log10(frame.loc[frame["method"] != "full", "drawn"].dropna().astype(float))
    span = _margins(known, least=0.6)
    hover = "KL %{customdata[1]:.3g} nats"
    return _along_text(
        frame, "drawn", hover, title, y, theme, span, log_axis(frame["drawn"]), height=420, hover_column="kl"
    )


@kl.caption
def caption_kl_along_text(frame: pd.DataFrame) -> str:
    """The runs that predict most and least like the full cache."""
    means = _compressed(frame, "kl").groupby("label", sort=False)["kl"].mean()
    exactly = len(means) > 0 and not means.any()
    return words.contrast(
        means,
        "The predictions are closest to the full cache's with {least}, and furthest with {most}.",
        f"All runs {'predict exactly like' if exactly else 'are equally close to'} the full cache.",
        f"{'{only} predicts exactly like' if exactly else 'Only {only} is compared with'} the full cache.",
        "How close the runs are to the full cache was not recorded.",
    )


@agreement.figure
def agreement_along_text(frame: pd.DataFrame, theme: Theme = "light") -> go.Figure:
    """Rolling share of tokens where both caches prefer the same next token."""
    title = "Top-1 agreement with the full cache"
    y = "agreement (rolling share)"
    axis: dict[str, object] = {"tickformat": ".3~p"}
    return _along_text(frame, "agreement", "agreement %{y:.0%}", title, y, theme, (-0.03, 1.05), axis)


@agreement.caption
def caption_agreement_along_text(frame: pd.DataFrame) -> str:
    """The runs that agree most and least often."""
    means = _compressed(frame, "agree").groupby("label", sort=False)["agree"].mean().astype(float)
    how = words.often(float(means.iloc[0])) if len(means) else ""
    return words.contrast(
        means,
        "The full cache's next token is predicted most often with {most}, and least often with {least}.",
        f"All runs alike: the full cache's next token is {how} predicted.",
        f"With {{only}}, the full cache's next token is {how} predicted.",
        "Whether the runs agree was not recorded.",
    )


@extra_nll.figure
def extra_nll_along_text(frame: pd.DataFrame, theme: Theme = "light") -> go.Figure:
    """Cumulative extra NLL on the full cache's own text, in nats."""
    title = "Likelihood lost on the full cache's text"
    y = "cumulative extra NLL (nats)"
    span = _margins(frame.loc[frame["method"] != "full", "extra_nll"].dropna().astype(float), least=0.01)
    return _along_text(frame, "extra_nll", "%{y:+.3g} nats so far", title, y, theme, span, {})


@extra_nll.caption
def caption_extra_nll_along_text(frame: pd.DataFrame) -> str:
    """The runs that find the full cache's text least and most likely."""
    totals = _compressed(frame, "extra_nll").groupby("label", sort=False)["extra_nll"].last()
    first = float(totals.iloc[0]) if len(totals) else 0.0
    how = words.comparison_words(first, 0.0, "more surprising", "less surprising", "as likely", 1e-6)
    than = "as" if how == "as likely" else "than"
    return words.contrast(
        totals,
        "The full cache's text comes as the smallest surprise to {least}, and as the largest to {most}.",
        "The full cache's text is equally likely to all runs.",
        f"To {{only}} the full cache's text is {how} {than} to the full cache.",
        "The full cache's probabilities were not recorded.",
    )


@memory.figure
def memory_over_steps(frame: pd.DataFrame, theme: Theme = "light", measure: str = "live_bytes") -> go.Figure:
    """Bytes of the cache over the steps; `measure` is live_bytes, allocated_bytes or peak_bytes."""
    frame = frame.dropna(subset=[measure])
    most = float(frame[measure].max()) if len(frame) else 0.0
    factor, unit = words.byte_unit(most)
    what = measure.removesuffix("_bytes")
    figure = go.Figure()
    ends = []
    for label, run, look in each_run(frame, theme):
        hover = f"{label}, step %{{x}}: %{{y:.4g}} {unit}<extra></extra>"
        figure.add_scatter(x=run["step"], y=run[measure] / factor, name=label, hovertemplate=hover, **look)
        last = run.iloc[-1]
        ends.append(End(label, float(last["step"]), float(last[measure] / factor), look["line"]["color"]))
    if len(frame) and frame["step"].nunique() == 1:
        figure.update_traces(mode="markers")
    height = labelled_height(len(ends), HEIGHT)
    finish(
        figure,
        title=f"Bytes of the cache: {what}",
        x="step",
        y=f"{what} ({unit})",
        theme=theme,
        height=height,
        legend=False,
    )
    return label_ends(figure, ends, (0.0, 1.05 * most / factor), theme)


@memory.caption
def caption_memory_over_steps(frame: pd.DataFrame, measure: str = "live_bytes") -> str:
    """The runs that take least and most memory at the end, or at once."""
    frame = frame.dropna(subset=[measure])
    if frame.empty and measure == "peak_bytes":
        return PEAK_NOT_RECORDED
    of_run = frame.groupby("label")[measure if measure == "peak_bytes" else "step"]
    last = frame.loc[of_run.idxmax().sort_values()]
    at_end = "At once" if measure == "peak_bytes" else "At the end"
    names = last["label"].where(last["method"] != "full", "the full cache")
    shares = (last[measure] / last["full_bytes"]).set_axis(names)
    share = words.memory_share(float(shares.iloc[0])) if len(shares) else ""
    return words.contrast(
        shares,
        f"The least memory {at_end.lower()} is taken by {{least}}, the most by {{most}}.",
        f"{at_end}, all runs take {share}.",
        f"{at_end}, {{only}} takes {share}.",
        "The memory was not recorded.",
    )


@slots.figure
def slots_by_layer(frame: pd.DataFrame, theme: Theme = "light") -> go.Figure:
    """Live slots of each layer at the end, mean over KV heads; runs with equal lines are drawn as one."""
    figure = go.Figure()
    looks = {label: (run, look) for label, run, look in each_run(frame, theme)}
    # Runs with about the same slots (within 1 %) in every layer are one line.
    table = frame.pivot_table(index="label", columns="layer", values="live_slots", sort=False)
    groups: list[list[str]] = []
    for label, row in table.iterrows():
        alike = (group for group in groups if np.allclose(row, table.loc[group[0]], rtol=0.01, atol=0))
        if (group := next(alike, None)) is not None:
            group.append(str(label))
        else:
            groups.append([str(label)])
    for labels in groups:
        (run, look), name = looks[labels[0]], labels[0]
        if len(labels) > 1:
            look = look | {"line": look["line"] | {"color": QUIET[theme], "dash": "solid"}, "mode": "lines"}
            name = f"{labels[0]} and {words.plural(len(labels) - 1, 'equal run')}"
        hover = f"{'<br>'.join(labels)}<br>layer %{{y}}: %{{x:.4g}} slots<extra></extra>"
        figure.add_scatter(x=run["live_slots"], y=run["layer"], name=name, hovertemplate=hover, **look)
    title = "Slots of each layer at the end"
    layers = sorted(frame["layer"].unique().tolist())
    # As high as the chart next to it, unless the layers need more.
    height = max(HEIGHT + 16 * max(0, frame["label"].nunique() - 3), min(axis_height(layers), TALLEST) + 140)
    finish(figure, title=title, x="live slots (mean over KV heads)", y="layer", theme=theme, height=height)
    figure.update_yaxes(**layer_axis(layers, height - 140))
    return figure.update_xaxes(rangemode="tozero").update_layout(showlegend=True)


@slots.caption
def caption_slots_by_layer(frame: pd.DataFrame) -> str:
    """Whether layers keep equally much."""
    spread = frame.groupby("label", sort=False)["live_slots"].agg(["min", "max"])
    uneven = spread.index[spread["max"] > SLOTS_ALIKE * spread["min"]]
    if not len(uneven):
        return "Every layer of a run keeps equally many tokens."
    if len(uneven) == len(spread):
        return "Some layers keep more tokens than others, in every run."
    runs = words.join_names(list(uneven))
    return f"Some layers keep more tokens than others with {runs}; with the others all keep as many."


def _along_text(
    frame: pd.DataFrame,
    column: str,
    hover: str,
    title: str,
    y: str,
    theme: Theme,
    span: tuple[float, float],
    axis: dict[str, object],
    height: int = HEIGHT,
    hover_column: str = "",
) -> go.Figure:
    """A line per run (except the full cache's) over the tokens of the continuation, with its name at its end.

    `span` is the range of the y axis (of exponents if `axis` is logarithmic). `hover` may use `customdata[1]`, the
    value of the column `hover_column` (default: the drawn column).
    """
    figure = go.Figure()
    ends = []
    for label, run, look in each_run(frame[frame["method"] != "full"], theme):
        run = run[run[column].notna()]
        if len(run):
            hovers = [
                [words.visible(text), value]
                for text, value in zip(run["text"], run[hover_column or column], strict=True)
            ]
            values = run[column].astype(float)
            figure.add_scatter(
                x=run["token"].to_numpy(),
                y=values.to_numpy(),
                name=label,
                customdata=hovers,
                **look,
                hovertemplate=f"{label}<br>token %{{x}} %{{customdata[0]}}<br>{hover}<extra></extra>",
            )
            ends.append(End(label, float(run["token"].iloc[-1]), float(values.iloc[-1]), look["line"]["color"]))
    figure.update_layout(hovermode="closest")
    height = labelled_height(len(ends), height)
    finish(figure, title=title, x="token of the continuation", y=y, theme=theme, height=height, legend=False)
    figure.update_yaxes(**axis)
    return label_ends(figure, ends, span, theme)


def _margins(values: pd.Series, least: float) -> tuple[float, float]:
    """A range around the values with 6 % of it free on both sides; it spans at least `least`."""
    low, high = (float(values.min()), float(values.max())) if len(values) else (0.0, 0.0)
    spare = max(0.06 * (high - low), (least - (high - low)) / 2)
    return low - spare, high + spare


def caption_beyond_budget(frame: pd.DataFrame) -> str:
    """Which runs hold more slots than allotted; empty if none does."""
    if frame.empty:
        return ""
    each = "; ".join(f"{row.label} {row.slots:,.0f} slots for {row.budget:,.0f}" for row in frame.itertuples())
    return f"Generated tokens exceed the budget (slots at the last step, mean over heads): {each}."


def _compressed(frame: pd.DataFrame, measure: str) -> pd.DataFrame:
    return frame[(frame["method"] != "full") & frame[measure].notna()]
