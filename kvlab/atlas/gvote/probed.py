"""Figures 2 and 3: Gaussian hidden states, and sampled queries against true ones, from a comparison's probe."""

from __future__ import annotations

import pandas as pd

from kvlab.analysis import hidden_states, sampled_queries
from kvlab.analysis.lineage.tables import token_texts
from kvlab.atlas.commands import compare_command
from kvlab.atlas.exhibit import Choice, Drawn, Exhibit, Needs
from kvlab.atlas.sources import Sources, origin
from kvlab.atlas.verdict import Claim, Verdict
from kvlab.figures import hidden_states as gaussian
from kvlab.figures import sampled_queries as figures
from kvlab.figures.palette import Theme
from kvlab.figures.words import number, percent, plural
from kvlab.trace.reader import Run

METHODS = ("gvote", "snapkv", "adakv")
CLOSE, OVERLAPS, CORRELATES = 0.75, 0.8, 0.5
PAPER_OVERLAP, PAPER_USAGE, PAPER_TRUE_USAGE, PAPER_CORRELATION = 0.929, 0.594, 0.4, 0.7759  # GVote, section 3.3


def probed_run(sources: Sources, name: str) -> Run | Needs:
    """The comparison's run that holds the probe's `hidden` or `sampled` arrays: its first."""
    seen = [run for run in (sources.run, *sources.runs) if run is not None]
    found = next((run for run in seen if run.has_probe(name)), None)
    if found is not None:
        return found
    why = "This comparison was recorded without the probe." if seen else "No run was recorded yet."
    return Needs(why, compare_command(sources, METHODS))


def draw_gaussian(sources: Sources, choice: Choice, theme: Theme) -> tuple[Drawn, ...] | Needs:
    """Figure 2: hidden states against the normal distribution."""
    run = probed_run(sources, "hidden")
    if isinstance(run, Needs):
        return run
    layer = _layer(run, "hidden", choice)
    density, pairs, moments = (
        hidden_states.densities(run, layer), hidden_states.quantiles(run, layer), hidden_states.channels(run),
    )  # fmt: skip
    where = origin(run)
    return (
        Drawn("histograms", gaussian.histograms(density, layer, theme), density,
              gaussian.read_histograms(density, layer), where, gaussian_claim(moments)),
        Drawn("quantiles", gaussian.quantile_pairs(pairs, layer, theme), pairs,
              gaussian.read_quantile_pairs(pairs, layer), where),
        Drawn("by layer", gaussian.moments_by_layer(moments, theme), moments,
              gaussian.read_moments_by_layer(moments), where),
    )  # fmt: skip


def gaussian_claim(moments: pd.DataFrame) -> Claim:
    """How many channels are close to a normal distribution."""
    close = float(moments["close"].mean())
    verdict: Verdict = "holds" if close >= CLOSE else "does not hold"
    return Claim(
        "Each channel of the hidden states is approximately Gaussian along the text.",
        verdict,
        f"{percent(close)} of {plural(len(moments), 'channel')} have a skew below {hidden_states.MOST_SKEW:g} and an "
        f"excess kurtosis below "
        f"{hidden_states.MOST_KURTOSIS:g} ({percent(CLOSE)} counts). Medians over channels: size of the skew "
        f"{number(moments['skew'].abs().median())}, excess kurtosis {number(moments['kurtosis'].median())} "
        f"({number(moments['kurtosis_with_sinks'].median())} with the sinks), largest gap to the normal's distribution "
        f"function {number(moments['distance'].median())}.",
    )


def draw_overlap(sources: Sources, choice: Choice, theme: Theme) -> tuple[Drawn, ...] | Needs:
    """Figure 3a: overlap and usage by head, and what the union of samples keeps."""
    run = probed_run(sources, "sampled")
    if isinstance(run, Needs):
        return run
    heads, grown = sampled_queries.by_head(run), sampled_queries.growth(run)
    ahead, where = sampled_queries.coverage_ahead(run), origin(run)
    return (
        Drawn("overlap and usage", figures.overlap_and_usage(heads, "", theme), heads,
              figures.read_overlap_and_usage(heads), where, overlap_claim(heads), paper_values()),
        Drawn("without sinks", figures.overlap_and_usage(heads, "inner_", theme), heads,
              figures.read_overlap_and_usage(heads, "inner_"), where),
        Drawn("union", figures.growth_by_samples(grown, theme), grown,
              figures.read_growth_by_samples(grown), where),
        Drawn("later queries", figures.coverage_ahead(ahead, theme), ahead,
              figures.read_coverage_ahead(ahead), where),
    )  # fmt: skip


def paper_values() -> pd.DataFrame:
    """What the paper prints of figure 3."""
    return pd.DataFrame(
        [
            ("overlap, mean over heads", PAPER_OVERLAP, "Figure 3a"),
            ("tokens used, mean over heads", PAPER_USAGE, "Figure 3a"),
            ("tokens the true query needs", PAPER_TRUE_USAGE, "section 3.3, about"),
            ("correlation of one head", PAPER_CORRELATION, "Figure 3b"),
        ],
        columns=["quantity", "paper", "source"],
    )


def overlap_claim(heads: pd.DataFrame) -> Claim:
    """Overlap against what sets of that size would hold by chance."""
    overlap, usage = heads["overlap"].mean(), heads["usage"].mean()
    poor = float((heads["overlap"] < 0.5).mean())
    verdict: Verdict = "holds" if overlap >= OVERLAPS and overlap > usage else "does not hold"
    return Claim(
        "Sampled queries are good approximations of future ones: high overlap with moderate token usage.",
        verdict,
        f"Mean overlap of {plural(len(heads), 'head')} {number(overlap)} (paper {PAPER_OVERLAP}; {OVERLAPS} counts) "
        f"with {number(usage)} of the tokens "
        f"(paper {PAPER_USAGE}), {number(heads['inner_overlap'].mean())} with {number(heads['inner_usage'].mean())} "
        f"without the sinks; below one half in {percent(poor)} of the heads. What GVote keeps in the end covers "
        f"{percent(heads['covered'].mean())} of the next query's attention with {percent(heads['kept'].mean())} of the "
        "prompt.",
    )


def draw_correlation(sources: Sources, choice: Choice, theme: Theme) -> tuple[Drawn, ...] | Needs:
    """Figure 3b: one head's attention rows."""
    run = probed_run(sources, "sampled")
    if isinstance(run, Needs):
        return run
    layer, heads = _layer(run, "sampled", choice), sampled_queries.by_head(run)
    head = min(choice.head, run.record.model.num_key_value_heads - 1)
    frame = sampled_queries.rows_of_head(run, layer, head)
    texts = token_texts(run.tokens, len(frame))
    own = heads[(heads["layer"] == layer) & (heads["head"] == head)].iloc[0]
    place, where = f"layer {layer}, head {head}", origin(run)
    correlations = float(own["correlation"]), float(own["inner_correlation"])
    return (
        Drawn("attention", figures.attention_strips(frame, place, theme), frame,
              figures.read_attention_strips(frame, texts), where),
        Drawn("scatter", figures.scatter_of_rows(frame, texts, correlations[0], theme), frame,
              figures.read_scatter_of_rows(*correlations, len(frame)), f"{place} · {where}", correlation_claim(heads)),
    )  # fmt: skip


def correlation_claim(heads: pd.DataFrame) -> Claim:
    """Pearson's r of every head, with and without the sinks."""
    paper = "Attention of sampled and true queries is strongly correlated."
    known = heads["correlation"].dropna()
    if known.empty:
        return Claim(paper, "not enough to say", "In no head do both rows vary.")
    median = float(known.median())
    verdict: Verdict = "holds" if median >= CORRELATES else "does not hold"
    reached = float((known >= PAPER_CORRELATION).mean())
    return Claim(
        paper,
        verdict,
        f"Pearson's r is {number(median)} in the median of {plural(len(known), 'head')} ({CORRELATES} counts), "
        f"{number(heads['inner_correlation'].median())} without the sinks; {percent(reached)} of the heads reach the "
        f"{PAPER_CORRELATION} that the paper shows of one head.",
    )


def _layer(run: Run, name: str, choice: Choice) -> int:
    layers = hidden_states.probed_layers(run, name)
    return choice.layer if choice.layer in layers else layers[0]


FIGURES = (
    Exhibit(
        "gvote", "fig-2", "Fig 2", "Hidden states against a Gaussian",
        "The attention module's inputs over the prompt, sinks left out, each channel in its own standard deviations: "
        "densities of 16 evenly spaced channels and of all together, their quantiles against the normal's, and skew "
        "and excess kurtosis of every channel by layer.",
        "Lines that leave the dashed one at the sides: heavy tails, which samples from a Gaussian never draw.",
        "comparison", draw_gaussian, ("layer",),
    ),
    Exhibit(
        "gvote", "fig-3a", "Fig 3a", "Sampled queries' choices against the true next query",
        "By layer and KV head: the share of the next query's attention that lies in a sample's own 95 % set, and that "
        "set's share of the prompt; again without the sinks. Then the union sample by sample, and what later queries "
        "find of their attention in the kept set. The true query is the first after the prompt, its attention to the "
        "prompt adding up to one; samples are GVote's own.",
        "Heads with low overlap, which are those that look for one particular place; and whether overlap is more than "
        "the tokens used, which a random set would reach.",
        "comparison", draw_overlap,
    ),
    Exhibit(
        "gvote", "fig-3b", "Fig 3b", "Attention of sampled and true queries",
        "One head's attention over the prompt, true next query above the mean of the samples; then one point a token, "
        "true across, sampled up, with Pearson's r.",
        "Whether both strips are dark at the same places, and points near the dotted diagonal.",
        "comparison", draw_correlation, ("layer", "head"),
    ),
)  # fmt: skip
