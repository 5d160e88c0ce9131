"""How fast every run of a comparison decodes: further readings, in turns over the runs, once all are recorded.

A reading alone says little on a machine that also does other things. In turns, what slows one run slows all. Where the
device is a GPU, steps that can be captured are replayed (`kvlab.engine.cuda_graphs`), for launching them one by one
would cost more than the work; a run whose steps cannot be captured is read as it is, and each reading says which it
was.
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

WARM_PERIODS, WARM_STEPS = 3, 2  # a kind of step is captured when it comes up for the second time

Maker = Callable[[], CompressedCache]


def read_in_turns(
    paths: Sequence[Path],
    makers: Sequence[Maker],
    loaded: LoadedModel,
    ids: Tensor,
    chunk: int | None,
    allowed: float,
    watch: Watch,
) -> None:
    """Add readings to the record of each finished run, as many as `turns_within` the `allowed` seconds.

    `makers` make the cache of each run. Nothing else of a record changes. Runs that generate fewer than three tokens
    have no step to time.
    """
    records = [read_record(path) for path in paths]
    if any(record.status != "complete" or record.decode_tokens_per_second is None for record in records):
        return
    expected = sum((r.seconds_prefill or 0) + TIMED_STEPS / (r.decode_tokens_per_second or 1) for r in records)
    captures = loaded.device.type == "cuda" and not hasattr(loaded.model, "hf_device_map")
    for _ in range(turns_within(allowed, expected)):
        for index, make in enumerate(makers):
            watch.advance("timing in turns", 0)
            reading = read_speed(loaded, make(), ids, records[index].max_new_tokens, chunk, captures)
            if reading is not None:
                readings = (*records[index].speed_readings, reading)
                records[index] = records[index].model_copy(update={"speed_readings": readings})
                write_record(paths[index], records[index])


@torch.inference_mode()
def read_speed(
    loaded: LoadedModel,
    cache: CompressedCache,
    ids: Tensor,
    max_new_tokens: int,
    chunk: int | None = None,
    captures: bool = False,
) -> SpeedReading | None:
    """One reading: tokens a second of greedy steps after the prompt (1, T), whole periods of decisions.

    None where no step is left once the first ones are set aside. With `captures`, replayed steps alone count where any
    were replayed.
    """
    every = cache.settings.period
    first = prefill(loaded, cache, ids, chunk).next_logprobs
    decoder = CapturedDecoder(loaded.model, cache)
    if not captures:
        decoder.why_not = "plain steps were asked for"
    token, taken = first.argmax().view(1, 1), []
    for _ in range(min(WARM_PERIODS * every + WARM_STEPS + TIMED_STEPS, max_new_tokens - 1)):
        before = decoder.replayed
        synchronize(loaded.device)
        begun = time.perf_counter()
        token = decoder(token).argmax(-1, keepdim=True)
        synchronize(loaded.device)
        taken.append((time.perf_counter() - begun, decoder.replayed > before))
    replayed = [seconds for seconds, again in taken if again]
    kept = replayed if len(replayed) >= every else [seconds for seconds, _ in taken[1:]]
    kept = kept[len(kept) % every :] if len(kept) >= every else kept
    if not kept:
        return None
    return SpeedReading(way="captured" if len(replayed) >= every else "eager", rate=len(kept) / sum(kept))
