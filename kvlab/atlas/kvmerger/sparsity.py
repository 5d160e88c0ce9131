"""Figures 3b and 9: layer compression by merge sets, prompt by prompt."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd

from kvlab.analysis.similarity.head_states import readable_heads, spread_heads
from kvlab.atlas.analysis.compression_ratio import MOST_TOKENS, PAPER_THRESHOLD, ratios
from kvlab.atlas.claims.layer_order import EVIDENCE, same
from kvlab.atlas.evidence import gather
from kvlab.atlas.exhibit import Choice, Drawn, Needs
from kvlab.atlas.figures import compression_ratio as figures
from kvlab.atlas.kvmerger.recordings import models_of, prompt_name, prompts_of, run_with_keys, sample_sentence
from kvlab.common.intervals import mean_interval
from kvlab.common.model_title import model_title
from kvlab.figures.base.palette import Theme
from kvlab.figures.base.words import plural
from kvlab.results.provenance import of_run
from kvlab.results.sources import Sources
from kvlab.trace.reader import Run

VECTORS, SWEEP_VECTORS = 240_000, 40_000
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
    reading = figures.read_ratio_by_threshold(table, PAPER_THRESHOLD) + sample_sentence(run, heads, MOST_TOKENS)
    return drawn, Drawn("by threshold", figure, table, reading, of_run(run))


def draw_models(sources: Sources, choice: Choice, theme: Theme) -> tuple[Drawn, ...] | Needs:
    """Figure 9: the same for every model with recorded prompts, each with its own verdict."""
    run = run_with_keys(sources)
    if isinstance(run, Needs):
        return run
    runs, here = prompts_of(sources), run.record.model.name
    names = list(dict.fromkeys([here, *models_of(runs)]))
    drawn = [_of_model(sources, prompts_of(sources, name), theme) for name in names]
    return tuple(replace(one, claim=one.claim and replace(one.claim, judged_at="kvmerger/fig-3b")) for one in drawn)


def _of_model(sources: Sources, runs: list[Run], theme: Theme) -> Drawn:
    heads = {prompt_name(run): readable_heads(run, _heads(run, len(runs))) for run in runs}
    tables = {name: ratios(run, heads[name]) for name, run in ((prompt_name(run), run) for run in runs)}
    parts = [table.assign(prompt=name) for name, table in tables.items()]
    by_layer = pd.concat(parts).groupby(["prompt", "layer"], sort=False)["ratio"].mean().reset_index()
    figure = figures.ratio_by_layer(by_layer, theme)
    model = runs[0].record.model.name
    figure.update_layout(title_text=f"{figure.layout.title.text} ({model_title(model)})")
    means = over_prompts(by_layer)
    fewest = min(runs, key=lambda run: len(heads[prompt_name(run)]))
    reading = figures.read_ratio_by_layer(means) + sample_sentence(fewest, heads[prompt_name(fewest)], MOST_TOKENS)
    more = f"and {plural(len(runs) - 1, 'more prompt')}" if len(runs) > 1 else ""
    return Drawn(
        model_title(model),
        figure,
        by_layer,
        reading,
        replace(of_run(runs[0]), note=more),
        same(gather(Sources(sources.root, None, runs), EVIDENCE)),
        model=model,
    )


def over_prompts(by_layer: pd.DataFrame) -> pd.DataFrame:
    """One row per layer: mean ratio over the prompts with its 95 % interval, and number of prompts."""
    found = [(layer, mean_interval(group["ratio"].tolist())) for layer, group in by_layer.groupby("layer")]
    rows = [(layer, one.mean, one.low, one.high, one.n) for layer, one in found]
    return pd.DataFrame(rows, columns=["layer", "ratio", "ratio_low", "ratio_high", "prompts"])


def _heads(run: Run, prompts: int) -> list[tuple[int, int]]:
    return spread_heads(run, vectors=VECTORS // max(2, prompts), tokens=MOST_TOKENS)


DRAWINGS = {"fig-3b": draw_ratios, "fig-9": draw_models}
