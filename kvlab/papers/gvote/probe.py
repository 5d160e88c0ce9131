"""GVote, figures 2 and 3, with the claims: Gaussian hidden states, and sampled queries that attend like true ones."""

import pandas as pd

from kvlab.papers.evidence import Evidence, basis_of, comparison, gather, interval_of, mean_text, over_prompts
from kvlab.papers.exhibit import Choice, Drawn, Needs
from kvlab.papers.gvote import probe_figures
from kvlab.papers.gvote import probe_figures as figures
from kvlab.results.sources import Sources
from kvlab.results.verdict import OPEN, Basis, Claim, Threshold, decisive, judge
from kvlab.trace.reader import Run
from kvlab.views.base.palette import Theme
from kvlab.views.base.provenance import of_run
from kvlab.views.base.words import number, percent
from kvlab.views.frames.lineage import token_texts

# GVote, section 3.3
PAPER_OVERLAP = 0.929
PAPER_USAGE = 0.594
PAPER_TRUE_USAGE = 0.4
PAPER_CORRELATION = 0.7759
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
    if not probe_figures.probed_layers(run, "hidden"):
        return pd.DataFrame()
    moments = probe_figures.channels(run)
    sizes = moments.assign(skew=moments["skew"].abs())
    medians = sizes.groupby("layer")[["skew", "kurtosis", "kurtosis_with_sinks", "distance"]].median()
    groups = moments.groupby("layer")["close"]
    return medians.assign(channels=groups.size(), close=groups.mean()).reset_index()


def query_rows(run: Run) -> pd.DataFrame:
    """One row per head (`probe_figures.by_head`)."""
    return probe_figures.by_head(run) if probe_figures.probed_layers(run, "sampled") else pd.DataFrame()


CHANNELS = Evidence("channels", channel_rows)
QUERIES = Evidence("queries", query_rows)


def gaussian(rows: pd.DataFrame) -> Claim:
    """Share of channels with small skew and excess kurtosis."""
    if rows.empty:
        return Claim(GAUSSIAN, OPEN, "No run recorded its hidden states.")
    close = over_prompts(rows, "close")
    medians = rows[["skew", "kurtosis", "kurtosis_with_sinks", "distance"]].median()
    every = int(rows.groupby("prompt")["channels"].sum().max())
    finding = (
        f"{mean_text(close, percent)} of {every:,} channels have a skew below {probe_figures.MOST_SKEW:g} and an "
        f"excess kurtosis below {probe_figures.MOST_KURTOSIS:g}. Medians: skew {number(medians['skew'])}, excess "
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


def draw_gaussian(sources: Sources, choice: Choice, theme: Theme) -> tuple[Drawn, ...] | Needs:
    """Figure 2: hidden states against the normal distribution."""
    run = probed_run(sources, "hidden")
    if isinstance(run, Needs):
        return run
    layer = _layer(run, "hidden", choice)
    density = probe_figures.densities(run, layer)
    pairs = probe_figures.quantiles(run, layer)
    moments = probe_figures.channels(run)
    where = of_run(run)
    return (
        Drawn(
            "histograms",
            figures.histograms(density, layer, theme),
            density,
            figures.caption_histograms(density, layer),
            where,
            gaussian(gather(sources, CHANNELS)),
        ),
        Drawn(
            "quantiles",
            figures.quantile_pairs(pairs, layer, theme),
            pairs,
            figures.caption_quantile_pairs(pairs, layer),
            where,
        ),
        Drawn(
            "by layer",
            figures.moments_by_layer(moments, theme),
            moments,
            figures.caption_moments_by_layer(moments),
            where,
        ),
    )


def draw_overlap(sources: Sources, choice: Choice, theme: Theme) -> tuple[Drawn, ...] | Needs:
    """Figure 3a: overlap and usage by head, and coverage of the union of samples."""
    run = probed_run(sources, "sampled")
    if isinstance(run, Needs):
        return run
    heads = probe_figures.by_head(run)
    grown = probe_figures.growth(run)
    ahead = probe_figures.later_coverage(run)
    where = of_run(run)
    claim = overlap(gather(sources, QUERIES))
    return (
        Drawn(
            "overlap and usage",
            figures.overlap_and_usage(heads, "", theme),
            heads,
            figures.caption_overlap_and_usage(heads),
            where,
            claim,
            paper_values(),
        ),
        Drawn(
            "without sinks",
            figures.overlap_and_usage(heads, "inner_", theme),
            heads,
            figures.caption_overlap_and_usage(heads, "inner_"),
            where,
        ),
        Drawn("union", figures.growth_by_samples(grown, theme), grown, figures.caption_growth_by_samples(grown), where),
        Drawn(
            "later queries", figures.coverage_ahead(ahead, theme), ahead, figures.caption_coverage_ahead(ahead), where
        ),
    )


def paper_values() -> pd.DataFrame:
    """Values printed in figure 3."""
    return pd.DataFrame(
        [
            ("overlap, mean over heads", PAPER_OVERLAP, "Figure 3a"),
            ("tokens used, mean over heads", PAPER_USAGE, "Figure 3a"),
            ("tokens the true query needs", PAPER_TRUE_USAGE, "section 3.3, about"),
            ("correlation of one head", PAPER_CORRELATION, "Figure 3b"),
        ],
        columns=["quantity", "paper", "source"],
    )


def draw_correlation(sources: Sources, choice: Choice, theme: Theme) -> tuple[Drawn, ...] | Needs:
    """Figure 3b: one head's attention rows."""
    run = probed_run(sources, "sampled")
    if isinstance(run, Needs):
        return run
    layer = _layer(run, "sampled", choice)
    heads = probe_figures.by_head(run)
    head = min(choice.head, run.record.model.num_key_value_heads - 1)
    frame = probe_figures.rows_of_head(run, layer, head)
    texts = token_texts(run.tokens, len(frame))
    row = heads[(heads["layer"] == layer) & (heads["head"] == head)].iloc[0]
    place = f"layer {layer}, head {head}"
    where = of_run(run)
    correlations = float(row["correlation"]), float(row["inner_correlation"])
    return (
        Drawn(
            "attention",
            figures.attention_strips(frame, place, theme),
            frame,
            figures.caption_attention_strips(frame, texts),
            where,
        ),
        Drawn(
            "scatter",
            figures.scatter_of_rows(frame, texts, correlations[0], theme),
            frame,
            figures.caption_scatter_of_rows(*correlations, len(frame)),
            where.at(place),
            judge_correlation(gather(sources, QUERIES)),
        ),
    )


def _layer(run: Run, name: str, choice: Choice) -> int:
    layers = probe_figures.probed_layers(run, name)
    return choice.layer if choice.layer in layers else layers[0]


DRAWINGS = {"fig-2": draw_gaussian, "fig-3a": draw_overlap, "fig-3b": draw_correlation}
