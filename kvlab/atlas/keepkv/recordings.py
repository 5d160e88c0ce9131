"""Select the recorded runs for KeepKV's exhibits."""

from __future__ import annotations

from kvlab.atlas.analysis.attention_rows import heads_with_attention
from kvlab.atlas.exhibit import Needs
from kvlab.atlas.measurements import comparison
from kvlab.results.sources import Sources
from kvlab.trace.reader import Run

OWN_MASSES = "keepkv:preset=default:predict=current:per_head_mass=true"
RULES = ("cam", "d2o", "kvmerger", "keepkv:rule=votes", "keepkv", "keepkv:predict=current", OWN_MASSES, "h2o")


def attention_run(sources: Sources) -> Run | Needs:
    """The comparison's full-cache run if it recorded attention, else the current one, else any that did.

    The full cache's attention is the model's own; under another method later layers already see its errors.
    """
    seen = [run for run in (sources.run_of("full"), sources.run, *sources.runs) if run is not None]
    found = next((run for run in seen if heads_with_attention(run)), None)
    if found is not None:
        return found
    why = "No run of this comparison recorded its attention." if seen else "There are no recorded runs yet."
    return Needs(why, comparison(sources, RULES))


def merging_runs(sources: Sources) -> list[Run]:
    """The comparison's runs with merges: KeepKV's first (the current one, then the one with the paper's settings)."""
    seen = list(dict.fromkeys([*sources.runs, *([sources.run] if sources.run else [])]))
    merged = [run for run in seen if run.record.level == "full" and run.steps["merged"].sum() > 0]
    return sorted(merged, key=lambda run: _rank(run, sources))


def _rank(run: Run, sources: Sources) -> tuple[bool, ...]:
    return run.record.method != "keepkv", run is not sources.run, bool(run.record.departures)


def chosen_head(run: Run, layer: int, head: int) -> tuple[int, int]:
    """The user's head if its attention was recorded, else the first that has."""
    heads = heads_with_attention(run)
    return (layer, head) if (layer, head) in heads else heads[0]
