"""Select the recorded runs for KVMerger's exhibits."""

from __future__ import annotations

from collections.abc import Sequence

from kvlab.atlas.exhibit import Needs
from kvlab.atlas.measurements import comparison
from kvlab.core.errors import UserError
from kvlab.results.sources import Sources
from kvlab.trace.catalogue import list_runs
from kvlab.trace.reader import Run, open_run
from kvlab.views.base.words import plural
from kvlab.views.frames.head_states import heads_with_states

METHODS = ("kvmerger:preset=paper-35",)
BUDGETS = (0.35,)
MOST_PROMPTS = 12


def run_with_keys(sources: Sources) -> Run | Needs:
    """The current run, or else one of its comparison, that recorded its keys."""
    seen = [run for run in (sources.run, *sources.runs) if run is not None]
    keyed = [run for run in seen if run.record.level == "full" and run.has_arrays]
    if keyed:
        return keyed[0]
    why = "No run of this comparison recorded its keys." if seen else "There are no recorded runs yet."
    return Needs(why, comparison(sources, METHODS, BUDGETS))


def merging_run(sources: Sources) -> Run | Needs:
    """The comparison's KVMerger run with events."""
    run = sources.run_of("kvmerger")
    if run is not None and run.record.level == "full" and run.has_arrays:
        return run
    return Needs("This comparison has no KVMerger run with events and keys.", comparison(sources, METHODS, BUDGETS))


def eviction_sentence(run: Run) -> str:
    """A sentence on how many tokens this KVMerger run evicted after its prompt; "" for other methods."""
    first = run.steps[run.steps["step"] == 0]
    heads = len(first)
    if run.record.method != "kvmerger" or not heads:
        return ""
    evicted, merged = (float(first[column].sum()) / heads for column in ("evicted", "merged"))
    return (
        f"Of the {evicted + merged:,.0f} tokens that left a head after the prompt (mean over heads) {evicted:,.0f} "
        "were evicted, not merged; the paper evicts none, because its budget follows from the threshold."
    )


def prompts_of(sources: Sources, model: str | None = None) -> list[Run]:
    """One run with keys per prompt in the runs folder, newest first, optionally of one model.

    Prompt keys do not depend on the method, because the prefill attends to everything.
    """
    found: dict[tuple[str, str], Run] = {}
    for run in (*filter(None, (sources.run, *sources.runs)), *_in_folder(sources)):
        name = run.record.model.name
        if run.record.level == "full" and run.has_arrays and model in (None, name):
            found.setdefault((name, run.record.prompt), run)
    return list(found.values())[:MOST_PROMPTS]


def models_of(runs: list[Run]) -> list[str]:
    """The runs' model names, each once."""
    return list(dict.fromkeys(run.record.model.name for run in runs))


def prompt_name(run: Run) -> str:
    """A prompt's title or first words, with its length."""
    words = " ".join((run.record.title or run.record.prompt[:200]).split())
    short = words if len(words) <= 40 else f"{words[:39]}…"
    return f"{short} ({run.record.prompt_tokens:,} tokens)"


def _in_folder(sources: Sources) -> list[Run]:
    """One run per comparison, newest first, up to a limit."""
    opened: dict[str, Run] = {}
    for entry in list_runs(sources.root, status="complete"):
        if entry.level == "full" and entry.comparison_id not in opened and len(opened) < 2 * MOST_PROMPTS:
            try:
                opened[entry.comparison_id] = open_run(sources.root / entry.run_id)
            except UserError:
                continue
    return list(opened.values())


def sample_sentence(run: Run, heads: Sequence[tuple[int, int]], tokens: int = 0) -> str:
    """A sentence on the heads and `tokens` that were sampled; "" if all were used."""
    parts = []
    if len(heads) < (every := heads_with_states(run)):
        parts.append(f"{len(heads)} of {plural(every, 'head')}, evenly chosen")
    if 0 < tokens < run.record.prompt_tokens:
        parts.append(f"the first {tokens:,} of {plural(run.record.prompt_tokens, 'token')}")
    return f" Sampled: {', '.join(parts)}." if parts else ""
