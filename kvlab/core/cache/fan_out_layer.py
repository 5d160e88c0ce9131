"""One layer of a fan-out cache, which hands states and queries to the same layer of every branch; and the branches."""

import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol, TypeVar

import torch
from torch import Tensor
from transformers.cache_utils import LinearAttentionLayer

from kvlab.core.attention import layer_handoff
from kvlab.core.cache.cache import CompressedCache
from kvlab.core.cache.cache_copy import take_states
from kvlab.core.cache.layers.layer_state import BesideRecurrent, LayerState, UnboundedLayer
from kvlab.core.cache.settings import synchronize
from kvlab.core.errors import is_out_of_memory

Result = TypeVar("Result")


@dataclass(eq=False)
class Branch:
    """A compressed cache that takes part in shared passes.

    `rows` are its rows of the batch: all of them while branches share a prompt. `seconds` is the time its own layers
    took, `charged` that of results it took over from other branches, which it would have computed alone. `error` ended
    it; other branches go on.
    """

    cache: CompressedCache
    rows: slice = field(default_factory=lambda: slice(None))
    seconds: float = 0.0
    charged: float = 0.0
    error: Exception | None = None

    def own_seconds(self) -> float:
        """Seconds its layers would take alone, including its second pass over the prompt."""
        return self.seconds + self.charged + self.cache.settings.second_pass_seconds

    def run(self, work: Callable[[], Result], now: Callable[[], float]) -> Result | None:
        """The result of `work`, timed by the clock `now`; None if it fails, which ends this branch.

        Out-of-memory errors pass through, because they concern all branches.
        """
        begun = now()
        try:
            return work()
        except Exception as error:
            if is_out_of_memory(error):
                raise
            self.error = error
            return None
        finally:
            self.seconds += now() - begun


Arrived = tuple[
    layer_handoff.AttendingLayer, Tensor, Tensor
]  # what attends in place of a branch's layer, its keys and values


class Serving(Protocol):
    """The cache that a layer belongs to."""

    is_split: bool
    branches: list[Branch]
    now: Callable[[], float]

    def check(self) -> None:
        """Raise the first error if every branch has failed."""


class FanOutLayer(UnboundedLayer):
    """While branches share a prompt, keys and values exist once and attention is computed once; later every branch
    attends with its own rows."""

    def __init__(self, serving: Serving, layer_idx: int) -> None:
        super().__init__()
        # A cycle would keep the caches of every pass alive until Python collects garbage, which it seldom does.
        self._serving = weakref.ref(serving)
        self.layer_idx = layer_idx
        self.is_initialized = True  # branches take dtype and device from their own first tokens
        self._arrived: dict[Branch, Arrived] = {}

    @property
    def serving(self) -> Serving:
        """The cache, which lives as long as its passes."""
        serving = self._serving()
        assert serving is not None
        return serving

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Append states (B, H, q, d) to every branch; kvlab's attention function then calls `attend`."""
        self._arrived.clear()
        if not self.serving.is_split:  # fused projections give views, which would keep more than these states alive
            key_states = key_states.contiguous()
            value_states = value_states.contiguous()
        for branch in self._active():
            branch.run(partial(self._append, branch, key_states, value_states), self.serving.now)
            first = next(iter(self._arrived), branch)
            if not self.serving.is_split and branch in self._arrived and first is not branch:
                table, first_table = (self._layer(one).buckets[0].table for one in (branch, first))
                table.share_states(first_table)
        layer_handoff.offer_layer(self, key_states)
        return key_states, value_states

    def _append(self, branch: Branch, key_states: Tensor, value_states: Tensor) -> None:
        rows = branch.rows
        keys, values = branch.cache.update(key_states[rows], value_states[rows], self.layer_idx)
        attending = layer_handoff.take_offered_layer(keys)
        assert attending is not None, "a compressed layer always attends by itself"
        self._arrived[branch] = attending, keys, values

    def attend(self, query: Tensor, key: Tensor, value: Tensor, call: layer_handoff.AttentionCall) -> Tensor:
        """Output (B, Hq, q, d). Raises the first error if every branch has failed."""
        if self.serving.is_split:
            outputs = []
            for branch in self.serving.branches:
                padding, hidden = (
                    None if part is None else part[branch.rows] for part in (call.padding, call.hidden_states)
                )
                output = self._attend(branch, query, call._replace(padding=padding, hidden_states=hidden))
                # The rows of a branch that failed are ignored from here on.
                outputs.append(torch.zeros_like(query[branch.rows]) if output is None else output)
            whole = torch.cat(outputs)
        else:
            results = layer_handoff.PassResults(self.serving.now)
            asks = [self._layer(branch).expect_statistics(results, query.shape[2]) for branch in self._active()]
            results.on_the_way = all(asks)
            shared = []
            for branch in self._active():
                results.charged = 0.0
                shared.append(self._attend(branch, query, call._replace(results=results)))
                branch.charged += results.charged
            whole = next((output for output in shared if output is not None), query)
        self.serving.check()
        return whole

    def _attend(self, branch: Branch, query: Tensor, call: layer_handoff.AttentionCall) -> Tensor | None:
        if branch.error is not None or branch not in self._arrived:
            return None
        layer, keys, values = self._arrived.pop(branch)
        return branch.run(lambda: layer.attend(query[branch.rows], keys, values, call), self.serving.now)

    def _active(self) -> list[Branch]:
        return [branch for branch in self.serving.branches if branch.error is None]

    def _layer(self, branch: Branch) -> LayerState:
        layer = branch.cache.layers[self.layer_idx]
        assert isinstance(layer, LayerState)
        return layer

    # transformers' Cache interface: all branches have seen equally many tokens

    def get_seq_length(self) -> int:
        """Tokens seen, padding included."""
        return self._layer(self._active()[0]).cumulative_length

    def reset(self) -> None:
        """Forget the text in every branch."""
        for branch in self.serving.branches:
            self._layer(branch).reset()


class FanOutHybridLayer(BesideRecurrent, FanOutLayer, LinearAttentionLayer):  # type: ignore[misc]  # of bases with unlike arguments
    """Compressed slots beside a recurrent state, which is the first branch's until `split`, then that of all rows."""

    def __init__(self, serving: Serving, layer_idx: int, layer: LinearAttentionLayer) -> None:
        LinearAttentionLayer.__init__(self, layer.number_of_states)
        FanOutLayer.__init__(self, serving, layer_idx)
        take_states(self, layer)


def time_behind(device: torch.device) -> float:
    """Seconds of a clock that waits for the device, so that differences measure its work."""
    synchronize(device)
    return time.perf_counter()
