"""Bytes of recording and of the probe of the full cache, in memory and on disk, and the number of rows they write.

On disk arrays are exact; tables are compressed, so their rows are as measured.
"""

from __future__ import annotations

from dataclasses import replace

from kvlab.common.limits import MOST_FUTURE, PROMPT_ROWS
from kvlab.core.budget import Amount
from kvlab.planning.footprint import Footprint
from kvlab.planning.parts import Part
from kvlab.planning.workload import FLOAT, Workload
from kvlab.requests.recording import (
    BYTES_A_TOKEN,
    DECISION_BYTES_A_TOKEN,
    HALF,
    attention_that_fits,
    decision_that_fits,
    history_that_fits,
    state_bytes,
    states_that_fit,
)

SHADOW = "shadow"
TOKENS_AT_ONCE, ROOM = 4096, 2  # of the shadow: length of its blocks, and how many are on the device at once
EVENT_BYTES, STEP_BYTES = 110, 160  # per row that waits to be written
MOST_WAITING = 1_000_000  # rows of a table before they are written
INDEX = 8  # bytes of an int64
SORTED_ROWS, SAMPLES = 4096, 8  # of the probe: hidden states that are sorted, and queries that GVote draws
# Bytes per row after compression, measured on mini, and of an empty folder.
EVICTED_ROW, MERGED_ROW, STEP_ROW, TOKEN_ROW, FOLDER = 5, 13, 30, 15, 10_000
HIDDEN_NUMBERS = 1650  # of one layer's hidden states: histograms and quantiles, besides six per channel
SAMPLED_ROWS = 3  # of GVote's samples: (H, T) each


def shadow(work: Workload, runs: int = 1) -> Part:
    """Uncompressed keys and values of every run, on the host."""
    model, heads = work.model, work.model.key_value_heads
    states = 2 * heads * work.seen * model.head_dim * work.number
    owners = heads * work.seen * INDEX
    why = "every key and value of each run, uncompressed, and which slot each token lives in"
    return Part(SHADOW, "host", runs * model.full_layers * (states + owners), why)


def blocks(work: Workload, runs: int) -> Part:
    """The blocks of the shadows that are on the device at once."""
    model = work.model
    block = model.key_value_heads * min(TOKENS_AT_ONCE, work.seen) * model.head_dim * work.number
    return Part("blocks of the shadow", "device", runs * ROOM * block, f"{ROOM} of {TOKENS_AT_ONCE:,} tokens for a run")


def compared_attention(work: Workload, runs: int) -> Part:
    """Attention of the prompt's last query, true and given, and a flag per slot, until the prompt has ended."""
    model = work.model
    size = model.key_value_heads * work.tokens * (2 * FLOAT + 1)
    return Part("attention to compare", "host", runs * model.full_layers * size, "of the prompt's last query")


def attention_row_bytes(work: Workload) -> int:
    """Recorded attention of all layers, in memory and on disk, as far as the run's limit allows."""
    layers, heads = range(work.model.full_layers), work.model.key_value_heads
    kept, _ = attention_that_fits(work.record, layers, heads, work.seen, work.new_tokens)
    rows = -(-work.new_tokens // kept.every)
    return BYTES_A_TOKEN * len(kept.of_layers(layers)) * rows * len(kept.of_heads(heads)) * work.seen


def attention_rows(work: Workload, runs: int) -> Part:
    """Attention of every recorded step."""
    why = "true and given mass of every step, in half precision"
    return Part("attention rows", "host", runs * attention_row_bytes(work), why)


def event_rows(work: Workload, holds: Footprint, budget: Amount) -> int:
    """Slots evicted or merged in the whole run."""
    if not work.drops(holds, budget):
        return 0
    decided = work.seen if holds.decode else work.tokens
    kept = min(work.last_slots(holds, budget), decided)
    return work.model.full_layers * work.model.key_value_heads * (decided - kept)


def step_rows(work: Workload) -> int:
    """Rows of `steps`: one per head, layer and step."""
    return work.model.full_layers * work.model.key_value_heads * work.new_tokens


def waiting_bytes(work: Workload, holds: Footprint, budget: Amount) -> int:
    """Rows of one run that wait to be written."""
    events = min(event_rows(work, holds, budget), MOST_WAITING) * EVENT_BYTES
    return events + min(step_rows(work), MOST_WAITING) * STEP_BYTES


def probe_states(work: Workload) -> list[Part]:
    """Bytes the probe keeps of every layer until the text ends."""
    model, rows = work.model, min(work.tokens, PROMPT_ROWS) + min(MOST_FUTURE, work.new_tokens)
    layers = len(work.record.of_layers(range(model.full_layers)))
    hidden = layers * min(work.tokens, SORTED_ROWS) * model.hidden * work.number
    queries = layers * rows * model.heads * model.head_dim * work.number
    return [
        Part("hidden states of the probe", "host", hidden, f"at most {SORTED_ROWS:,} of each layer"),
        Part("queries of the probe", "device", queries, "the prompt's last ones and all later ones, of each layer"),
    ]


def gathering_bytes(work: Workload) -> int:
    """Float32 copies of a layer's hidden states while their moments are summed."""
    return 3 * work.queries * work.model.hidden * FLOAT


def probing_bytes(work: Workload) -> int:
    """Working memory of the probe when the text ends: the largest of its three results, of one layer."""
    future = min(MOST_FUTURE, work.new_tokens)
    return max(_history(work, future), _hidden(work), _sampled(work, future))


def history_rows(work: Workload) -> tuple[int, int]:
    """(layers, queries) whose attention the probe keeps."""
    future, model = min(MOST_FUTURE, work.new_tokens), work.model
    rows_wanted = min(PROMPT_ROWS, work.tokens), future
    wanted, heads = work.record.of_layers(range(model.full_layers)), len(work.record.of_heads(model.key_value_heads))
    layers, rows, _ = history_that_fits(wanted, heads, work.tokens + future, *rows_wanted)
    return len(layers), rows + future if layers else 0


def _history(work: Workload, future: int) -> int:
    """Masses and scores of the kept queries by KV head: in blocks, joined, and in half precision."""
    long = replace(work, tokens=work.tokens + future)
    _, rows = history_rows(work)
    return int(2.5 * 2 * rows * long.model.key_value_heads * long.tokens * FLOAT)


def _hidden(work: Workload) -> int:
    """Float32 copies of the kept hidden states: as they are, sorted, and compared with a normal distribution."""
    return work.model.hidden * FLOAT * 5 * min(work.tokens, SORTED_ROWS)


def _sampled(work: Workload, future: int) -> int:
    """Attention of the later queries and of GVote's samples, the latter sorted with their order."""
    return work.model.heads * work.tokens * (3 * future * FLOAT + SAMPLES * 2 * (2 * FLOAT + INDEX))


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
