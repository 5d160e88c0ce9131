"""Decode with captured steps: capture the device's work for a token once and replay it for later tokens.

With a fixed budget a step either ends with a decision or does not. Each kind does the same work on the same tensors
every time, so it is captured on its second occurrence in the same state: as a CUDA graph on CUDA, elsewhere as a graph
of aten operations. The host only picks the kind, using its own counters.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Protocol

import torch
from torch import Tensor
from torch._guards import TracingContext, tracing
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from transformers import PreTrainedModel

from kvlab.core.cache import CompressedCache
from kvlab.core.cache.replay import count_step, host_counts, kind_of_next, put_host_counts, replay_obstacle

MOST_KINDS = 8  # captured at once: two are enough unless a table grows by blocks


class Captured(Protocol):
    """Captured work; the step it was captured from has been executed."""

    output: Tensor

    def replay(self) -> Tensor: ...


class CudaGraph:
    """Work captured as a CUDA graph."""

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
        self._graphs: dict[Hashable, Captured] = {}
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
