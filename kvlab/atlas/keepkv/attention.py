"""Figure 2: concentration of attention, return of evicted tokens, variance, and predictability."""

from __future__ import annotations

from kvlab.analysis.lineage.tables import token_texts
from kvlab.atlas.analysis.attention_rows import TOP, concentration_of_heads, heads_with_attention, read_rows, variances
from kvlab.atlas.analysis.evicted_attention import OWN, WINDOW_MEAN, returning_of_heads
from kvlab.atlas.analysis.predictors import prediction_errors_of_heads
from kvlab.atlas.claims.attention import (
    CONCENTRATION,
    IN_TIME_ROWS,
    PREDICTING,
    RETURNING,
    WINDOW,
    locality,
    majority,
    predicts,
    returns,
    variance_ratios,
)
from kvlab.atlas.evidence import gather
from kvlab.atlas.exhibit import Choice, Drawn, Needs
from kvlab.atlas.figures import attention_rows as figures
from kvlab.atlas.keepkv.recordings import RULES, attention_run, chosen_head
from kvlab.atlas.measurements import comparison
from kvlab.figures.base.palette import Theme
from kvlab.results.provenance import Provenance, joined, of_run
from kvlab.results.sources import Sources
from kvlab.trace.reader import Run


def draw_concentration(sources: Sources, choice: Choice, theme: Theme) -> tuple[Drawn, ...] | Needs:
    """Figure 2a: cumulative attention against the share of tokens kept."""
    run = attention_run(sources)
    if isinstance(run, Needs):
        return run
    place = chosen_head(run, choice.layer, choice.head)
    frame = concentration_of_heads(run, list(dict.fromkeys([*heads_with_attention(run), place])))
    figure = figures.cumulative_mass(frame, *place, TOP, theme)
    reading = figures.read_cumulative_mass(frame, *place, TOP)
    return (
        Drawn("cumulative attention", figure, frame, reading, of_run(run), majority(gather(sources, CONCENTRATION))),
    )


def draw_return(sources: Sources, choice: Choice, theme: Theme) -> tuple[Drawn, ...] | Needs:
    """Figure 2b: evictable prompt tokens that later enter the most attended."""
    run = attention_run(sources)
    if isinstance(run, Needs):
        return run
    method = sources.run if sources.run and sources.run.record.method != "full" else _evicting(sources)
    heads = heads_with_attention(run)
    if method is not None:
        heads = [place for place in heads if place in heads_with_attention(method)]
    frame = returning_of_heads(run, method, heads)
    if frame.empty:
        return Needs("This run decoded no step after the prompt.", comparison(sources, RULES))
    kinds = list(frame["kind"].unique())
    shown = WINDOW_MEAN if WINDOW_MEAN in kinds else kinds[0]
    last = frame[frame["kind"] == shown].sort_values("step").groupby(["layer", "head"]).last().reset_index()
    by_head = last[["layer", "head", "ever"]]
    by_step = figures.returning_over_steps(frame, TOP, theme), figures.read_returning_over_steps(frame)
    of_heads = figures.returning_by_head(by_head, theme), figures.read_returning_by_head(by_head)
    where = of_run(run)
    if method and OWN in kinds:
        where = joined(where, Provenance(f"evictions of {method.record.label}"))
    return (
        Drawn("by step", by_step[0], frame, by_step[1], where, returns(gather(sources, RETURNING))),
        Drawn("by head", of_heads[0], by_head, of_heads[1], of_run(run)),
    )


def _evicting(sources: Sources) -> Run | None:
    """The comparison's first run that evicts."""
    runs = [run for run in sources.runs if run.record.level == "full"]
    return next((run for run in runs if run.steps["evicted"].sum() > 0), None)


def draw_variance(sources: Sources, choice: Choice, theme: Theme) -> tuple[Drawn, ...] | Needs:
    """Figure 2c: variance of each token's attention over all steps and within windows."""
    run = attention_run(sources)
    if isinstance(run, Needs):
        return run
    layer, head = chosen_head(run, choice.layer, choice.head)
    frame = variances(read_rows(run, layer, head), WINDOW)
    if frame.empty:
        why = f"Variances in windows of {WINDOW} steps need more than {WINDOW} decode steps."
        return Needs(why, comparison(sources, RULES))
    texts = token_texts(run.tokens, run.record.prompt_tokens)
    ratio, shuffled = variance_ratios(frame)
    figure = figures.variance_by_token(frame, texts, theme)
    reading = figures.read_variance_by_token(frame, ratio, shuffled)
    where = of_run(run).at(f"layer {layer}, head {head}")
    return (Drawn("variance by token", figure, frame, reading, where, locality(gather(sources, IN_TIME_ROWS))),)


def draw_prediction(sources: Sources, choice: Choice, theme: Theme) -> tuple[Drawn, ...] | Needs:
    """Figure 2d: relative error of the predictors."""
    run = attention_run(sources)
    if isinstance(run, Needs):
        return run
    frame = prediction_errors_of_heads(run, heads_with_attention(run))
    if frame.empty:
        return Needs("This run decoded no step after the prompt.", comparison(sources, RULES))
    names = {"mass": "attention", "score": "exp scores as printed"}
    return tuple(
        Drawn(
            names[kind],
            figures.error_by_step(frame, kind, theme),
            errors,
            figures.read_error_by_step(frame, kind),
            of_run(run),
            predicts(gather(sources, PREDICTING), str(kind), names[kind]),
        )
        for kind, errors in frame.groupby("kind", sort=False)
    )


DRAWINGS = {"fig-2a": draw_concentration, "fig-2b": draw_return, "fig-2c": draw_variance, "fig-2d": draw_prediction}
