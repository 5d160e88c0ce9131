"""PyramidPool, figures 2 to 5, with the claims: axes, layer budgets, repeated pooling, attended distance by layer."""

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from kvlab.papers import evidence
from kvlab.papers.exhibit import Choice, Drawn, Needs, draws
from kvlab.papers.pyramid_pool import pyramid
from kvlab.results.sources import Sources
from kvlab.results.verdict import FAILS, OPEN, Basis, Claim, Threshold, judge, judge_universal
from kvlab.trace.reader import Run
from kvlab.views.base import words
from kvlab.views.base.animation import frames_of, with_slider
from kvlab.views.base.head_map import cell_text
from kvlab.views.base.lines import Line, add_lines
from kvlab.views.base.palette import HUES, SEQUENTIAL, STATE_COLOURS, SURFACES, Theme, mix, pick
from kvlab.views.base.provenance import Provenance, of_run
from kvlab.views.base.template import CLEAR, colour_bar, finish
from kvlab.views.frames.lineage import event_steps, fold, head_history
from kvlab.views.frames.memory import budgets_by_layer


def three_axes(frame: pd.DataFrame, origin: Provenance, claim: Claim | None, theme: Theme) -> Drawn:
    """Slots by layer and KV head as colours, with their means as bars; `frame` from `memory.budgets_by_layer`.

    The colour is the sequence axis: how much of the text a head keeps.
    """
    table = frame.pivot(index="layer", columns="head", values="live_slots")
    figure = make_subplots(
        2,
        2,
        column_widths=[0.72, 0.28],
        row_heights=[0.3, 0.7],
        horizontal_spacing=0.03,
        vertical_spacing=0.05,
        shared_xaxes="columns",
        shared_yaxes="rows",
    )
    layers = [f"layer {name}" for name in table.index]
    heads = [f"head {name}" for name in table.columns]
    heat = go.Heatmap(
        z=table.to_numpy(np.float32),
        x=heads,
        y=layers,
        xgap=2,
        ygap=2,
        colorscale=SEQUENTIAL[theme],
        zmin=0,
        zmax=float(table.to_numpy().max()),
        showscale=False,
        hovertemplate="%{y}, %{x}: %{z:,} slots<extra></extra>",
    )
    figure.add_trace(heat, row=2, col=1)
    if table.size <= 300:
        figure.add_trace(cell_text(heat, table.round().astype(int).astype(str).to_numpy(), 12), row=2, col=1)
    figure.add_bar(
        x=heads,
        y=table.mean(),
        marker={"color": pick(HUES["green"], theme), "pattern": {"shape": "/"}},
        name="heads",
        row=1,
        col=1,
        hovertemplate="%{x}: %{y:.4g} slots on average<extra></extra>",
    )
    figure.add_bar(
        x=table.mean(axis=1),
        y=layers,
        orientation="h",
        marker={"color": pick(HUES["blue"], theme)},
        name="layers",
        row=2,
        col=2,
        hovertemplate="%{y}: %{x:.4g} slots on average<extra></extra>",
    )
    finish(
        figure,
        title="The three axes of compression",
        x="",
        y="",
        theme=theme,
        legend=False,
        height=280 + 26 * min(len(layers), 24),
    )
    figure.update_yaxes(autorange="reversed", title_text="layers", row=2, col=1)
    figure.update_xaxes(title_text="KV heads", row=2, col=1).update_xaxes(title_text="slots of a layer", row=2, col=2)
    figure.update_yaxes(title_text="slots of a head", row=1, col=1)
    figure.update_layout(plot_bgcolor=CLEAR)
    caption = "Every head of every layer keeps equally many tokens."
    if frame["live_slots"].min() != frame["live_slots"].max():
        layer_means = frame.groupby("layer")["live_slots"].mean()
        what = "heads" if words.near(float(layer_means.min()), float(layer_means.max())) else "layers"
        caption = f"Some {what} keep more tokens than others."
    return Drawn("axes", figure, frame, caption, origin, claim)


MOST_EDGES = 120  # with more bars, edges are omitted
MOST_DEEP = 6  # end of the colour scale


OURS = "pyramid-pool"
KEEPS_ONE = ("best", "max-norm")
TWO_AXES = "PyramidPool compresses along the sequence and the layers, not along the heads."
FALLS = "Budgets fall linearly from L0 to L0 / beta over the layers, and the sinks are never compressed."
OLDER = "The oldest tokens are compressed most and the most recent are kept as they are."
LOCALISES = "Attention gets more local from layer to layer."
STRAIGHT = 0.99
UNEQUAL = 1.02
WHY_STRAIGHT = "rounding to whole slots bends a line by less than a hundredth of its variance"
WHY_UNEQUAL = "of layers, and not of heads: rounding to whole slots makes both differ by up to a fiftieth"
TREND = "half of a perfect rank correlation, in size; below it a figure shows no trend"
GROWS = Threshold(0.5, TREND)
SINKS_IN = Threshold(-0.5, TREND, at_most=True)


def axes(run: Run) -> pd.DataFrame:
    """One row: `layers` and `heads`, the largest over the smallest number of slots along each axis at the end."""
    steps = run.steps
    return pd.DataFrame([pyramid.spread_by_axis(steps, int(steps["step"].max()))]) if len(steps) else pd.DataFrame()


def layer_lines(run: Run) -> pd.DataFrame:
    """One row: number of `layers`, how linearly their budgets fall (`explained`), the `ratio` of first to last,
    their `total`, `beta`, and the numbers of `sinks` and of `touched` sinks."""
    steps = run.steps
    if steps.empty:
        return pd.DataFrame()
    frame = pyramid.layer_budgets(steps, int(steps["step"].max()))
    asked = frame["asked"].tolist()
    beta = run.record.hyper_parameters.get("beta")
    # The sinks of a head that take part in any event.
    sinks = _option(run, "sinks", 0)
    events = run.select("events", columns=["layer", "head", "source", "target"])
    sides = [
        events.loc[events[side].between(0, sinks - 1), ["layer", "head", side]].rename(columns={side: "slot"})
        for side in ("source", "target")
    ]
    touched = pd.concat(sides).drop_duplicates()
    heads = steps[["layer", "head"]].drop_duplicates()
    line = {
        "layers": len(asked),
        "explained": pyramid.straight(frame["layer"].to_numpy(float), frame["asked"].to_numpy(float))[1],
        "ratio": pyramid.ratio(asked[0], asked[-1]),
        "total": sum(asked),
        "beta": float(beta) if isinstance(beta, int | float) else float("nan"),
        "sinks": len(heads) * sinks,
        "touched": len(touched),
    }
    return pd.DataFrame([line])


def window_rows(run: Run) -> pd.DataFrame:
    """One row per head: `trend`, the rank correlation of a slot's age with its tokens at the last step, and the
    number of tokens in the `newest` slot. Empty for runs that keep one token per window, which pool nothing."""
    if run.record.hyper_parameters.get("pooling") in KEEPS_ONE:
        return pd.DataFrame()
    model = run.record.model
    rows = []
    for layer in range(model.num_hidden_layers):
        for head in range(model.num_key_value_heads):
            steps = run.select("steps", layer, head)
            if len(steps):
                lineage = fold(run.select("events", layer, head), steps)
                table = pyramid.spans(lineage, int(lineage.steps[-1]), _option(run, "window", 4))
                newest = int(table["tokens"].to_numpy()[np.argmax(table["first"].to_numpy())])
                # Of slots with equally many tokens there is no rank. A slot's age is how far back it begins.
                ages = -table["first"]
                ranked = table["tokens"].nunique() > 1
                trend = float(ages.rank().corr(table["tokens"].rank())) if ranked else math.nan
                rows.append({"layer": layer, "head": head, "trend": trend, "newest": newest})
    return pd.DataFrame(rows)


AXES = evidence.Evidence("axes", axes, (OURS,))
LINES = evidence.Evidence("layer-lines", layer_lines, (OURS, "pool"))
WINDOWS = evidence.Evidence("windows", window_rows, (OURS, "pool"))
DISTANCES = evidence.Evidence("distances", pyramid.by_layer)


def two_axes(rows: pd.DataFrame) -> Claim:
    """Layers differ and heads do not, in every prompt."""
    if rows.empty:
        return Claim(TWO_AXES, OPEN, "There is no run of PyramidPool.")
    basis = Basis(rows["prompt"].nunique())
    broken = int((~((rows["layers"] > UNEQUAL) & (rows["heads"] <= UNEQUAL))).sum())
    layers, heads = (
        evidence.mean_text(evidence.over_prompts(rows, axis), words.number) for axis in ("layers", "heads")
    )
    finding = f"Largest over smallest layer {layers}, largest over smallest head of a layer {heads}."
    return Claim(TWO_AXES, judge_universal(broken, basis), finding, basis, threshold=Threshold(UNEQUAL, WHY_UNEQUAL))


def falls(rows: pd.DataFrame) -> Claim:
    """Linear, decreasing, and no sink touched, in every prompt."""
    if rows.empty:
        return Claim(FALLS, OPEN, "There is no run of PyramidPool.")
    basis = Basis(rows["prompt"].nunique())
    explained = rows["explained"].min()
    at_least = "all" if explained == 1 else f"at least {math.floor(1000 * explained) / 10:g} %"
    finding = (
        f"A straight line explains {at_least} of how the budgets vary; first over last layer "
        f"{evidence.mean_text(evidence.over_prompts(rows, 'ratio'), words.number)}"
        f"{f' (beta {rows.beta.iloc[0]:g})' if rows['beta'].notna().any() else ''}; {int(rows['touched'].sum()):,} of "
        f"{int(rows['sinks'].sum()):,} sinks took part in a merge or left."
    )
    if rows["layers"].min() < 3:
        return Claim(FALLS, OPEN, f"{finding} Fewer than three layers make no line.", basis)
    falling = (rows["ratio"] > 1) | (rows["beta"] == 1)
    broken = int((~((rows["explained"] >= STRAIGHT) & falling & (rows["touched"] == 0))).sum())
    return Claim(FALLS, judge_universal(broken, basis), finding, basis, threshold=Threshold(STRAIGHT, WHY_STRAIGHT))


def older(rows: pd.DataFrame) -> Claim:
    """Older slots hold more tokens, and the newest holds one."""
    known = rows.dropna(subset="trend") if "trend" in rows else rows.iloc[:0]
    if known.empty:
        return Claim(OLDER, OPEN, "No slot holds more than one token.")
    trend = evidence.over_prompts(known, "trend")
    basis = evidence.basis_of(known)
    single = int((rows["newest"] == 1).sum())
    finding = (
        f"Rank correlation of a slot's age with its tokens {evidence.mean_text(trend, words.number)}, mean over heads; "
        f"the newest slot holds one token in {single:,} of {len(rows):,} heads."
    )
    if judge_universal(len(rows) - single, basis) == FAILS:  # then the trend is irrelevant
        return Claim(OLDER, FAILS, finding, basis)
    return judge(OLDER, trend, GROWS, basis, finding)


def localises(rows: pd.DataFrame) -> Claim:
    """Rank correlation of layer index and attended distance, prompt by prompt."""
    if rows.empty:
        return Claim(LOCALISES, OPEN, "No run recorded its attention.")
    means = rows.groupby(["prompt", "layer"])["share"].mean().unstack("layer")
    if means.shape[1] < 3:
        return Claim(LOCALISES, OPEN, f"{means.shape[1]} layers are too few for a trend.", evidence.basis_of(rows))
    layers = pd.Series(range(means.shape[1]), index=means.columns, dtype=float)
    trend = evidence.interval_of([float(layers.corr(line.rank())) for _, line in means.iterrows()])
    # Attended distance in both halves of the layers if it follows the trend, from which single layers may deviate; else
    # the two extreme layers.
    half = means.shape[1] // 2
    early, late = (means.iloc[:, side].mean(axis=1) for side in (slice(half), slice(-half, None)))
    if trend is None or (late.mean() - early.mean()) * trend.mean >= 0:
        first, second = (
            evidence.mean_text(evidence.interval_of(side.tolist()), words.percent) for side in (early, late)
        )
        shown = f"{first} of the text back in the first half of the layers, {second} in the second"
    else:
        furthest = means.mean().idxmax()
        nearest = means.mean().idxmin()
        far, close = (
            evidence.mean_text(evidence.interval_of(means[layer].tolist()), words.percent)
            for layer in (furthest, nearest)
        )
        shown = f"{far} of the text back in layer {furthest}, the furthest, {close} in layer {nearest}"
    finding = (
        f"Rank correlation of layer with attended distance {evidence.mean_text(trend, words.number)} over "
        f"{means.shape[1]} layers; {shown}."
    )
    return judge(LOCALISES, trend, SINKS_IN, evidence.basis_of(rows), finding)


PYRAMIDS = ("pyramid-pool", "pool")


@draws("pyramid-pool/fig-2")
def draw_axes(sources: Sources, choice: Choice, theme: Theme) -> tuple[Drawn, ...] | Needs:
    """Figure 2: slots by layer and KV head of the PyramidPool run, else the current one."""
    run = sources.run_of(*PYRAMIDS) or sources.run
    if run is None or run.steps.empty:
        return Needs("No run recorded its slots by layer and head.", evidence.comparison(sources, PYRAMIDS[:1]))
    step = min(choice.step, int(run.steps["step"].max()))
    if run.record.method == OURS:
        claim = two_axes(evidence.gather(sources, AXES, [run]))
    else:
        spread = pyramid.spread_by_axis(run.steps, step)
        finding = (
            f"{run.record.label}: largest over smallest layer {words.number(spread['layers'])}, "
            f"largest over smallest head of a layer {words.number(spread['heads'])}. It is not a run of PyramidPool."
        )
        claim = Claim(TWO_AXES, OPEN, finding)
    return (three_axes(budgets_by_layer(run.steps, step), of_run(run), claim, theme),)


@draws("pyramid-pool/fig-3")
def draw_layers(sources: Sources, choice: Choice, theme: Theme) -> tuple[Drawn, ...] | Needs:
    """Figure 3: requested budget and live slots per head in each layer, with the sinks."""
    run = evidence.recorded_run(sources, *PYRAMIDS)
    if isinstance(run, Needs):
        return run
    frame = pyramid.layer_budgets(run.steps, min(choice.step, int(run.steps["step"].max())))
    sinks = _option(run, "sinks", 0)
    figure = go.Figure()
    figure.add_bar(
        x=frame["layer"],
        y=np.minimum(frame["live"], sinks),
        name=f"sinks ({sinks} first tokens)",
        marker={"color": pick(STATE_COLOURS["sink"], theme), "pattern": {"shape": "x"}},
        hovertemplate="layer %{x}: %{y:.3g} sinks<extra></extra>",
    )
    figure.add_bar(
        x=frame["layer"],
        y=(frame["live"] - sinks).clip(lower=0),
        name="other slots in use",
        marker={"color": pick(STATE_COLOURS["kept"], theme)},
        hovertemplate="layer %{x}: %{y:.4g} other slots<extra></extra>",
    )
    figure.add_scatter(
        x=frame["layer"],
        y=frame["asked"],
        name="requested budget",
        mode="markers",
        marker={"symbol": "line-ew", "size": 30, "line": {"width": 3, "color": pick(HUES["ink"], theme)}},
        hovertemplate="layer %{x}: %{y:.4g} slots requested<extra></extra>",
    )
    figure.add_scatter(
        x=frame["layer"],
        y=frame["line"],
        name="straight line through the budgets",
        mode="lines",
        line={"color": pick(HUES["red"], theme), "dash": "dash", "width": 1.6},
        hoverinfo="skip",
    )
    finish(figure, title="Slots of each layer", x="layer", y="slots (mean over KV heads)", theme=theme)
    figure.update_layout(barmode="stack", bargap=0.35).update_xaxes(dtick=1 if len(frame) <= 24 else None)
    # Whether early layers get more.
    first = float(frame["asked"].iloc[0])
    last = float(frame["asked"].iloc[-1])
    caption = words.NOT_RECORDED
    if words.are_known(first, last):
        how = words.comparison_words(first, last, "more than", "less than", "as much as")
        caption = f"The first layer may keep {how} the last one."
    claim = falls(evidence.gather(sources, LINES, [run]))
    return (Drawn("layers", figure, frame, caption, of_run(run), claim),)


def _option(run: Run, name: str, default: int) -> int:
    """A whole number among the run's options."""
    value = run.record.hyper_parameters.get(name)
    return value if isinstance(value, int) else default


MOST_FRAMES = 16
MERGING = ("pyramid-pool:pooling=mean",)


@draws("pyramid-pool/fig-4")
def draw_windows(sources: Sources, choice: Choice, theme: Theme) -> tuple[Drawn, ...] | Needs:
    """Figure 4: the text span of each slot of one head over the steps, of a run that merges its windows if there is
    one."""
    candidates = [run for run in (sources.run, *sources.runs) if run is not None and run.record.method in PYRAMIDS]
    merging = [run for run in candidates if run.record.hyper_parameters.get("pooling") not in KEEPS_ONE]
    pooled = next((run for run in merging if run.record.level == "full" and not run.steps.empty), None)
    run = pooled or evidence.recorded_run(sources, *PYRAMIDS)
    if isinstance(run, Needs):
        return Needs(run.sentence, evidence.comparison(sources, MERGING))
    pooling = run.record.hyper_parameters.get("pooling")
    if pooling in KEEPS_ONE:
        why = f"This run's pooling ({pooling}) keeps one token of each window and evicts the others: nothing merges."
        return Needs(why, evidence.comparison(sources, MERGING))
    lineage = head_history(run, choice.layer, choice.head)[0]
    # The first and last step and those with departures, evenly thinned.
    steps = np.unique([lineage.steps[0], *event_steps(lineage), lineage.steps[-1]])
    chosen = np.unique(np.linspace(0, len(steps) - 1, min(MOST_FRAMES, len(steps))).round().astype(int))
    spans = {step: pyramid.spans(lineage, step, _option(run, "window", 4)) for step in steps[chosen].tolist()}
    return (windows(spans, len(steps), of_run(run), older(evidence.gather(sources, WINDOWS, [run])), theme),)


def windows(
    spans: Mapping[int, pd.DataFrame], steps: int, origin: Provenance, claim: Claim | None, theme: Theme
) -> Drawn:
    """Every slot of a head as a bar over the tokens it holds, higher the more often they were pooled.

    `spans` maps each shown one of the `steps` to `pyramid.spans`; a slider moves between them.
    """
    shown = {step: table.nlargest(pyramid.MOST_SLOTS, "tokens").sort_index() for step, table in spans.items()}
    shallow = pick(HUES["sky"], theme)
    deep = pick(HUES["red"], theme)
    bars = [
        go.Bar(
            x=table["last"] - table["first"] + 1,
            base=table["first"] - 0.5,
            y=table["generation"],
            orientation="h",
            width=0.75,
            marker={
                "color": [mix(shallow, deep, share) for share in table["generation"].clip(upper=MOST_DEEP) / MOST_DEEP],
                "line": {"width": 0.6 if len(table) <= MOST_EDGES else 0, "color": SURFACES[theme]},
            },
            customdata=table[["position", "tokens"]].to_numpy(),
            hovertemplate="slot %{customdata[0]}: %{customdata[1]} tokens from %{base:.0f}, pooled at least %{y} times"
            "<extra></extra>",
        )
        for table in shown.values()
    ]
    figure = go.Figure(bars[-1], frames=frames_of(list(shown), [[bar] for bar in bars]))
    title = "Windows of tokens that share a slot"
    across = "position in the text"
    finish(figure, title=title, x=across, y="times pooled (at least)", theme=theme, height=330, legend=False)
    deepest = max(int(table["generation"].max()) for table in shown.values())
    end = max(int(table["last"].max()) for table in shown.values())
    figure.update_yaxes(range=[-0.6, deepest + 0.7], dtick=1).update_xaxes(range=[-0.01 * end, 1.01 * end])
    figure = with_slider(figure, "step ", len(shown) - 1, theme)
    # How many slots hold pooled tokens at the end.
    last = list(spans.values())[-1]
    held = words.sentence(
        f"several tokens are held by {words.some_of(int((last['tokens'] > 1).sum()), len(last), 'slot')}"
    )
    drawn = words.shown_of(pyramid.MOST_SLOTS, len(last), "slot", "with the most tokens")
    caption = f"{held}{drawn}{words.shown_of(len(spans), steps, 'step', 'evenly chosen')}"
    frame = pd.concat([table.assign(step=step) for step, table in spans.items()], ignore_index=True)
    return Drawn("windows", figure, frame, caption, origin, claim)


LINES_BY_LAYER = (
    Line("share", "attended distance (share of the text, without sinks)", "blue", "solid", "circle"),
    Line("sink_mass", "attention on the first 4 tokens", "orange", "dash", "square"),
    Line("local_mass", "attention on the last 32 tokens", "green", "dot", "diamond"),
)


def attention_map(frame: pd.DataFrame, origin: Provenance, theme: Theme) -> Drawn:
    """Attention of each step's query (rows) on the tokens (columns), from `pyramid.attention_map`.

    On a log scale, because most tokens get next to nothing.
    """
    shown = np.log10(np.maximum(frame.to_numpy(np.float32), 1e-5))
    heat = go.Heatmap(
        z=shown,
        x=frame.columns.to_numpy(),
        y=frame.index.to_numpy(),
        zmin=-5,
        zmax=0,
        colorscale=SEQUENTIAL[theme],
        colorbar=colour_bar(
            "attention",
            theme,
            tickvals=[-5, -4, -3, -2, -1, 0],
            ticktext=["0.00001 or less", "0.0001", "0.001", "0.01", "0.1", "1"],
        ),
        hovertemplate="step %{y}, from token %{x}: 10^%{z:.2f}<extra></extra>",
    )
    figure = go.Figure(heat)
    finish(figure, title="Attention of each query", x="token (position)", y="step", theme=theme, legend=False)
    figure.update_yaxes(autorange="reversed", showgrid=False).update_xaxes(showgrid=False)
    # How concentrated the attention is.
    caption = "There is no attention here."
    values = np.sort(frame.to_numpy(float), axis=1)[:, ::-1]
    values = values[values.sum(axis=1) > 0]
    if len(values):
        top = values[:, : max(1, values.shape[1] // 20)].sum(axis=1) / values.sum(axis=1)
        held = words.part(float(top.mean()))
        caption = words.sentence(f"{held} of the attention is on the twentieth of the text that is read most")
    return Drawn("map", figure, frame.rename(columns=str).reset_index(), caption, origin)


@draws("pyramid-pool/fig-5")
def draw_attention(sources: Sources, choice: Choice, theme: Theme) -> tuple[Drawn, ...] | Needs:
    """Figure 5: the attention map of one head, and the attended distance of every layer."""
    run = next((run for run in (sources.run, *sources.runs) if run is not None and run.has_arrays), None)
    if run is None:
        return Needs("No run recorded its attention rows.", evidence.comparison(sources, PYRAMIDS[:1]))
    rows = pyramid.attention_map(run, choice.layer, choice.head)
    layers = pyramid.layer_means(pyramid.by_layer(run))
    where = replace(of_run(run), note="this run's attention with nothing dropped")
    # Mean attended distance, sink mass and local mass of each layer.
    figure = go.Figure()
    figure.add_scatter(
        x=[*layers["layer"], *layers["layer"][::-1]],
        y=[*layers["highest"], *layers["lowest"][::-1]],
        fill="toself",
        mode="lines",
        line={"width": 0},
        opacity=0.25,
        fillcolor=pick(HUES["blue"], theme),
        name="range over the layer's heads",
        hoverinfo="skip",
    )
    add_lines(figure, layers["layer"], layers, LINES_BY_LAYER, theme, "layer %{x}: {name} %{y:.3f}", size=8)
    finish(figure, title="Attended distance by layer", x="layer", y="share", theme=theme)
    figure.update_yaxes(rangemode="tozero").update_xaxes(dtick=1 if len(layers) <= 24 else None)
    # Whether the last layer looks further back than the first.
    first = float(layers["distance"].iloc[0])
    last = float(layers["distance"].iloc[-1])
    drawn = f" Sampled: {pyramid.MOST_ROWS:,} of {len(rows):,} queries, evenly chosen."
    sampled = drawn if len(rows) > pyramid.MOST_ROWS else ""
    if len(layers) == 1:
        caption = f"Only one layer is shown.{sampled}"
    elif not words.are_known(first, last):
        caption = words.NOT_RECORDED
    else:
        how = words.comparison_words(
            last, first, "further back than", "less far back than", "about as far back as", 0.05
        )
        caption = f"On average, the last layer looks {how} the first.{sampled}"
    claim = localises(evidence.gather(sources, DISTANCES))
    return attention_map(rows, where, theme), Drawn("layers", figure, layers, caption, where, claim)
