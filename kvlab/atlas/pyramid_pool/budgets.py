"""PyramidPool's figures 2 and 3: along which axes the cache shrinks, and the budget of each layer."""

from __future__ import annotations

from kvlab.analysis.comparison.memory import budgets_by_layer
from kvlab.atlas.analysis.pyramid import layer_budgets, spread_by_axis
from kvlab.atlas.claims import pyramid as claims
from kvlab.atlas.evidence import gather
from kvlab.atlas.exhibit import Choice, Drawn, Needs
from kvlab.atlas.figures import pyramid as figures
from kvlab.atlas.measurements import comparison
from kvlab.atlas.one_head import recorded
from kvlab.figures.base.palette import Theme
from kvlab.figures.base.words import number
from kvlab.results.provenance import of_run
from kvlab.results.sources import Sources
from kvlab.results.verdict import OPEN, Claim
from kvlab.trace.reader import Run

PYRAMIDS = ("pyramid-pool", "pool")


def draw_axes(sources: Sources, choice: Choice, theme: Theme) -> tuple[Drawn, ...] | Needs:
    """Figure 2: slots by layer and KV head of the run in view, or of PyramidPool where none is."""
    run = sources.run_of(*PYRAMIDS) or sources.run
    if run is None or run.steps.empty:
        return Needs("No run recorded its slots by layer and head.", comparison(sources, PYRAMIDS[:1]))
    step = _step(run, choice)
    frame = budgets_by_layer(run.steps, step)
    figure, reading = figures.three_axes(frame, theme), figures.read_three_axes(frame)
    return (Drawn("axes", figure, frame, reading, of_run(run), _two_axes(sources, run, step)),)


def _two_axes(sources: Sources, run: Run, step: int) -> Claim:
    if run.record.method == PYRAMIDS[0]:
        return claims.two_axes(gather(sources, claims.AXES, [run]))
    spread = spread_by_axis(run.steps, step)
    finding = (
        f"{run.record.label}: largest over smallest layer {number(spread['layers'])}, largest over smallest head of "
        f"a layer {number(spread['heads'])}. It is not a run of PyramidPool."
    )
    return Claim(claims.TWO_AXES, OPEN, finding)


def draw_layers(sources: Sources, choice: Choice, theme: Theme) -> tuple[Drawn, ...] | Needs:
    """Figure 3: budget asked for and slots used of each layer, with the sinks."""
    run = recorded(sources, *PYRAMIDS)
    if isinstance(run, Needs):
        return run
    frame = layer_budgets(run.steps, _step(run, choice))
    sinks = _sinks(run)
    figure, reading = figures.budgets_by_layer(frame, sinks, theme), figures.read_budgets_by_layer(frame)
    claim = claims.falls(gather(sources, claims.LINES, [run]))
    return (Drawn("layers", figure, frame, reading, of_run(run), claim),)


def _sinks(run: Run) -> int:
    value = run.record.hyper_parameters.get("sinks", 0)
    return value if isinstance(value, int) else 0


def _step(run: Run, choice: Choice) -> int:
    return min(choice.step, int(run.steps["step"].max()))


DRAWINGS = {"fig-2": draw_axes, "fig-3": draw_layers}
