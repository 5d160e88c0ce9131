"""The two passes of a run: the full cache's continuation, recorded, and the method's own, timed."""

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
class Passes:
    """Input of both passes of a run: the comparison, the run's choice, where to write, and who to report to."""

    prepared: Prepared
    run: PreparedRun
    writer: RunWriter
    watch: Watch

    @property
    def label(self) -> str:
        """The run's name in progress messages."""
        return self.run.choice.label


def forced_pass(run: Passes, reference: Reference) -> float | None:
    """Decode the reference's tokens, recording every step; returns tokens a second where recorded."""
    request, loaded, ids = run.prepared.request, run.prepared.loaded, run.prepared.ids
    writer, watch = run.writer, run.watch
    steps = max(len(reference.ids) - 1, 0)
    asked = request.level, ids.shape[1], steps, writer.record.recorded_states, writer.record.attention_rows
    recorder = None if request.level == "off" else Recorder(writer, *asked)
    cache = run.run.new_cache(observer=recorder)
    watch.advance(f"{run.label}: prompt")
    start = prefill(loaded, cache, ids, request.prefill_chunk, watch.check)
    _write_prompt(run, start.prompt_logprobs, reference)
    rows = [start.next_logprobs]
    if recorder is not None:
        recorder.end_step(cache)
    synchronize(loaded.device)
    begun = time.perf_counter()
    for token in reference.ids[:-1]:
        watch.advance(f"{run.label}: decoding the full cache's continuation")
        rows.append(decode_one(loaded, cache, torch.tensor(token, device=loaded.device)))
        if recorder is not None:
            recorder.end_step(cache)
    synchronize(loaded.device)
    seconds = time.perf_counter() - begun
    _write_forced(run, reference, rows)
    if recorder is not None:
        recorder.write_arrays()
    return steps / seconds if steps and recorder is not None else None


def free_pass(run: Passes) -> dict[str, Any]:
    """Decode the method's own continuation with recording off, timed; returns the record's timing fields."""
    request, loaded, ids, watch = run.prepared.request, run.prepared.loaded, run.prepared.ids, run.watch
    cache = run.run.new_cache(timed=True)
    watch.advance(f"{run.label}: its own continuation")
    synchronize(loaded.device)
    begun = time.perf_counter()
    start = prefill(loaded, cache, ids, request.prefill_chunk, watch.check)
    synchronize(loaded.device)
    prefilled = time.perf_counter()
    step = lambda: watch.advance(f"{run.label}: its own continuation")  # noqa: E731
    choose = chooser(loaded, ids, request.max_new_tokens, request.generation_config)
    chosen = list(greedy(loaded, cache, start.next_logits, request.max_new_tokens, step, choose))
    synchronize(loaded.device)
    seconds = time.perf_counter() - prefilled
    free = [token for token, _ in chosen]
    own = continuation(loaded.tokenizer, free, end_ids(loaded))
    if request.level == "off":
        # Nothing was watched, but what the cache holds in the end costs nothing to say.
        run.writer.append("memory", memory_columns(cache, max(len(free) - 1, 0)))
    run.writer.append(
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
        # The first token comes from the prompt's pass: len - 1 decode steps were timed.
        "decode_tokens_per_second": (len(free) - 1) / seconds if len(free) > 1 else None,
        "free_text": own.text,
    }


def _write_prompt(run: Passes, logprobs: Tensor | None, reference: Reference) -> None:
    known, tokenizer = run.prepared.ids[0].tolist(), run.prepared.loaded.tokenizer
    special = set(tokenizer.all_special_ids)
    nothing = [None] * (len(known) - 1)
    given = nothing if logprobs is None else logprobs.tolist()
    full = nothing if reference.prompt_logprobs is None else reference.prompt_logprobs.tolist()
    run.writer.append(
        "tokens",
        {
            "phase": ["prompt"] * len(known),
            "position": list(range(len(known))),
            "id": known,
            "text": prompt_pieces(tokenizer, run.prepared.request.prompt, known, run.prepared.chat),
            "special": [token in special for token in known],
            "logprob": [None, *given],
            "logprob_full": [None, *full],
        },
    )


def _write_forced(run: Passes, reference: Reference, rows: list[Tensor]) -> None:
    loaded, prompt_tokens = run.prepared.loaded, run.prepared.ids.shape[1]
    written = continuation(loaded.tokenizer, reference.ids, end_ids(loaded))
    pairs = [divergence(full, given) for full, given in zip(reference.logprobs, rows, strict=True)]
    run.writer.append(
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
    run.writer.update(forced_text=written.text)
