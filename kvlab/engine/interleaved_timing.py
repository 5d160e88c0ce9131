"""Measure the decode speed of every run of a comparison, interleaved, after all are recorded.

A single reading means little on a busy machine; interleaved, a slowdown affects all runs alike. On a GPU, steps that
can be captured are replayed, because launching them one by one costs more than the work; other runs decode eagerly, and
each reading says which it was.
"""

import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch._guards import TracingContext, tracing
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from transformers import PreTrainedModel

from kvlab.common.limits import TIMED_STEPS, turns_within
from kvlab.core.cache import CompressedCache
from kvlab.core.cache.cache_copy import copy_cache
from kvlab.core.cache.replay import count_step, host_counts, kind_of_next, put_host_counts, replay_obstacle
from kvlab.core.cache.settings import synchronize
from kvlab.engine.progress import Watch
from kvlab.models.load import LoadedModel
from kvlab.trace.record import read_record, write_record
from kvlab.trace.schema import SpeedReading

MOST_KINDS = 8  # captured at once: two are enough unless a table grows by blocks


class CudaGraph:
    """Work captured as a CUDA graph; the step it was captured from has been executed."""

    def __init__(self, work: Callable[[], Tensor]) -> None:
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self.output = work()
        self._graph.replay()  # capturing runs nothing

    def replay(self) -> Tensor:
        self._graph.replay()
        return self.output


class OperationGraph:
    """Work captured as a list of aten operations with host values baked in, like a CUDA graph but on any device."""

    def __init__(self, work: Callable[[], Tensor]) -> None:
        done: list[Tensor] = []

        def traced() -> Tensor:
            done.append(work())
            return done[0]

        # Without its own context every operation would create a FakeTensorMode, which takes half of the time.
        with tracing(TracingContext(FakeTensorMode())):
            self._graph = make_fx(traced)()
        self.output = done[0].clone()

    def replay(self) -> Tensor:
        self.output = self._graph()
        return self.output


class CapturedDecoder:
    """Decode one token per row over a compressed cache that holds its prompt.

    `position_ids` (B, 1) are those of the next tokens; default: the cache's sequence length. A step that cannot be
    captured runs eagerly, and `why_not` gives the reason. The prompt and the steps need the same autograd mode.
    """

    def __init__(self, model: PreTrainedModel, cache: CompressedCache, position_ids: Tensor | None = None) -> None:
        self.model = model
        self.cache = cache
        self.why_not = replay_obstacle(cache)
        self.replayed = 0
        rows = len(cache.compressed_layers()[0].lengths) if not self.why_not else 1
        start = torch.full((rows, 1), cache.get_seq_length()) if position_ids is None else position_ids
        self._position = start.to(model.device, torch.int64, copy=True)
        self._token: Tensor | None = None
        self._graphs: dict[Hashable, CudaGraph | OperationGraph] = {}
        self._seen_kinds: set[Hashable] = set()

    def __call__(self, token: Tensor) -> Tensor:
        """Logits (B, V) after `token` (B, 1), valid until the next call."""
        if self._token is None:
            self._token = token.clone()
        self._token.copy_(token)
        kind = None if self.why_not else kind_of_next(self.cache)
        if kind in self._graphs:
            output = self._graphs[kind].replay()
            count_step(self.cache)
            self.replayed += 1
            return output
        if kind is None or kind not in self._seen_kinds or len(self._graphs) == MOST_KINDS:
            self._seen_kinds.add(kind)
            return self._pass()
        # Capture this step, which also executes it.
        capture = CudaGraph if self.model.device.type == "cuda" else OperationGraph
        before = host_counts(self.cache)
        try:
            self._graphs[kind] = capture(self._pass)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            self.why_not = f"the step could not be captured: {str(error).strip().splitlines()[0][:160]}"
            put_host_counts(self.cache, before)
            return self._pass()
        return self._graphs[kind].output

    def _pass(self) -> Tensor:
        output = self.model(self._token, position_ids=self._position, past_key_values=self.cache, use_cache=True)
        self._position += 1
        return output.logits[:, -1]


# a kind of step is captured on its second occurrence
WARM_PERIODS = 3
WARM_STEPS = 2


@dataclass(frozen=True)
class TimedRun:
    """A finished run to be timed: its folder, its cache after the prompt, and the first token of its own text.

    `recording_seconds` is what recording added to a decode step; None if none was recorded.
    """

    path: Path
    prompt_cache: CompressedCache
    token: int
    recording_seconds: float | None


def time_interleaved(runs: Sequence[TimedRun], loaded: LoadedModel, allowed: float, watch: Watch) -> None:
    """Add decode speeds to the record of each run: one eager reading, then as many more as the `allowed` seconds give.

    Each reading starts from a copy of the cache after the prompt. Runs that generate fewer than three tokens have no
    step to time.
    """
    watch.forecast.left["timing"] = 2 * len(runs)  # most often there is at least one more turn
    begun = time.perf_counter()
    for run in runs:
        _read_speed(run, loaded, watch)
    turn = time.perf_counter() - begun
    turns = turns_within(allowed - turn, turn)
    watch.forecast.left["timing"] = turns * len(runs)
    captures = loaded.device.type == "cuda" and not hasattr(loaded.model, "hf_device_map")
    for _ in range(turns):
        for run in runs:
            _read_speed(run, loaded, watch, captures, first=False)


def _read_speed(run: TimedRun, loaded: LoadedModel, watch: Watch, captures: bool = False, first: bool = True) -> None:
    """Add a reading to the run's record; the first also gives the speed while recording."""
    watch.advance("timing in turns")
    most = read_record(run.path).max_new_tokens - 1
    reading = measure_speed(loaded, copy_cache(run.prompt_cache), run.token, most, captures)
    if reading is None:
        return
    record = read_record(run.path)
    if first:
        extra = run.recording_seconds
        recorded = None if extra is None else 1 / (1 / reading.rate + extra)
        changed = {"decode_tokens_per_second": reading.rate, "recorded_tokens_per_second": recorded}
        write_record(run.path, record.model_copy(update=changed))
    else:
        write_record(run.path, record.model_copy(update={"speed_readings": (*record.speed_readings, reading)}))


@torch.inference_mode()
def measure_speed(
    loaded: LoadedModel, cache: CompressedCache, first: int, most: int, captures: bool = False
) -> SpeedReading | None:
    """Tokens per second of greedy steps from token `first` on, at most `most` of them, over whole periods of decisions.

    `cache` has read the prompt and changes. None if no step is left after warm-up. With `captures`, only replayed steps
    count if there are any.
    """
    every = cache.settings.period
    decoder = CapturedDecoder(loaded.model, cache)
    if not captures:
        decoder.why_not = "capturing is disabled"
    token = torch.tensor([[first]], device=loaded.device)
    taken: list[tuple[float, bool]] = []
    timed_steps = max(TIMED_STEPS, every)
    warm = WARM_PERIODS * every + WARM_STEPS if captures and not decoder.why_not else 1
    for _ in range(min(warm + timed_steps, most)):
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
