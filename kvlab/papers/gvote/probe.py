"""GVote, figures 2 and 3, with the claims: Gaussian hidden states, and sampled queries that attend like true ones."""

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from kvlab.papers.evidence import Evidence, basis_of, comparison, gather, interval_of, mean_text, over_prompts
from kvlab.papers.exhibit import Choice, Drawn, Needs, draws
from kvlab.papers.gvote import probe_figures as figures
from kvlab.papers.gvote.probe_figures import PAPER_CORRELATION, PAPER_OVERLAP, PAPER_USAGE
from kvlab.results.sources import Sources
from kvlab.results.verdict import OPEN, Basis, Claim, Threshold, decisive, judge
from kvlab.trace.reader import Run
from kvlab.views.base.lines import add_band, add_line
from kvlab.views.base.palette import HUES, SEQUENTIAL, SURFACES, Theme, mix, pick
from kvlab.views.base.provenance import of_run
from kvlab.views.base.template import QUIET, colour_bar, finish
from kvlab.views.base.words import number, part, percent, sentence, token_text
from kvlab.views.frames.float16 import block_edges
from kvlab.views.frames.lineage import token_texts

GAUSSIAN = "Each channel of the hidden states is approximately Gaussian along the text."
OVERLAP = "Sampled queries are good approximations of future ones: high overlap with moderate token usage."
CORRELATED = "Attention of sampled and true queries is strongly correlated."
MOST = Threshold(0.75, "three channels in four; the paper shows a few and says each")
HIGH = Threshold(0.8, f"the paper has {PAPER_OVERLAP}, mean over its heads; four fifths leaves room for another model")
ABOVE_CHANCE = Threshold(
    0.0, "overlap less the share of the tokens; a random set of that many tokens overlaps by their share"
)
STRONG = Threshold(0.5, f"from 0.5 on a correlation is called strong; the paper shows {PAPER_CORRELATION} of one head")


def channel_rows(run: Run) -> pd.DataFrame:
    """One row per layer: number of `channels`, the share `close` to a normal distribution, and medians."""
    if not figures.probed_layers(run, "hidden"):
        return pd.DataFrame()
    moments = figures.channels(run)
    sizes = moments.assign(skew=moments["skew"].abs())
    medians = sizes.groupby("layer")[["skew", "kurtosis", "kurtosis_with_sinks", "distance"]].median()
    groups = moments.groupby("layer")["close"]
    return medians.assign(channels=groups.size(), close=groups.mean()).reset_index()


CHANNELS = Evidence("channels", channel_rows)
QUERIES = Evidence("queries", figures.by_head)


def gaussian(rows: pd.DataFrame) -> Claim:
    """Share of channels with small skew and excess kurtosis."""
    if rows.empty:
        return Claim(GAUSSIAN, OPEN, "No run recorded its hidden states.")
    close = over_prompts(rows, "close")
    medians = rows[["skew", "kurtosis", "kurtosis_with_sinks", "distance"]].median()
    every = int(rows.groupby("prompt")["channels"].sum().max())
    finding = (
        f"{mean_text(close, percent)} of {every:,} channels have a skew below {figures.MOST_SKEW:g} and an "
        f"excess kurtosis below {figures.MOST_KURTOSIS:g}. Medians: skew {number(medians['skew'])}, excess "
        f"kurtosis {number(medians['kurtosis'])} ({number(medians['kurtosis_with_sinks'])} with the sinks), largest "
        f"gap to the normal's distribution function {number(medians['distance'])}."
    )
    return judge(GAUSSIAN, close, MOST, Basis(rows["prompt"].nunique()), finding)


def overlap(rows: pd.DataFrame) -> Claim:
    """Attention within the samples' sets, which must exceed that of random sets of the same size."""
    if rows.empty:
        return Claim(OVERLAP, OPEN, "No run recorded sampled queries.")
    shares = {name: over_prompts(rows, name) for name in ("overlap", "usage", "inner_overlap", "inner_usage")}
    more = over_prompts(rows.assign(more=rows["overlap"] - rows["usage"]), "more")
    poor = float((rows["overlap"] < 0.5).mean())
    finding = (
        f"Mean overlap over heads {mean_text(shares['overlap'], number)} (paper {PAPER_OVERLAP}) with "
        f"{mean_text(shares['usage'], number)} of the tokens (paper {PAPER_USAGE}), "
        f"{mean_text(shares['inner_overlap'], number)} with {mean_text(shares['inner_usage'], number)} without the "
        f"sinks; below one half in {percent(poor)} of the heads. What GVote keeps in the end covers "
        f"{percent(rows['covered'].mean())} of the next query's attention with {percent(rows['kept'].mean())} of the "
        "prompt."
    )
    verdict, decider, held = decisive([(shares["overlap"], HIGH), (more, ABOVE_CHANCE)])
    return Claim(OVERLAP, verdict, finding, basis_of(rows), decider, held)


def judge_correlation(rows: pd.DataFrame) -> Claim:
    """Pearson's r of every head's two rows, median over the heads of a prompt."""
    known = rows.dropna(subset="correlation") if "correlation" in rows else rows.iloc[:0]
    if known.empty:
        return Claim(CORRELATED, OPEN, "In no head do both rows vary.")
    medians = known.groupby("prompt", sort=False)[["correlation", "inner_correlation"]].median()
    r, inner = (interval_of(medians[name].tolist()) for name in medians)
    reached = float((known["correlation"] >= PAPER_CORRELATION).mean())
    finding = (
        f"Pearson's r is {mean_text(r, number)} in the median head, {mean_text(inner, number)} without the sinks; "
        f"{percent(reached)} of the heads reach the {PAPER_CORRELATION} that the paper shows of one head."
    )
    return judge(CORRELATED, r, STRONG, basis_of(known), finding)


METHODS = ("gvote", "snapkv", "adakv")


def probed_run(sources: Sources, name: str) -> Run | Needs:
    """The run that holds the probe's `hidden` or `sampled` arrays (the comparison's first)."""
    candidates = [run for run in (sources.run, *sources.runs) if run is not None]
    found = next((run for run in candidates if run.has_probe(name)), None)
    if found is not None:
        return found
    why = "This comparison was recorded without the probe." if candidates else "There are no recorded runs yet."
    return Needs(why, comparison(sources, METHODS))


@draws("gvote/fig-2")
def draw_gaussian(sources: Sources, choice: Choice, theme: Theme) -> tuple[Drawn, ...] | Needs:
    """Figure 2: hidden states against the normal distribution."""
    run = probed_run(sources, "hidden")
    if isinstance(run, Needs):
        return run
    layers = figures.probed_layers(run, "hidden")
    layer = choice.layer if choice.layer in layers else layers[0]
    where = of_run(run)
    claim = gaussian(gather(sources, CHANNELS))
    # Skew and excess kurtosis of the channels of each layer: quartiles, and 5 % to 95 %.
    moments = figures.channels(run)
    figure = go.Figure()
    for column, name, hue in (("skew", "skew", "blue"), ("kurtosis", "excess kurtosis", "orange")):
        q = moments.groupby("layer")[column].quantile([0.05, 0.25, 0.5, 0.75, 0.95]).unstack()
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
    figure.update_xaxes(dtick=max(1, moments["layer"].nunique() // 16))
    figure.update_layout(boxmode="group", showlegend=True)
    # How many channels are nearly normal.
    share = part(float(moments["close"].mean()))
    which = {"none": "no", "all": "all"}.get(share, f"{share} of the")
    caption = sentence(f"{which} channels are shaped nearly like a bell curve")
    densities, quantiles = figures.channel_shapes(run, layer)
    return (
        figures.histograms(densities, layer, where, claim, theme),
        figures.quantile_pairs(quantiles, layer, where, theme),
        Drawn("by layer", figure, moments, caption, where),
    )


@draws("gvote/fig-3a")
def draw_overlap(sources: Sources, choice: Choice, theme: Theme) -> tuple[Drawn, ...] | Needs:
    """Figure 3a: overlap and usage by head, and coverage of the union of samples."""
    run = probed_run(sources, "sampled")
    if isinstance(run, Needs):
        return run
    heads = figures.by_head(run)
    where = of_run(run)
    claim = overlap(gather(sources, QUERIES))
    # Attention of each later query on kept tokens, over all heads.
    layers = figures.probed_layers(run, "sampled")
    future = np.concatenate([run.probe("sampled", layer)["future"] for layer in layers])
    low, high = np.quantile(future, [0.1, 0.9], axis=0)
    queries = np.arange(1, future.shape[1] + 1)
    ahead = pd.DataFrame({"ahead": queries, "covered": future.mean(0), "low": low, "high": high})
    figure = go.Figure()
    colour = pick(HUES["blue"], theme)
    add_band(figure, ahead["ahead"], ahead["low"], ahead["high"], mix(colour, SURFACES[theme], 0.8))
    name = "mean over heads (band: 8 in 10)"
    hover = "query %{x} after the prompt: %{y:.1%} covered"
    add_line(figure, ahead["ahead"], ahead["covered"], name, colour, "solid", hover, marker="circle", width=2)
    finish(
        figure,
        title="Later queries' prompt attention on the kept set",
        x="query after the prompt",
        y="share of its attention to the prompt",
        theme=theme,
    )
    figure.update_yaxes(tickformat=".0%", range=[0, 1.02]).update_layout(showlegend=True)
    kept = part(float(ahead["covered"].mean()))
    caption = sentence(f"on average, {kept} of later attention is on what was kept")
    return (
        figures.overlap_and_usage(heads, "", where, theme, claim),
        figures.overlap_and_usage(heads, "inner_", where, theme),
        figures.growth_by_samples(figures.growth(run), where, theme),
        Drawn("later queries", figure, ahead, caption, where),
    )


@draws("gvote/fig-3b")
def draw_correlation(sources: Sources, choice: Choice, theme: Theme) -> tuple[Drawn, ...] | Needs:
    """Figure 3b: one head's attention rows."""
    run = probed_run(sources, "sampled")
    if isinstance(run, Needs):
        return run
    heads = figures.by_head(run)
    layers = heads["layer"].unique()
    layer = choice.layer if choice.layer in layers else int(layers[0])
    head = min(choice.head, run.record.model.num_key_value_heads - 1)
    # One row per prompt token; `synthetic` is the mean of the samples.
    arrays = run.probe("sampled", layer)
    columns = {name: arrays[name][head] for name in ("true", "synthetic", "ballots")}
    frame = pd.DataFrame({"position": np.arange(len(columns["true"])), **columns})
    texts = token_texts(run.tokens, len(frame))
    r = float(heads.loc[(heads["layer"] == layer) & (heads["head"] == head), "correlation"].iloc[0])
    place = f"layer {layer}, head {head}"
    # Attention over the prompt in blocks: the true next query above the mean of the samples, log colours.
    edges = block_edges(0, len(frame), figures.MAX_BLOCKS)
    rows = [np.add.reduceat(frame[name].to_numpy(float), edges[:-1]) for name in ("true", "synthetic")]
    values = np.log10(np.maximum(np.array(rows), figures.FLOOR)).astype(np.float32)
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
    figure.update_yaxes(autorange="reversed")
    # Whether samples and the true query read the same token most.
    most_read = [int(frame["position"][frame[name].idxmax()]) for name in ("true", "synthetic")]
    read = token_text(texts[most_read[0]].strip())
    sampled = token_text(texts[most_read[1]].strip())
    caption = f"The true query looks most at “{read}”, the guessed ones look most at “{sampled}”."
    if most_read[0] == most_read[1]:
        caption = f"The true query and the guessed ones look at the same token most: “{read}”."
    claim = judge_correlation(gather(sources, QUERIES))
    return (
        Drawn("attention", figure, frame, caption, of_run(run)),
        figures.scatter_of_rows(frame, texts, r, of_run(run).at(place), claim, theme),
    )
