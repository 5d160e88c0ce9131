"""Disk usage of a comparison. Arrays are exact; tables are compressed, so their rows are as measured."""

from __future__ import annotations

from kvlab.common.limits import MOST_FUTURE
from kvlab.planning.footprint import Footprint
from kvlab.planning.parts import Part
from kvlab.planning.recording_bytes import attention_row_bytes, event_rows, history_rows, step_rows
from kvlab.planning.workload import Workload
from kvlab.requests.budget import Amount
from kvlab.requests.recording import DECISION_BYTES_A_TOKEN, HALF, decision_that_fits, state_bytes, states_that_fit

# Bytes per row after compression, measured on mini, and of an empty folder.
EVICTED_ROW, MERGED_ROW, STEP_ROW, TOKEN_ROW, FOLDER = 5, 13, 30, 15, 10_000
HIDDEN_NUMBERS = 1650  # of one layer's hidden states: histograms and quantiles, besides six per channel
SAMPLED_ROWS = 3  # of GVote's samples: (H, T) each


def run_bytes(work: Workload, holds: Footprint, budget: Amount, runs: int) -> int:
    """Bytes of one run's folder, of `runs` in the comparison."""
    tables = FOLDER + TOKEN_ROW * (work.tokens + 2 * work.new_tokens)
    if work.level == "off":
        return tables
    tables += STEP_ROW * step_rows(work)
    if work.level == "light":
        return tables
    events = event_rows(work, holds, budget) * (MERGED_ROW if holds.seeks else EVICTED_ROW)
    decided = decision_bytes(work) if holds.compresses else 0
    return tables + events + states_written(work, runs) + attention_row_bytes(work) + decided


def states_written(work: Workload, runs: int) -> int:
    """Bytes of unit keys and values with their lengths, as far as a comparison of `runs` runs keeps them."""
    model, layers = work.model, range(work.model.full_layers)
    shape = model.key_value_heads, model.head_dim, work.seen
    kept, _ = states_that_fit(work.record, layers, *shape, runs)
    return state_bytes(len(kept.of_layers(layers)), len(kept.of_heads(shape[0])), *shape[1:])


def decision_bytes(work: Workload) -> int:
    """Bytes of the method's decision about each prompt token."""
    model = work.model
    layers, _ = decision_that_fits(range(model.full_layers), model.key_value_heads, work.tokens)
    return len(layers) * model.key_value_heads * work.tokens * DECISION_BYTES_A_TOKEN


def probe_bytes(work: Workload) -> int:
    """Additional bytes of the comparison's first run."""
    if work.level != "full":
        return 0
    model, future = work.model, min(MOST_FUTURE, work.new_tokens)
    layers, rows = history_rows(work)
    probed = len(work.record.of_layers(range(model.full_layers)))
    history = 2 * HALF * rows * len(work.record.of_heads(model.key_value_heads)) * (work.tokens + future) * layers
    sampled = HALF * SAMPLED_ROWS * model.key_value_heads * work.tokens * probed
    hidden = HALF * (6 * model.hidden + HIDDEN_NUMBERS) * probed
    return history + sampled + hidden


def trace(work: Workload, choices: list[tuple[str, Footprint, Amount]], comparisons: int = 1) -> Part:
    """Disk bytes of the recorded runs."""
    runs = sum(run_bytes(work, holds, budget, len(choices)) for _, holds, budget in choices)
    why = f"{comparisons * len(choices):,} runs at level {work.level}"
    return Part("trace", "disk", comparisons * (probe_bytes(work) + runs), why)
