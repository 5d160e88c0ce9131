"""Servability of recorded runs: pages that kept slots touch and free, and the level, from their tables alone."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from kvlab.planning import serving_table
from kvlab.trace.reader import Run
from kvlab.views.frames.wall import Fate, Wall

MOST_STEPS = 48  # steps at which pages are counted; more would not be seen in a figure


def kept_at(wall: Wall, step: int) -> np.ndarray:
    """Mask (layers, heads, tokens read by `step`) of the tokens that name a slot after that step."""
    kept = wall.fates(step) <= Fate.HOLDS
    return kept.reshape(len(wall.layers), wall.heads, -1)


def run_servability(run: Run, wall: Wall) -> serving_table.Servability:
    """Level and freed pages of a run of level full, after its prompt; `wall` is the run's.

    Counts and positions come from the run's events. What events do not say (log mass, state, and what decisions read)
    is the method's as measured (`kvlab.planning.serving_table`); unknown for methods from plug-ins.
    """
    record = run.record
    tokens = record.prompt_tokens
    kept = kept_at(wall, 0)[..., :tokens]
    last = kept_at(wall, int(wall.steps[-1]))
    by_head, by_layer = (
        one or other for one, other in zip(*(serving_table.held_counts(k.sum(-1)) for k in (kept, last)), strict=True)
    )
    # Whether some head misses tokens between kept ones, or after them.
    has_gaps = bool((np.maximum.accumulate(last, -1) & ~last).any())
    weights = run.select("events", columns=["kind", "key_weight", "value_weight"], ordered=False)
    merges = weights[weights["kind"] != "evict"]
    known = next((row for row in serving_table.read_csv() if row.method == record.method), None)  # None: a plug-in's
    held = replace(
        serving_table.Held(False, False, False, False) if known is None else known.held,
        by_head=by_head,
        by_layer=by_layer,
        apart=bool((kept != kept[:, :1]).any()),
        logical=has_gaps and record.hyper_parameters.get("positions") != "cache",
        merged_keys=bool((merges["key_weight"] > 0).any()) or (known is not None and known.held.merged_keys),
    )
    plain = serving_table.Servability(record.method, record.label, held) if known is None else known
    return replace(
        plain,
        method=record.method,
        title=record.label,
        held=held,
        store=str(record.hyper_parameters.get("store", "native")),
        decodes=bool((run.select("events", columns=["step"], ordered=False)["step"] > 0).any()),
        kept=float(kept.mean()),
        freed={page: serving_table.Freed.from_kept(kept, page) for page in serving_table.PAGES},
        fragmentation={
            page: (serving_table.fragmentation(kept, page), serving_table.fragmentation(last, page))
            for page in serving_table.PAGES
        },
    )


def pages_over_steps(wall: Wall, page: int) -> pd.DataFrame:
    """One row per step (at most `MOST_STEPS`) and sharing: pages of `page` tokens that stay allocated.

    Columns: step, sharing (head, layer or model), slots (mean kept slots per head), paged (mean slots of the touched
    pages per head), read (tokens read), freed (share of the read tokens' pages that are free), fragmentation (share of
    the touched pages' slots that hold nothing).
    """
    chosen = np.unique(np.linspace(0, len(wall.steps) - 1, min(len(wall.steps), MOST_STEPS)).round().astype(int))
    rows = []
    for step in wall.steps[chosen]:
        kept = kept_at(wall, int(step))
        slots = float(kept.sum(-1).mean())
        read = kept.shape[-1]
        size = np.full(-(-read // page), page)
        size[-1] -= -read % page
        for sharing, axes in (("head", ()), ("layer", (1,)), ("model", (0, 1))):
            pages = serving_table.touched_pages(np.asarray(kept.any(axes, keepdims=True)) if axes else kept, page)
            paged = float((pages * size).sum(-1).mean())
            rows.append((int(step), sharing, slots, paged, read, 1 - paged / read, 1 - slots / paged if paged else 0.0))
    return pd.DataFrame(rows, columns=["step", "sharing", "slots", "paged", "read", "freed", "fragmentation"])


def servability_table(rows: Sequence[serving_table.Servability]) -> pd.DataFrame:
    """One row per method, for tables: level, reason, shares of slots freed in %, and needs."""
    return pd.DataFrame(
        {
            "method": row.method,
            "level": row.level,
            "why": row.held.why,
            **{f"freed at page {page} (%)": round(100 * row.freed[page].layer, 1) for page in row.freed},
            **{f"one page table, {page} (%)": round(100 * row.freed[page].model, 1) for page in row.freed},
            "kept (%)": round(100 * row.kept, 1),
            "per head": row.held.by_head,
            "per layer": row.held.by_layer,
            "reads": row.needs,
            "acts while decoding": row.decodes,
            "second pass": row.second_pass,
            "store": row.store,
        }
        for row in rows
    )


def pages_map(wall: Wall, page: int, step: int) -> pd.DataFrame:
    """One row per layer and page: kept slots in it over all heads, and slots that an engine holds for it."""
    kept = kept_at(wall, step)
    layers, heads, read = kept.shape
    missing = -read % page
    held = np.pad(kept, ((0, 0), (0, 0), (0, missing))).reshape(layers, heads, -1, page).sum((1, 3))
    size = np.full(held.shape[1], page)
    size[-1] -= missing
    layer = np.repeat(wall.layers, held.shape[1])
    number = np.tile(np.arange(held.shape[1]), layers)
    room = np.tile(size, layers) * heads
    return pd.DataFrame({"layer": layer, "page": number, "kept": held.reshape(-1), "slots": room}).assign(
        share=lambda frame: frame["kept"] / frame["slots"]
    )
