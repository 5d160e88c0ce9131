"""KVMerger, figures 3b and 9: layer compression by merge sets, which is a property of the model, prompt by prompt."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd

from kvlab.atlas.analysis.merging_sets import MOST_TOKENS, PAPER_THRESHOLD, persistence, ratios
from kvlab.atlas.evidence import Evidence, basis_of, gather
from kvlab.atlas.exhibit import Choice, Drawn, Needs
from kvlab.atlas.figures import merging_sets as figures
from kvlab.atlas.kvmerger.recordings import models_of, prompt_name, prompts_of, run_with_keys, sample_sentence
from kvlab.common.formatting import mean_words, model_title, prompts
from kvlab.common.intervals import Interval, mean_interval, pairs_interval
from kvlab.results.sources import Sources
from kvlab.results.verdict import OPEN, Claim, Threshold, judge
from kvlab.trace.reader import Run
from kvlab.views.base.palette import Theme
from kvlab.views.base.provenance import of_run
from kvlab.views.base.words import plural, two_digits
from kvlab.views.frames.head_states import readable_heads, spread_heads

SAME = "Which layers merging shrinks most is a property of the model: it stays the same from prompt to prompt."
ORDER = Threshold(0.8, "about where four pairs of layers of five are in the same order in two prompts")
CLAIM_VECTORS = 120_000


def head_rows(run: Run) -> pd.DataFrame:
    """One row per head: `ratio` of merge sets to prompt tokens at the paper's threshold."""
    heads = readable_heads(run, spread_heads(run, vectors=CLAIM_VECTORS, tokens=MOST_TOKENS))
    return ratios(run, heads)[["layer", "head", "ratio"]]


EVIDENCE = Evidence("layer-order", head_rows)


def same(rows: pd.DataFrame) -> Claim:
    """Rank correlation of two prompts' layers, over all pairs of prompts."""
    layers = _correlations(rows, ["layer"])
    basis = basis_of(rows)
    if len(layers) < 2 or np.isnan(layers).any():
        why = f"{prompts(basis.prompts).capitalize()}: it takes 2, and layers that differ."
        return Claim(SAME, OPEN, why, basis, threshold=ORDER)
    found = pairs_interval(layers)
    finding = (
        f"The rank correlation of two prompts' layers is {_pair_words(layers)} on average, of their heads "
        f"{_pair_words(_correlations(rows, ['layer', 'head']))} (sets at a cosine of {PAPER_THRESHOLD})."
    )
    over = Interval(found.mean, found.low, found.high, basis.prompts, found.samples)
    return judge(SAME, over, ORDER, basis, finding)


def _correlations(rows: pd.DataFrame, place: list[str]) -> np.ndarray:
    if rows.empty:
        return np.zeros((0, 0))
    return persistence(rows.groupby([*place, "prompt"])["ratio"].mean().unstack("prompt"))


def _pair_words(correlations: np.ndarray) -> str:
    """Mean over all pairs of prompts; a single pair has no interval."""
    if np.isnan(correlations).any():
        return "not defined"
    one = pairs_interval(correlations)
    if one.n == 2:
        return f"{two_digits(one.mean)} (one pair of prompts, n = 2)"
    return mean_words(one.mean, one.low, one.high, one.n, two_digits)


VECTORS = 240_000
SWEEP_VECTORS = 40_000
THRESHOLDS = (0.4, 0.5, 0.6, 0.7, PAPER_THRESHOLD, 0.8, 0.9)


def draw_ratios(sources: Sources, choice: Choice, theme: Theme) -> tuple[Drawn, ...] | Needs:
    """Figure 3b: all recorded prompts of the current model, and the effect of other thresholds."""
    run = run_with_keys(sources)
    if isinstance(run, Needs):
        return run
    drawn = _of_model(sources, prompts_of(sources, run.record.model.name), theme)
    heads = readable_heads(run, spread_heads(run, vectors=SWEEP_VECTORS, tokens=MOST_TOKENS))
    table = ratios(run, heads, THRESHOLDS)
    figure = figures.ratio_by_threshold(table, PAPER_THRESHOLD, theme)
    sampled = sample_sentence(run, heads, MOST_TOKENS)
    caption = figures.caption_ratio_by_threshold(table, PAPER_THRESHOLD).within(after=sampled)
    return drawn, Drawn("by threshold", figure, table, caption, of_run(run))


def draw_models(sources: Sources, choice: Choice, theme: Theme) -> tuple[Drawn, ...] | Needs:
    """Figure 9: the same for every model with recorded prompts, each with its own verdict."""
    run = run_with_keys(sources)
    if isinstance(run, Needs):
        return run
    runs = prompts_of(sources)
    here = run.record.model.name
    names = list(dict.fromkeys([here, *models_of(runs)]))
    drawn = [_of_model(sources, prompts_of(sources, name), theme) for name in names]
    return tuple(replace(one, claim=one.claim and replace(one.claim, judged_at="kvmerger/fig-3b")) for one in drawn)


def _of_model(sources: Sources, runs: list[Run], theme: Theme) -> Drawn:
    most = VECTORS // max(2, len(runs))
    heads = {prompt_name(run): readable_heads(run, spread_heads(run, vectors=most, tokens=MOST_TOKENS)) for run in runs}
    named = {prompt_name(run): run for run in runs}
    parts = [ratios(run, heads[name]).assign(prompt=name) for name, run in named.items()]
    by_layer = pd.concat(parts).groupby(["prompt", "layer"], sort=False)["ratio"].mean().reset_index()
    figure = figures.ratio_by_layer(by_layer, theme)
    model = runs[0].record.model.name
    figure.update_layout(title_text=f"{figure.layout.title.text} ({model_title(model)})")
    means = over_prompts(by_layer)
    fewest = min(runs, key=lambda run: len(heads[prompt_name(run)]))
    sampled = sample_sentence(fewest, heads[prompt_name(fewest)], MOST_TOKENS)
    caption = figures.caption_ratio_by_layer(means).within(after=sampled)
    more = f"and {plural(len(runs) - 1, 'more prompt')}" if len(runs) > 1 else ""
    where = replace(of_run(runs[0]), note=more)
    claim = same(gather(Sources(sources.root, None, runs), EVIDENCE))
    return Drawn(model_title(model), figure, by_layer, caption, where, claim, model=model)


def over_prompts(by_layer: pd.DataFrame) -> pd.DataFrame:
    """One row per layer: mean ratio over the prompts with its 95 % interval, and number of prompts."""
    found = [(layer, mean_interval(group["ratio"].tolist())) for layer, group in by_layer.groupby("layer")]
    rows = [(layer, one.mean, one.low, one.high, one.n) for layer, one in found]
    return pd.DataFrame(rows, columns=["layer", "ratio", "ratio_low", "ratio_high", "prompts"])


DRAWINGS = {"fig-3b": draw_ratios, "fig-9": draw_models}
