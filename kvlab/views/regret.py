"""Regret, the attention lost to eviction: by layer and step, by token, and against the budgets."""

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.colors import sample_colorscale

from kvlab.common.intervals import correlation_interval
from kvlab.trace.reader import Run
from kvlab.views.base.lines import Line, add_lines, add_points
from kvlab.views.base.palette import HUES, LOSS, Theme, pick
from kvlab.views.base.template import axis_height, colour_bar, finish, layer_axis
from kvlab.views.base.view import view
from kvlab.views.base.words import near, part, percent, sentence, token_text, visible
from kvlab.views.frames.float16 import block_edges, block_means
from kvlab.views.frames.lineage import Lineage
from kvlab.views.frames.memory import budgets_by_layer

MAX_STEPS = 384
MARKERS = ("circle", "square", "diamond", "cross", "x", "triangle-up", "star", "pentagon")
SEEN: dict[Theme, tuple[float, float]] = {"light": (0.0, 0.72), "dark": (0.35, 1.0)}  # of Viridis on the ground
TALLEST = 520  # pixels of the axis of layers


def regret_over_steps_frame(steps: pd.DataFrame, tokens: pd.DataFrame) -> pd.DataFrame:
    """One row per step: mean and largest regret, the head with the largest, the token the step predicts, and its KL.

    Step k reads the k-th token of the continuation and predicts the next; its row names the token read. The last step
    predicts nothing that was recorded.
    """
    known = steps[steps["regret"].notna()]
    worst = known.loc[known.groupby("step")["regret"].idxmax(), ["step", "layer", "head", "regret"]]
    table = steps.groupby("step")["regret"].mean().rename("mean").reset_index()
    table = table.merge(worst.rename(columns={"regret": "largest"}), on="step", how="left")
    forced = tokens[tokens["phase"] == "forced"].sort_values("position").reset_index(drop=True)
    forced = forced.reindex(table["step"]).reset_index(drop=True)
    return table.assign(text=forced["text"].fillna("").to_numpy(), kl=forced["kl"].to_numpy())


def worst_head(steps: pd.DataFrame, step: int) -> tuple[int, int, float]:
    """(layer, head, regret) of the head with the largest regret at `step`."""
    here = steps[steps["step"] == step]
    top = here.loc[here["regret"].fillna(0).idxmax()]
    return int(top["layer"]), int(top["head"]), float(top["regret"])


def dropped_tokens(lineage: Lineage, true_mass: np.ndarray, texts: list[str], step: int) -> pd.DataFrame:
    """Tokens dropped by `step`, those with the most true attention first: position, text, mass, drop step.

    `true_mass` is (tokens,) at the step.
    """
    mass = true_mass[: lineage.tokens].astype(np.float32)
    gone = np.flatnonzero(lineage.death <= step)
    shown = gone[np.argsort(-mass[gone], kind="stable")]
    words = [texts[position] for position in shown]
    columns = {"position": shown, "text": words, "true mass": mass[shown], "dropped at step": lineage.death[shown]}
    return pd.DataFrame(columns)


def budget_and_regret(steps: pd.DataFrame) -> pd.DataFrame:
    """One row per layer and head: slots at the last step, their share of the tokens, and means over all steps.

    Columns: layer, head, live_slots, budget_slots, share, regret, output_error.
    """
    budgets = budgets_by_layer(steps).drop(columns=["regret", "tokens_seen"])
    means = steps.groupby(["layer", "head"])[["regret", "output_error"]].mean().reset_index()
    return budgets.merge(means, on=["layer", "head"])


@view("regret_map", title="Regret by layer and step", needs="full", page="attention", by_step=True)
def regret_by_layer(run: Run) -> pd.DataFrame:
    """Mean regret over heads, one row per layer and one column per step (at most `MAX_STEPS`, neighbours averaged)."""
    table = run.steps.groupby(["layer", "step"])["regret"].mean().unstack("step")
    edges = block_edges(0, table.shape[1], MAX_STEPS)
    values = block_means(table.to_numpy(np.float32).T, edges).T
    return pd.DataFrame(values, index=table.index, columns=pd.Index(table.columns[edges[:-1]], name="step"))


regret_by_step = view("regret", title="Regret at each step", needs="full", page="attention", by_step=True)(
    lambda run: regret_over_steps_frame(run.steps, run.tokens)
)
regret_by_budget = view("budget_against_regret", title="Budget against regret by head", needs="full", page="attention")(
    lambda run: budget_and_regret(run.steps)
)


def rank_correlation(first: pd.Series, second: pd.Series) -> float:
    """Spearman's rank correlation; NaN if one series is constant."""
    ranks = pd.concat([first, second], axis=1).dropna().rank()
    if len(ranks) < 3 or (ranks.nunique() < 2).any():
        return float("nan")
    return float(ranks.corr().iloc[0, 1])


@regret_by_layer.figure
def regret_map(frame: pd.DataFrame, theme: Theme = "light", step: int | None = None) -> go.Figure:
    """Mean regret by layer (rows) and step (columns), from `regret_by_layer`; a line marks `step`."""
    values = frame.to_numpy(np.float32)
    heat = go.Heatmap(
        z=values,
        x=frame.columns.to_numpy(),
        y=frame.index.to_numpy(),
        colorscale=LOSS[theme],
        zmin=0,
        zmax=float(np.nanmax(values)) or 1.0 if np.isfinite(values).any() else 1.0,
        colorbar=colour_bar("regret (share of attention)", theme, tickformat=".3~p"),
        hovertemplate="layer %{y}, step %{x}<br>regret %{z:.1%}<extra></extra>",
    )
    figure = go.Figure(heat)
    if step is not None and len(frame.columns) > 1:
        figure.add_vline(x=step, line={"width": 1.5, "dash": "dot", "color": pick(HUES["ink"], theme)})
    layers = frame.index.tolist()
    pixels = min(TALLEST, axis_height(layers))
    title = "Regret by layer and step"
    height = pixels + 120
    finish(figure, title=title, x="step", y="layer", theme=theme, height=height, legend=False)
    return figure.update_yaxes(showgrid=False, **layer_axis(layers, pixels)).update_xaxes(showgrid=False)


@regret_by_layer.caption
def caption_regret_map(frame: pd.DataFrame) -> str:
    """How much attention goes to dropped tokens, and where most."""
    values = frame.to_numpy(np.float64)
    if not np.isfinite(values).any():
        return "The attention to dropped tokens was not measured."
    if np.nanmax(values) <= 0:
        return "No attention is lost to dropped tokens."
    share = part(float(np.nanmean(values)))
    text = f"on average, {share} of the attention would be on tokens dropped here"
    if near(float(np.nanmin(values)), float(np.nanmax(values))):
        return sentence(text)
    row, _ = np.unravel_index(np.nanargmax(values), values.shape)
    return sentence(f"{text}; most is lost in layer {frame.index[row]}")


@regret_by_step.figure
def regret_over_steps(frame: pd.DataFrame, theme: Theme = "light") -> go.Figure:
    """Mean and largest regret at every step, from `analysis.attention.regret.regret_over_steps`."""
    marker = "circle" if len(frame) < 4 else ""
    lines = (
        Line("largest", "largest of any head", "red", "dot", marker),
        Line("mean", "mean over layers and heads", "grey", "solid", marker),
    )
    words = [visible(text) if text else "–" for text in frame["text"]]
    hover = "step %{x}, predicting %{customdata}<br>{name} %{y:.1%}"
    figure = add_lines(go.Figure(), frame["step"], frame, lines, theme, hover, customdata=words)
    finish(figure, title="Regret at each step", x="step", y="regret (share of attention)", theme=theme)
    return figure.update_yaxes(range=[0, 1.02], tickformat=".0%")


@regret_by_step.caption
def caption_regret_over_steps(frame: pd.DataFrame) -> str:
    """Where most is lost."""
    mean = frame["mean"]
    if not mean.notna().any():
        return "The attention to dropped tokens was not measured."
    if not mean.fillna(0).any():
        return "No attention is lost to dropped tokens at any step."
    if near(float(mean.min()), float(mean.max())):
        return "The same attention is lost to dropped tokens at every step."
    top = frame.loc[mean.idxmax()]
    word = f"when the model predicts “{token_text(top['text'].strip())}”" if top["text"].strip() else ""
    return f"Most attention is lost to dropped tokens {word or 'at step ' + str(int(top['step']))}."


@regret_by_budget.figure
def budget_against_regret(frame: pd.DataFrame, theme: Theme = "light") -> go.Figure:
    """Slots of each head against its regret, from `budget_and_regret`; one marker per layer."""
    layers = sorted(frame["layer"].unique())
    low, high = SEEN[theme]
    places = [low + (high - low) * index / max(1, len(layers) - 1) for index in range(len(layers))]
    colours = sample_colorscale("Viridis", places)
    figure = go.Figure()
    for index, layer in enumerate(layers):
        part = frame[frame["layer"] == layer]
        name = f"layer {layer}"
        hover = f"{name}, head %{{customdata[0]}}<br>%{{x:,}} slots, regret %{{y:.4f}}"
        hover += "<br>output error %{customdata[1]:.3g}"
        add_points(
            figure,
            part["live_slots"],
            part["regret"],
            name,
            colours[index],
            hover,
            size=10,
            marker_symbol=MARKERS[index % len(MARKERS)],
            customdata=part[["head", "output_error"]],
        )
    title = "Budget against regret by head"
    y = "mean regret (share of attention)"
    finish(figure, title=title, x="slots", y=y, theme=theme, legend=len(layers) <= 16)
    return figure.update_yaxes(tickformat=".3~p")


@regret_by_budget.caption
def caption_budget_against_regret(frame: pd.DataFrame) -> str:
    """Whether heads with more slots lose less."""
    if not frame["regret"].notna().any():
        return "The attention to dropped tokens was not measured."
    correlation = rank_correlation(frame["live_slots"], frame["regret"])
    if not np.isfinite(correlation):
        return "All heads hold or lose the same, so the two cannot be compared."
    low, high = correlation_interval(correlation, len(frame))
    if low <= 0 <= high:
        return "Whether heads that hold more lose less attention cannot be told from these heads."
    return f"Heads that hold more lose {'less' if correlation < 0 else 'more'} attention."


def verdict(frame: pd.DataFrame, by_head: pd.DataFrame, label: str) -> str:
    """How much attention a run misses, when and where most, from `regret_over_steps_frame` and `budget_and_regret`."""
    if not frame["mean"].notna().any():
        return f"{label} did not record the attention to dropped tokens."
    if not frame["mean"].fillna(0).any():
        return f"{label} misses nothing: no attention would go to a dropped token."
    top = frame.loc[frame["mean"].idxmax()]
    head = by_head.loc[by_head["regret"].idxmax()]
    return (
        f"{label} misses {percent(frame['mean'].mean())} of the attention, which would go to tokens it dropped: most "
        f"in layer {int(head['layer'])}, head {int(head['head'])} ({percent(head['regret'])}), and at step "
        f"{int(top['step'])} ({percent(top['mean'])})."
    )
