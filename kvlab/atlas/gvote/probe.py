"""Figures 2 and 3: Gaussian hidden states, and sampled against true queries, from a comparison's probe."""

from __future__ import annotations

import pandas as pd

from kvlab.analysis.lineage.tables import token_texts
from kvlab.atlas.analysis import hidden_states, sampled_queries
from kvlab.atlas.claims import sampled_queries as claims
from kvlab.atlas.evidence import gather
from kvlab.atlas.exhibit import Choice, Drawn, Needs
from kvlab.atlas.figures import hidden_states as gaussian
from kvlab.atlas.figures import sampled_queries as figures
from kvlab.atlas.measurements import comparison
from kvlab.figures.base.palette import Theme
from kvlab.results.provenance import of_run
from kvlab.results.sources import Sources
from kvlab.trace.reader import Run

METHODS = ("gvote", "snapkv", "adakv")


def probed_run(sources: Sources, name: str) -> Run | Needs:
    """The run that holds the probe's `hidden` or `sampled` arrays (the comparison's first)."""
    seen = [run for run in (sources.run, *sources.runs) if run is not None]
    found = next((run for run in seen if run.has_probe(name)), None)
    if found is not None:
        return found
    why = "This comparison was recorded without the probe." if seen else "There are no recorded runs yet."
    return Needs(why, comparison(sources, METHODS))


def draw_gaussian(sources: Sources, choice: Choice, theme: Theme) -> tuple[Drawn, ...] | Needs:
    """Figure 2: hidden states against the normal distribution."""
    run = probed_run(sources, "hidden")
    if isinstance(run, Needs):
        return run
    layer = _layer(run, "hidden", choice)
    density, pairs, moments = (
        hidden_states.densities(run, layer), hidden_states.quantiles(run, layer), hidden_states.channels(run),
    )  # fmt: skip
    where = of_run(run)
    return (
        Drawn("histograms", gaussian.histograms(density, layer, theme), density,
              gaussian.read_histograms(density, layer), where, claims.gaussian(gather(sources, claims.CHANNELS))),
        Drawn("quantiles", gaussian.quantile_pairs(pairs, layer, theme), pairs,
              gaussian.read_quantile_pairs(pairs, layer), where),
        Drawn("by layer", gaussian.moments_by_layer(moments, theme), moments,
              gaussian.read_moments_by_layer(moments), where),
    )  # fmt: skip


def draw_overlap(sources: Sources, choice: Choice, theme: Theme) -> tuple[Drawn, ...] | Needs:
    """Figure 3a: overlap and usage by head, and coverage of the union of samples."""
    run = probed_run(sources, "sampled")
    if isinstance(run, Needs):
        return run
    heads, grown = sampled_queries.by_head(run), sampled_queries.growth(run)
    ahead, where = sampled_queries.coverage_ahead(run), of_run(run)
    claim = claims.overlap(gather(sources, claims.QUERIES))
    return (
        Drawn("overlap and usage", figures.overlap_and_usage(heads, "", theme), heads,
              figures.read_overlap_and_usage(heads), where, claim, paper_values()),
        Drawn("without sinks", figures.overlap_and_usage(heads, "inner_", theme), heads,
              figures.read_overlap_and_usage(heads, "inner_"), where),
        Drawn("union", figures.growth_by_samples(grown, theme), grown,
              figures.read_growth_by_samples(grown), where),
        Drawn("later queries", figures.coverage_ahead(ahead, theme), ahead,
              figures.read_coverage_ahead(ahead), where),
    )  # fmt: skip


def paper_values() -> pd.DataFrame:
    """Values printed in figure 3."""
    return pd.DataFrame(
        [
            ("overlap, mean over heads", claims.PAPER_OVERLAP, "Figure 3a"),
            ("tokens used, mean over heads", claims.PAPER_USAGE, "Figure 3a"),
            ("tokens the true query needs", claims.PAPER_TRUE_USAGE, "section 3.3, about"),
            ("correlation of one head", claims.PAPER_CORRELATION, "Figure 3b"),
        ],
        columns=["quantity", "paper", "source"],
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
    place, where = f"layer {layer}, head {head}", of_run(run)
    correlations = float(own["correlation"]), float(own["inner_correlation"])
    return (
        Drawn("attention", figures.attention_strips(frame, place, theme), frame,
              figures.read_attention_strips(frame, texts), where),
        Drawn("scatter", figures.scatter_of_rows(frame, texts, correlations[0], theme), frame,
              figures.read_scatter_of_rows(*correlations, len(frame)), where.at(place),
              claims.correlated(gather(sources, claims.QUERIES))),
    )  # fmt: skip


def _layer(run: Run, name: str, choice: Choice) -> int:
    layers = hidden_states.probed_layers(run, name)
    return choice.layer if choice.layer in layers else layers[0]


DRAWINGS = {"fig-2": draw_gaussian, "fig-3a": draw_overlap, "fig-3b": draw_correlation}
