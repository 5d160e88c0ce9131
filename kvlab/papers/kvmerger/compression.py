"""KVMerger, figures 3b, 3d and 9: layer compression by merge sets, and the Gaussian weights of a run's merges."""

from dataclasses import replace

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from kvlab.common.formatting import mean_words, model_title, prompts
from kvlab.common.intervals import Interval, pairs_interval
from kvlab.papers.evidence import Evidence, basis_of, comparison, gather, mean_text, over_prompts
from kvlab.papers.exhibit import Choice, Drawn, Needs, draws
from kvlab.papers.kvmerger.merging_sets import (
    BUDGETS,
    METHODS,
    MOST_TOKENS,
    PAPER_THRESHOLD,
    eviction_sentence,
    kernel,
    merged_pairs,
    persistence,
    prompt_name,
    prompts_of,
    ratios,
    run_with_keys,
    sample_sentence,
)
from kvlab.results.sources import Sources
from kvlab.results.verdict import OPEN, Claim, Threshold, judge
from kvlab.trace.reader import Run
from kvlab.views.base import words
from kvlab.views.base.lines import add_line, add_points
from kvlab.views.base.palette import DASHES, FALLBACK_MARKERS, HUES, STATE_COLOURS, Theme, pick
from kvlab.views.base.provenance import of_run
from kvlab.views.base.template import finish
from kvlab.views.frames.head_states import readable_heads, spread_heads

WIDE = 0.01  # smaller relative changes of attention count as none


HUES_OF_CURVES = ("blue", "green", "orange", "purple", "grey")
MOST_POINTS = 2000


def _add_points(figure: go.Figure, points: pd.DataFrame, distances: pd.Series, theme: Theme) -> None:
    """Add the weight of at most `MOST_POINTS` merged tokens by the distance of their keys to the pivot's."""
    if len(points) > MOST_POINTS:
        some = np.linspace(0, len(points) - 1, MOST_POINTS).round().astype(int)
        points = points.iloc[some]
        distances = distances.iloc[some]
    hover = (
        "layer %{customdata[0]}, head %{customdata[1]}: token %{customdata[2]} into %{customdata[3]}"
        "<br>sigma %{customdata[4]:.2f}, weight %{y:.3f}"
    )
    for name, shown, symbol, colours in (
        ("pairs", points["others"] == 1, "x", STATE_COLOURS["pivot"]),
        ("larger sets", points["others"] > 1, "circle", HUES["ink"]),
    ):
        if shown.any():
            details = points.loc[shown, ["layer", "head", "source", "target", "sigma"]].to_numpy()
            add_points(
                figure,
                distances[shown],
                points.loc[shown, "relative_weight"],
                f"this run: {name}",
                pick(colours, theme),
                hover,
                marker_symbol=symbol,
                marker_opacity=0.55,
                customdata=details,
            )


PROMPT_HUES = ("blue", "orange", "green", "purple", "ink", "red", "sky", "grey")
MARKERS = ("circle", "square", "diamond", "cross", "x", "triangle-up", *FALLBACK_MARKERS)


SAME = "Which layers merging shrinks most is a property of the model: it stays the same from prompt to prompt."
ORDER = Threshold(0.8, "about where four pairs of layers of five are in the same order in two prompts")
CLAIM_VECTORS = 120_000


def ratio_rows(run: Run) -> pd.DataFrame:
    """One row per head: `ratio` of merge sets to prompt tokens at the paper's threshold."""
    heads = readable_heads(run, spread_heads(run, vectors=CLAIM_VECTORS, tokens=MOST_TOKENS))
    return ratios(run, heads)[["layer", "head", "ratio"]]


RATIOS = Evidence("layer-order", ratio_rows)


def same(rows: pd.DataFrame) -> Claim:
    """Rank correlation of two prompts' layers, over all pairs of prompts."""
    layers, heads = (
        persistence(rows.groupby([*place, "prompt"])["ratio"].mean().unstack("prompt"))
        if len(rows)
        else np.zeros((0, 0))
        for place in (["layer"], ["layer", "head"])
    )
    basis = basis_of(rows)
    if len(layers) < 2 or np.isnan(layers).any():
        why = f"{prompts(basis.prompts).capitalize()}: it takes 2, and layers that differ."
        return Claim(SAME, OPEN, why, basis, threshold=ORDER)
    found = pairs_interval(layers)
    finding = (
        f"The rank correlation of two prompts' layers is {_pair_words(layers)} on average, of their heads "
        f"{_pair_words(heads)} (sets at a cosine of {PAPER_THRESHOLD})."
    )
    over = Interval(found.mean, found.low, found.high, basis.prompts, found.samples)
    return judge(SAME, over, ORDER, basis, finding)


def _pair_words(correlations: np.ndarray) -> str:
    """Mean over all pairs of prompts; a single pair has no interval."""
    if np.isnan(correlations).any():
        return "not defined"
    one = pairs_interval(correlations)
    if one.n == 2:
        return f"{words.two_digits(one.mean)} (one pair of prompts, n = 2)"
    return mean_words(one.mean, one.low, one.high, one.n, words.two_digits)


VECTORS = 240_000
SWEEP_VECTORS = 40_000
SWEEP = (0.4, 0.5, 0.6, 0.7, PAPER_THRESHOLD, 0.8, 0.9)


@draws("kvmerger/fig-3b")
def draw_ratios(sources: Sources, choice: Choice, theme: Theme) -> tuple[Drawn, ...] | Needs:
    """Figure 3b: all recorded prompts of the current model, and the effect of other thresholds."""
    run = run_with_keys(sources)
    if isinstance(run, Needs):
        return run
    drawn = _of_model(sources, prompts_of(sources, run.record.model.name), theme)
    heads = readable_heads(run, spread_heads(run, vectors=SWEEP_VECTORS, tokens=MOST_TOKENS))
    table = ratios(run, heads, SWEEP)
    # Slots per token at each threshold: a faint line per layer, and the mean.
    figure = go.Figure()
    layers = table.groupby(["layer", "threshold"])["ratio"].mean().reset_index()
    for layer, group in layers.groupby("layer"):
        figure.add_scatter(
            x=group["threshold"],
            y=group["ratio"],
            mode="lines",
            line={"color": pick(HUES["grey"], theme), "width": 1},
            opacity=0.55,
            name="each layer",
            legendgroup="layers",
            showlegend=bool(layer == layers["layer"].iloc[0]),
            hovertemplate=f"layer {layer}, threshold %{{x}}: %{{y:.3f}}<extra></extra>",
        )
    mean = table.groupby("threshold")["ratio"].mean()
    figure.add_scatter(
        x=mean.index,
        y=mean,
        mode="lines+markers",
        name="all heads",
        marker={"size": 7},
        line={"color": pick(HUES["blue"], theme), "width": 2.4},
        hovertemplate="threshold %{x}: %{y:.3f}<extra></extra>",
    )
    figure.add_vline(
        x=PAPER_THRESHOLD,
        line={"color": pick(HUES["ink"], theme), "width": 1, "dash": "dot"},
        annotation={"text": "the paper's threshold", "font": {"size": 11}, "xanchor": "left", "y": 0.04},
    )
    title = "Compression ratio by threshold"
    finish(figure, title=title, x="threshold (cosine with the anchor)", y="sets / tokens", theme=theme)
    figure.update_yaxes(range=[0, 1.03])
    left = words.part(float(mean[PAPER_THRESHOLD]))
    caption = words.sentence(f"at the paper's threshold, merging leaves {left} of the tokens")
    sampled = sample_sentence(run, heads, MOST_TOKENS)
    return drawn, Drawn("by threshold", figure, table, f"{caption}{sampled}", of_run(run))


@draws("kvmerger/fig-9")
def draw_models(sources: Sources, choice: Choice, theme: Theme) -> tuple[Drawn, ...] | Needs:
    """Figure 9: the same for every model with recorded prompts, each with its own verdict."""
    run = run_with_keys(sources)
    if isinstance(run, Needs):
        return run
    names = dict.fromkeys([run.record.model.name, *(one.record.model.name for one in prompts_of(sources))])
    drawn = [_of_model(sources, prompts_of(sources, name), theme) for name in names]
    return tuple(replace(one, claim=one.claim and replace(one.claim, judged_at="kvmerger/fig-3b")) for one in drawn)


def _of_model(sources: Sources, runs: list[Run], theme: Theme) -> Drawn:
    """Slots per token in each layer (mean over heads), one line per prompt of a model."""
    most = VECTORS // max(2, len(runs))
    heads = {prompt_name(run): readable_heads(run, spread_heads(run, vectors=most, tokens=MOST_TOKENS)) for run in runs}
    by_name = {prompt_name(run): run for run in runs}
    parts = [ratios(run, heads[name]).assign(prompt=name) for name, run in by_name.items()]
    by_layer = pd.concat(parts).groupby(["prompt", "layer"], sort=False)["ratio"].mean().reset_index()
    model = runs[0].record.model.name
    figure = go.Figure()
    for rank, (prompt, group) in enumerate(by_layer.groupby("prompt", sort=False)):
        colour = pick(HUES[PROMPT_HUES[rank % 8]], theme)
        hover = f"{prompt}<br>layer %{{x}}: %{{y:.3f}}"
        marker = MARKERS[rank % len(MARKERS)]
        dash = DASHES[rank % 6]
        add_line(figure, group["layer"], group["ratio"], str(prompt), colour, dash, hover, marker=marker, size=8)
    below = 22 * by_layer["prompt"].nunique()
    title = "Compression ratio of merge sets by layer"
    finish(figure, title=title, x="layer", y="sets / tokens", theme=theme, height=380 + below)
    named = f"{title} ({model_title(model)})"  # the zoom stays from model to model
    figure.update_layout(title_text=named, margin={"t": 56 + below}, legend={"orientation": "v"}, showlegend=True)
    layers = sorted(by_layer["layer"].unique())
    figure.update_xaxes(tickvals=layers[:: max(1, -(-len(layers) // 16))], showgrid=False)
    figure.update_yaxes(range=[0, 1.03])
    # The layers that shrink most and least, mean over the prompts.
    caption = words.contrast(
        by_layer.assign(layer=by_layer["layer"].astype(int)).groupby("layer")["ratio"].mean(),
        "Layer {least} can be shrunk most by merging, layer {most} least.",
        "All layers shrink equally by merging.",
        "Only layer {only} is shown.",
    )
    fewest = min(runs, key=lambda run: len(heads[prompt_name(run)]))
    sampled = sample_sentence(fewest, heads[prompt_name(fewest)], MOST_TOKENS)
    more = f"and {words.plural(len(runs) - 1, 'more prompt')}" if len(runs) > 1 else ""
    where = replace(of_run(runs[0]), note=more)
    claim = same(gather(Sources(sources.root, None, runs), RATIOS))
    return Drawn(model_title(model), figure, by_layer, f"{caption}{sampled}", where, claim, model=model)


NEARER = "Tokens whose keys are nearer to the pivot's get more weight."
CLEARLY = Threshold(1.1, "equal weights give 1; a tenth more is the least that can move a merged key")


def weight_rows(run: Run) -> pd.DataFrame:
    """One row per head: `weight_ratio` of its merges in the prefill."""
    points = merged_pairs(run, readable_heads(run, spread_heads(run)))
    groups = points.groupby(["layer", "head"], sort=False)
    return pd.DataFrame([{"layer": a, "head": b, **weight_ratio(group)} for (a, b), group in groups])


def weight_ratio(points: pd.DataFrame) -> dict[str, float]:
    """`ratio`: weight of the nearest over that of the furthest token, median over sets of at least three tokens;
    `sets`: number of these; `pairs`: number of sets of two."""
    larger = points[points["others"] > 1].groupby("target")["weight"]
    ratio = float((larger.max() / larger.min()).median()) if len(larger) else float("nan")
    return {"ratio": ratio, "sets": len(larger), "pairs": int((points["others"] == 1).sum())}


WEIGHTS = Evidence("kernel", weight_rows, ("kvmerger",))


def nearer(rows: pd.DataFrame) -> Claim:
    """Weight of the nearest over that of the furthest token, over all sets of at least three tokens."""
    sets, pairs = (int(rows[name].sum()) if name in rows else 0 for name in ("sets", "pairs"))
    basis = basis_of(rows, sets + pairs)
    if not sets:
        return Claim(NEARER, OPEN, "All sets are pairs: their weight does not depend on the distance.", basis)
    ratio = over_prompts(rows, "ratio")
    finding = (
        f"In {sets:,} sets of three tokens and more the nearest weighs {mean_text(ratio, words.two_digits)} "
        f"times the furthest (median of a head, mean over heads), but {words.percent(pairs / (sets + pairs))} of "
        "the sets are pairs, which have one distance and so one fixed weight."
    )
    return judge(NEARER, ratio, CLEARLY, basis, finding)


PAPER_SIGMAS = (1.0, 3.0, 6.0)  # KVMerger, Table 5


@draws("kvmerger/fig-3d")
def draw_kernel(sources: Sources, choice: Choice, theme: Theme) -> tuple[Drawn, ...] | Needs:
    """The kernel for the paper's sigmas and this run's, with every merged token on its set's curve."""
    run = sources.run_of("kvmerger")
    if run is None or run.record.level != "full" or not run.has_arrays:
        why = "This comparison has no KVMerger run with events and keys."
        return Needs(why, comparison(sources, METHODS, BUDGETS))
    heads = readable_heads(run, spread_heads(run))
    points = merged_pairs(run, heads)
    if points.empty:
        return Needs("Nothing was merged in this run's prefill.", comparison(sources, METHODS, BUDGETS))
    drawn = words.shown_of(MOST_POINTS, len(points), "merged token", "evenly chosen")
    note = f"{drawn}{sample_sentence(run, heads)}"
    # The kernel over the observed distances, for the paper's sigmas and the run's median.
    figure = go.Figure()
    _add_points(figure, points, points["distance"], theme)
    distance = np.linspace(0, 1.05 * float(points["distance"].max()), 160)
    median = float(points["sigma"].median())
    sigmas = {f"sigma {sigma:g}": sigma for sigma in PAPER_SIGMAS}
    sigmas[f"sigma {words.number(median, 2)}, this run's median"] = median
    for rank, (name, sigma) in enumerate(sigmas.items()):
        colour = pick(HUES[HUES_OF_CURVES[rank % 5]], theme)
        hover = f"{name}<br>distance %{{x:.2f}}: %{{y:.3f}}"
        add_line(figure, distance, kernel(distance, sigma), name, colour, DASHES[rank % 6], hover, width=2)
    title = "Weight of a token relative to its pivot, by distance"
    across = "distance of its key to the pivot's (L2)"
    finish(figure, title=title, x=across, y="weight / pivot's weight", theme=theme, height=420)
    by_curve = f"The further a merged key is from the key it joins, the less it counts, by this curve.{note}"
    caption = f"{by_curve} {eviction_sentence(run)}".rstrip()
    # The same with distances in units of the set's sigma: all tokens are on one curve if the rule was followed.
    second = go.Figure()
    in_sigmas = points["distance"] / points["sigma"]
    _add_points(second, points, in_sigmas, theme)
    x = np.linspace(0, max(3.0, float(in_sigmas.max())), 200)
    second.add_scatter(
        x=x,
        y=np.exp(-(x**2) / 2),
        mode="lines",
        name="exp(-x² / 2)",
        line={"color": pick(HUES["blue"], theme), "width": 2},
        hovertemplate="%{x:.2f} sigma: %{y:.3f}<extra></extra>",
    )
    title = "The same with distances in units of sigma"
    across = "distance / sigma of the set"
    finish(second, title=title, x=across, y="weight / pivot's weight", theme=theme, height=380)
    off = float((points["relative_weight"] - points["kernel"]).abs().max())
    how = "follow" if off < 0.05 else "do not all follow"
    follows = f"The weights of merged tokens {how} the paper's curve." if words.are_known(off) else words.NOT_RECORDED
    claim = nearer(gather(sources, WEIGHTS, [run]))
    return (
        Drawn("by distance", figure, points, caption, of_run(run)),
        Drawn("in sigmas", second, points, f"{follows}{note}", of_run(run), claim),
    )
