"""The phases of a comparison and the memory each holds at its peak, following the engine and the cache.

Validated against torch's own allocator on CPU (`tests/planning/test_measured.py`).
"""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec

from kvlab.common.limits import MOST_FUTURE, PROMPT_ROWS
from kvlab.planning.footprint import FULL, Footprint
from kvlab.planning.parts import Part, Phase, Place
from kvlab.planning.workload import FLOAT, Workload
from kvlab.requests.budget import Amount
from kvlab.requests.recording import BYTES_A_TOKEN, attention_that_fits, history_that_fits

WHOLE = 1.0
PROCESS_BYTES = 540_000_000  # Python with torch and transformers: 450 MB on Linux after the import, more after running
COMPILER_BYTES = 140_000_000  # added by numba if CPU decisions are compiled
CONTEXT_BYTES = 600_000_000  # CUDA and its libraries, before the first tensor
SHADOW = "shadow"
TOKENS_AT_ONCE, ROOM = 4096, 2  # of the shadow: length of its blocks, and how many are on the device at once
STANDING = ("weights", "the process", "weights on their way")
LOGITS_PART = "logits"
EVENT_BYTES, STEP_BYTES = 110, 160  # per row that waits to be written
MOST_WAITING = 1_000_000  # rows of a table before they are written
INDEX = 8  # bytes of an int64
SORTED_ROWS, SAMPLES = 4096, 8  # of the probe: hidden states that are sorted, and queries that GVote draws


def phases(work: Workload, choices: list[tuple[str, Footprint, Amount]], device: str) -> list[Phase]:
    """Every phase, in order; each of `choices` is a label, the method's footprint and its budget."""
    deciding = any(holds.compresses and holds.decode for _, holds, _ in choices)
    common = standing(work, device, compiles=deciding and find_spec("numba") is not None)
    all_phases = [Phase("loading the weights", (*common, *_loading(work, device))), *_reference(work, common)]
    common = (*common, _reference_rows(work))
    if work.level == "full":
        all_phases.append(Phase("probing the full cache", (*common, *_probe(work))))
    for label, holds, budget in choices:
        all_phases += _of_method(work, label, holds, budget, common)
    return [_with_blocks(work, phase) for phase in all_phases] if device == "cuda" else _with_slack(all_phases)


def _with_blocks(work: Workload, phase: Phase) -> Phase:
    """Add the blocks of the shadow, which is on the host, that are on the device at once."""
    if all(part.name != SHADOW for part in phase.parts):
        return phase
    model = work.model
    block = model.key_value_heads * min(TOKENS_AT_ONCE, work.seen) * model.head_dim * work.number
    part = Part("blocks of the shadow", "device", ROOM * block, f"{ROOM} blocks of {TOKENS_AT_ONCE:,} tokens")
    return Phase(phase.name, (*phase.parts, part))


def _with_slack(in_order: list[Phase]) -> list[Phase]:
    """Add freed blocks that the host's allocator keeps: the most, without the largest parts, that was alive so far.

    Peak RSS of separate processes grew by twice what was alive (`tests/planning/test_resident.py`).
    """
    why, most, with_slack = "what the host's allocator does not return, about as much as was alive", 0, []
    for phase in in_order:
        tensors = (part for part in phase.parts if part.place == "device" or part.name == SHADOW)
        most = max(most, sum(part.bytes for part in tensors if part.name not in (*STANDING, LOGITS_PART)))
        with_slack.append(Phase(phase.name, (*phase.parts, Part("freed blocks", "host", most, why))))
    return with_slack


def standing(work: Workload, device: str, compiles: bool = False) -> tuple[Part, ...]:
    """Parts that are always there; `compiles`: CPU decisions are compiled with numba."""
    weights = Part("weights", "device", work.weight_bytes, f"{work.model.parameters:,} numbers")
    process = Part("the process", "host", PROCESS_BYTES, "Python, torch and transformers")
    if compiles and device == "cpu":
        process = Part("the process", "host", PROCESS_BYTES + COMPILER_BYTES, "Python, torch, transformers and numba")
    context = Part("CUDA itself", "device", CONTEXT_BYTES, "its context and libraries")
    return (weights, process, context) if device == "cuda" else (weights, process)


def _loading(work: Workload, device: str) -> tuple[Part, ...]:
    why = "the weights pass through host memory"
    return () if device == "cpu" else (Part("weights on their way", "host", work.weight_bytes, why),)


def _reference(work: Workload, common: tuple[Part, ...]) -> list[Phase]:
    name = "full cache"
    moments = [_moment(work, common, f"{name}: {at}", FULL, WHOLE, at, watched=False) for at in MOMENTS]
    return [*moments, _decoding(work, common, name, FULL, WHOLE, watched=False)]


def _of_method(work: Workload, label: str, holds: Footprint, budget: Amount, common: tuple[Part, ...]) -> list[Phase]:
    watched = work.level == "full"
    moments = [_moment(work, common, f"{label}: {at}", holds, budget, at, watched) for at in MOMENTS]
    again = _again(work, common, label, holds, watched)
    return [*moments, *again, _decoding(work, common, label, holds, budget, watched)]


ATTENTION, FEED_FORWARD, LOGITS = "attention of the prompt", "feed-forward of the prompt", "logits of the prompt"
READ_AGAIN, REFERRED = "reading the prompt again", "the decision by its queries"
MOMENTS = (ATTENTION, FEED_FORWARD, LOGITS)


def _moment(
    work: Workload, common: tuple[Part, ...], name: str, holds: Footprint, budget: Amount, at: str, watched: bool
) -> Phase:
    """One moment of the prefill in the last layer, when the method has compressed all earlier ones."""
    layers, whole = work.model.full_layers, work.slot_bytes(holds) * work.tokens
    room = work.kept_bytes(holds, work.first_slots(holds, budget))
    drops = holds.packed is not None or work.drops(holds, budget)
    waits = holds.deferred or not holds.compresses or not drops
    settled = whole if waits else room
    # During attention the last layer still holds everything; with a chunked prompt every layer does.
    open_layers = min(layers, 1 if not work.chunked else layers) if at == ATTENTION else 0
    tables = (layers - open_layers) * settled + open_layers * whole + work.recalled_bytes(holds)
    why = f"{layers} layers x {work.model.key_value_heads} KV heads; a slot of a layer takes {work.slot_bytes(holds):,}"
    parts = [Part(_cache_name(holds), "device", tables + work.sliding_bytes(), why)]
    if watched:
        parts += _shadow(work)
        parts += _waiting(work, holds, budget)
    parts.append(_working(work, holds, budget, at, open_layers * (whole - settled)))
    return Phase(name, (*common, *parts))


def _again(work: Workload, common: tuple[Part, ...], label: str, holds: Footprint, watched: bool) -> list[Phase]:
    """Read the prompt, still whole in every layer, a second time; then decide with queries of that pass."""
    if holds.again is None:
        return []
    longer, references = work.read_again(holds.again), work.reference_bytes(holds.again)
    copies = 2 if holds.again.on_policy else 1  # layers that decide in turn are read in a copy
    working = max(longer.reading_bytes(holds), longer.feed_forward_bytes())
    moments = [(READ_AGAIN, longer, "reading again", working, "attention and scores of a piece over all of the prompt")]
    if holds.again.references:
        why = f"attention of {holds.again.references} queries of each query head, and what is fitted to it"
        moments.append((REFERRED, work, "deciding", work.referred_bytes(holds.again), why))
    added, shared = [], (*common, *(_shadow(work) if watched else ()))
    for at, load, name, size, why in moments:
        tables = copies * (load.model.full_layers * load.slot_bytes(holds) * load.tokens + load.sliding_bytes())
        cache = Part(
            _cache_name(holds), "device", tables + references, "the whole prompt, and the queries that are kept"
        )
        added.append(Phase(f"{label}: {at}", (*shared, cache, Part(name, "device", size, why))))
    return added


def _working(work: Workload, holds: Footprint, budget: Amount, at: str, open_table: int) -> Part:
    """Working memory of a layer; `open_table` are bytes counted elsewhere that a sliding layer does not need."""
    if at == LOGITS:
        rows = "each prompt token" if work.logits_bytes() > 2 * work.model.vocabulary * FLOAT else "the last token"
        return Part(LOGITS_PART, "device", work.logits_bytes(), f"float32, twice, of {rows} over the vocabulary")
    if at == FEED_FORWARD:
        return Part("prefill's feed-forward", "device", work.feed_forward_bytes(), "gate, up and product of one layer")
    why = f"queries, repeated keys and values, and scores of {min(holds.scored_rows, work.queries)} queries at a time"
    largest = max(work.attention_bytes(holds, budget), work.sliding_attention_bytes() - open_table)
    return Part("prefill's attention", "device", largest, why)


def _decoding(
    work: Workload, common: tuple[Part, ...], label: str, holds: Footprint, budget: Amount, watched: bool
) -> Phase:
    slot, layers = work.slot_bytes(holds), work.model.full_layers
    first, last = work.first_slots(holds, budget), work.last_slots(holds, budget)
    copies = (last > first) + watched
    tables = (layers + copies) * work.kept_bytes(holds, last) + work.sliding_bytes()
    if holds.deferred and work.drops(holds, budget):
        tables = max(tables, layers * slot * work.tokens)
    tables += work.recalled_bytes(holds)
    why = f"{last:,} slots a head in the end, and {'a copy' if copies else 'no copy'} of one layer while it changes"
    parts = [Part(_cache_name(holds), "device", tables, why)]
    if watched:
        parts += [*_shadow(work), *_attention_rows(work), *_waiting(work, holds, budget)]
    parts.append(Part("log-probabilities", "device", work.kept_rows_bytes(), "of every new token over the vocabulary"))
    return Phase(f"{label}: decoding", (*common, *parts))


def _reference_rows(work: Workload) -> Part:
    why = "the full cache's, of every new token over the vocabulary"
    return Part("log-probabilities to compare with", "host", work.kept_rows_bytes(), why)


def _shadow(work: Workload) -> list[Part]:
    model, heads = work.model, work.model.key_value_heads
    states = 2 * heads * work.seen * model.head_dim * work.number
    owners = heads * work.seen * INDEX
    why = "every key and value, uncompressed, and which slot each token lives in"
    return [Part(SHADOW, "host", model.full_layers * (states + owners), why)]


def attention_row_bytes(work: Workload) -> int:
    """Recorded attention of all layers, in memory and on disk, as far as the run's limit allows."""
    layers, heads = range(work.model.full_layers), work.model.key_value_heads
    kept, _ = attention_that_fits(work.record, layers, heads, work.seen, work.new_tokens)
    rows = -(-work.new_tokens // kept.every)
    return BYTES_A_TOKEN * len(kept.of_layers(layers)) * rows * len(kept.of_heads(heads)) * work.seen


def _attention_rows(work: Workload) -> list[Part]:
    why = "true and given mass of every step, in half precision"
    return [Part("attention rows", "host", attention_row_bytes(work), why)]


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


def _waiting(work: Workload, holds: Footprint, budget: Amount) -> list[Part]:
    events = min(event_rows(work, holds, budget), MOST_WAITING) * EVENT_BYTES
    steps = min(step_rows(work), MOST_WAITING) * STEP_BYTES
    return [Part("rows that wait to be written", "host", events + steps, "of the tables events and steps")]


def _probe(work: Workload) -> list[Part]:
    """The probe's passes over prompt and continuation, chunked if the prompt is."""
    future = min(MOST_FUTURE, work.new_tokens)
    long = replace(work, tokens=work.tokens + future)
    model = work.model
    tables = model.full_layers * long.slot_bytes(FULL) * long.tokens + work.sliding_bytes()
    shown = long.states_bytes() + max(_history(long, future), _hidden(work), _sampled(work, future))
    layer = max(shown, long.attention_bytes(), long.feed_forward_bytes(), long.sliding_attention_bytes())
    return [
        Part("full cache", "device", tables, "nothing is dropped"),
        Part("the probe", "device", layer, "prompt and continuation once more"),
    ]


def history_rows(work: Workload) -> tuple[int, int]:
    """(layers, queries) whose attention the probe keeps."""
    future, model = min(MOST_FUTURE, work.new_tokens), work.model
    rows_wanted = min(PROMPT_ROWS, work.tokens), future
    wanted, heads = work.record.of_layers(range(model.full_layers)), len(work.record.of_heads(model.key_value_heads))
    layers, rows, _ = history_that_fits(wanted, heads, work.tokens + future, *rows_wanted)
    return len(layers), rows + future if layers else 0


def _history(long: Workload, future: int) -> int:
    """Masses and scores of the kept queries by KV head: in blocks, joined, and in half precision."""
    _, rows = history_rows(replace(long, tokens=long.tokens - future))
    return int(2.5 * 2 * rows * long.model.key_value_heads * long.tokens * FLOAT)


def _hidden(work: Workload) -> int:
    """Float32 copies of the hidden states, including a sorted part with its order."""
    return work.model.hidden * FLOAT * (4 * work.tokens + 4 * min(work.tokens, SORTED_ROWS))


def _sampled(work: Workload, future: int) -> int:
    """Attention of the later queries and of GVote's samples, the latter sorted with their order."""
    return work.model.heads * work.tokens * (3 * future * FLOAT + SAMPLES * 2 * (2 * FLOAT + INDEX))


def _cache_name(holds: Footprint) -> str:
    return "compressed cache" if holds.compresses else "full cache"


def on(phase: Phase, device: str) -> dict[Place, int]:
    """Bytes of a phase by place; a CPU has one memory, `host`."""
    device_bytes, host = phase.bytes_on("device"), phase.bytes_on("host")
    return {"device": 0, "host": device_bytes + host} if device == "cpu" else {"device": device_bytes, "host": host}
