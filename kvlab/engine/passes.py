"""The two passes of a run: the full cache's continuation (forced, recorded) and the method's own (free, timed)."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kvlab.engine.forward import decode_one, end_ids, greedy, prefill, synchronize
from kvlab.engine.prepare import Prepared, PreparedRun
from kvlab.engine.progress import Watch
from kvlab.engine.prompt import Reference, continuation, divergence, prompt_pieces
from kvlab.engine.recording.recorder import Recorder, memory_columns
from kvlab.engine.token_choice import chooser
from kvlab.trace import RunWriter


@dataclass(frozen=True)
class ActiveRun:
    """A run in progress: the comparison it belongs to, its own settings, its writer and the progress watch."""

    prepared: Prepared
    run: PreparedRun
    writer: RunWriter
    watch: Watch

    @property
    def label(self) -> str:
        return self.run.choice.label


def forced_pass(active: ActiveRun, reference: Reference) -> float | None:
    """Decode the reference's tokens and record every step; return tokens per second, None if nothing was recorded."""
    request, loaded, ids = active.prepared.request, active.prepared.loaded, active.prepared.ids
    writer, watch = active.writer, active.watch
    steps = max(len(reference.ids) - 1, 0)
    settings = request.level, ids.shape[1], steps, writer.record.recorded_states, writer.record.attention_rows
    recorder = None if request.level == "off" else Recorder(writer, *settings)
    cache = active.run.new_cache(observer=recorder)
    watch.advance(f"{active.label}: prompt")
    start = prefill(loaded, cache, ids, request.prefill_chunk, watch.check)
    _write_prompt(active, start.prompt_logprobs, reference)
    rows = [start.next_logprobs]
    if recorder is not None:
        recorder.end_step(cache)
    synchronize(loaded.device)
    begun = time.perf_counter()
    for token in reference.ids[:-1]:
        watch.advance(f"{active.label}: decoding the full cache's continuation")
        rows.append(decode_one(loaded, cache, torch.tensor(token, device=loaded.device)))
        if recorder is not None:
            recorder.end_step(cache)
    synchronize(loaded.device)
    seconds = time.perf_counter() - begun
    _write_forced(active, reference, rows)
    if recorder is not None:
        recorder.write_arrays()
    return steps / seconds if steps and recorder is not None else None


def free_pass(active: ActiveRun) -> dict[str, Any]:
    """Decode the method's own continuation, timed and unrecorded; return the record's timing fields."""
    request, loaded, ids, watch = active.prepared.request, active.prepared.loaded, active.prepared.ids, active.watch
    cache = active.run.new_cache(timed=True)
    watch.advance(f"{active.label}: its own continuation")
    synchronize(loaded.device)
    begun = time.perf_counter()
    start = prefill(loaded, cache, ids, request.prefill_chunk, watch.check)
    synchronize(loaded.device)
    prefilled = time.perf_counter()
    step = lambda: watch.advance(f"{active.label}: its own continuation")  # noqa: E731
    choose = chooser(loaded, ids, request.max_new_tokens, request.generation_config)
    chosen = list(greedy(loaded, cache, start.next_logits, request.max_new_tokens, step, choose))
    synchronize(loaded.device)
    seconds = time.perf_counter() - prefilled
    free = [token for token, _ in chosen]
    own = continuation(loaded.tokenizer, free, end_ids(loaded))
    if request.level == "off":
        # No step was recorded, but the final footprint costs nothing to measure.
        active.writer.append("memory", memory_columns(cache, max(len(free) - 1, 0)))
    active.writer.append(
        "tokens",
        {
            "phase": ["free"] * len(free),
            "position": list(range(ids.shape[1], ids.shape[1] + len(free))),
            "id": free,
            "text": own.shown,
            "special": own.special,
            "logprob": [float(row[token]) for token, row in chosen],
        },
    )
    return {
        "seconds_prefill": prefilled - begun,
        "seconds_compress": cache.settings.prefill_compress_seconds,
        "seconds_rehearse": cache.settings.rehearsal_seconds if cache.settings.rehearsal is not None else None,
        # The first token comes from prefill: len - 1 decode steps were timed.
        "decode_tokens_per_second": (len(free) - 1) / seconds if len(free) > 1 else None,
        "free_text": own.text,
    }


def _write_prompt(active: ActiveRun, logprobs: Tensor | None, reference: Reference) -> None:
    ids, tokenizer = active.prepared.ids[0].tolist(), active.prepared.loaded.tokenizer
    special = set(tokenizer.all_special_ids)
    missing = [None] * (len(ids) - 1)
    own = missing if logprobs is None else logprobs.tolist()
    full = missing if reference.prompt_logprobs is None else reference.prompt_logprobs.tolist()
    active.writer.append(
        "tokens",
        {
            "phase": ["prompt"] * len(ids),
            "position": list(range(len(ids))),
            "id": ids,
            "text": prompt_pieces(tokenizer, active.prepared.request.prompt, ids, active.prepared.chat),
            "special": [token in special for token in ids],
            "logprob": [None, *own],
            "logprob_full": [None, *full],
        },
    )


def _write_forced(active: ActiveRun, reference: Reference, rows: list[Tensor]) -> None:
    loaded, prompt_tokens = active.prepared.loaded, active.prepared.ids.shape[1]
    written = continuation(loaded.tokenizer, reference.ids, end_ids(loaded))
    pairs = [divergence(full, own) for full, own in zip(reference.logprobs, rows, strict=True)]
    active.writer.append(
        "tokens",
        {
            "phase": ["forced"] * len(reference.ids),
            "position": list(range(prompt_tokens, prompt_tokens + len(reference.ids))),
            "id": reference.ids,
            "text": written.shown,
            "special": written.special,
            "logprob": [float(row[token]) for token, row in zip(reference.ids, rows, strict=True)],
            "logprob_full": [float(row[t]) for t, row in zip(reference.ids, reference.logprobs, strict=True)],
            "kl": [kl for kl, _ in pairs],
            "top1_agree": [same for _, same in pairs],
        },
    )
    active.writer.update(forced_text=written.text)
