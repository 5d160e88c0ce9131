"""GVote, figures 2 and 3: hidden states are nearly Gaussian, and sampled queries attend like true ones."""

from __future__ import annotations

import pandas as pd

from kvlab.atlas.analysis import hidden_states, sampled_queries
from kvlab.atlas.evidence import Evidence
from kvlab.atlas.prompt_means import basis_of, interval_of, mean_text, over_prompts
from kvlab.figures.base.words import number, percent
from kvlab.results.verdict import OPEN, Basis, Claim, Threshold, decisive, judge
from kvlab.trace.reader import Run

PAPER_OVERLAP, PAPER_USAGE, PAPER_TRUE_USAGE, PAPER_CORRELATION = 0.929, 0.594, 0.4, 0.7759  # GVote, section 3.3
GAUSSIAN = "Each channel of the hidden states is approximately Gaussian along the text."
OVERLAP = "Sampled queries are good approximations of future ones: high overlap with moderate token usage."
CORRELATED = "Attention of sampled and true queries is strongly correlated."
MOST = Threshold(0.75, "three channels in four; the paper shows a few and says each")
HIGH = Threshold(0.8, f"the paper has {PAPER_OVERLAP}, mean over its heads; four fifths leaves room for another model")
ABOVE_CHANCE = Threshold(
    0.0, "overlap less the share of the tokens; a random set of that many tokens overlaps by their share"
)
STRONG = Threshold(0.5, f"from 0.5 on a correlation is called strong; the paper shows {PAPER_CORRELATION} of one head")


def channels(run: Run) -> pd.DataFrame:
    """One row per layer: number of `channels`, the share `close` to a normal distribution, and medians over
    channels."""
    if not hidden_states.probed_layers(run, "hidden"):
        return pd.DataFrame()
    moments = hidden_states.channels(run)
    sizes = moments.assign(skew=moments["skew"].abs())
    medians = sizes.groupby("layer")[["skew", "kurtosis", "kurtosis_with_sinks", "distance"]].median()
    groups = moments.groupby("layer")["close"]
    return medians.assign(channels=groups.size(), close=groups.mean()).reset_index()


def queries(run: Run) -> pd.DataFrame:
    """One row per head (`kvlab.atlas.analysis.sampled_queries.by_head`)."""
    return sampled_queries.by_head(run) if sampled_queries.probed_layers(run, "sampled") else pd.DataFrame()


CHANNELS = Evidence("channels", channels)
QUERIES = Evidence("queries", queries)


def gaussian(rows: pd.DataFrame) -> Claim:
    """Share of channels with small skew and excess kurtosis."""
    if rows.empty:
        return Claim(GAUSSIAN, OPEN, "No run recorded its hidden states.")
    close = over_prompts(rows, "close")
    medians = rows[["skew", "kurtosis", "kurtosis_with_sinks", "distance"]].median()
    every = int(rows.groupby("prompt")["channels"].sum().max())
    finding = (
        f"{mean_text(close, percent)} of {every:,} channels have a skew below {hidden_states.MOST_SKEW:g} and an "
        f"excess kurtosis below {hidden_states.MOST_KURTOSIS:g}. Medians: skew {number(medians['skew'])}, excess "
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


def correlated(rows: pd.DataFrame) -> Claim:
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
