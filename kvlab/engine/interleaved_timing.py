"""Measure the decode speed of every run of a comparison, interleaved, after all are recorded.

A single reading means little on a busy machine; interleaved, a slowdown affects all runs alike. On a GPU, steps that
can be captured are replayed (`kvlab.engine.cuda_graphs`), because launching them one by one costs more than the work;
other runs decode eagerly, and each reading says which it was.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from kvlab.cache import CompressedCache
from kvlab.common.limits import TIMED_STEPS, turns_within
from kvlab.engine.cuda_graphs import CapturedDecoder
from kvlab.engine.forward import prefill, synchronize
from kvlab.engine.progress import Watch
from kvlab.models.load import LoadedModel
from kvlab.trace.record import read_record, write_record
from kvlab.trace.schema import SpeedReading

WARM_PERIODS, WARM_STEPS = 3, 2  # a kind of step is captured on its second occurrence

Maker = Callable[[], CompressedCache]


def time_interleaved(
    paths: Sequence[Path],
    makers: Sequence[Maker],
    loaded: LoadedModel,
    ids: Tensor,
    chunk: int | None,
    allowed: float,
    watch: Watch,
) -> None:
    """Add speed readings to the record of each finished run, as many as `turns_within` the `allowed` seconds.

    `makers` build the cache of each run. Runs that generate fewer than three tokens have no step to time.
    """
    records = [read_record(path) for path in paths]
    if any(record.status != "complete" or record.decode_tokens_per_second is None for record in records):
        return
    expected = sum((r.seconds_prefill or 0) + TIMED_STEPS / (r.decode_tokens_per_second or 1) for r in records)
    captures = loaded.device.type == "cuda" and not hasattr(loaded.model, "hf_device_map")
    for _ in range(turns_within(allowed, expected)):
        for index, new_cache in enumerate(makers):
            watch.advance("timing in turns", 0)
            reading = measure_speed(loaded, new_cache(), ids, records[index].max_new_tokens, chunk, captures)
            if reading is not None:
                readings = (*records[index].speed_readings, reading)
                records[index] = records[index].model_copy(update={"speed_readings": readings})
                write_record(paths[index], records[index])


@torch.inference_mode()
def measure_speed(
    loaded: LoadedModel,
    cache: CompressedCache,
    ids: Tensor,
    max_new_tokens: int,
    chunk: int | None = None,
    captures: bool = False,
) -> SpeedReading | None:
    """Tokens per second of greedy steps after the prompt (1, T), over whole periods of decisions.

    None if no step is left after warm-up. With `captures`, only replayed steps count if there are any.
    """
    every = cache.settings.period
    first = prefill(loaded, cache, ids, chunk).next_logprobs
    decoder = CapturedDecoder(loaded.model, cache)
    if not captures:
        decoder.why_not = "capturing is disabled"
    token, taken = first.argmax().view(1, 1), []
    for _ in range(min(WARM_PERIODS * every + WARM_STEPS + TIMED_STEPS, max_new_tokens - 1)):
        before = decoder.replayed
        synchronize(loaded.device)
        begun = time.perf_counter()
        token = decoder(token).argmax(-1, keepdim=True)
        synchronize(loaded.device)
        taken.append((time.perf_counter() - begun, decoder.replayed > before))
    replayed = [seconds for seconds, was_replayed in taken if was_replayed]
    timed = replayed if len(replayed) >= every else [seconds for seconds, _ in taken[1:]]
    timed = timed[len(timed) % every :] if len(timed) >= every else timed
    if not timed:
        return None
    return SpeedReading(way="captured" if len(replayed) >= every else "eager", rate=len(timed) / sum(timed))
