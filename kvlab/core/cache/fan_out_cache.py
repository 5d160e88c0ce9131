"""A transformers `Cache` that serves several compressed caches.

Until a method drops something, all methods see the same pass over the prompt: keys, values and attention output of a
layer are computed once and handed to every branch. While decoding, the rows of the batch belong to branches, so one
pass of the model is a step of all of them.
"""

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from transformers.cache_utils import Cache

from kvlab.core.cache.cache import CompressedCache, HybridLayer
from kvlab.core.cache.cache_copy import copy_cache, join_layers, take_states
from kvlab.core.cache.fan_out_layer import Branch, FanOutHybridLayer, FanOutLayer, time_behind
from kvlab.core.cache.layers.compressed_layer import CompressedLayer
from kvlab.core.cache.settings import LayerSettings


def shares_passes(cache: CompressedCache) -> bool:
    """Whether a cache can share passes with others: not if its method compresses within the prompt's pass."""
    return not cache.settings.pipeline.block


class FanOutCache(Cache):
    """Serves the caches of one model: first a prompt that all of them share, then, after `split`, rows of their own.

    Layers that are not compressed (sliding windows, recurrent states) exist once. With `timed`, clocks wait for the
    device until `split`.
    """

    def __init__(self, caches: Sequence[CompressedCache], device: torch.device, timed: bool = False) -> None:
        first = caches[0]
        self.branches = [Branch(cache) for cache in caches]
        self.is_split = False
        self.now: Callable[[], float] = partial(time_behind, device) if timed else time.perf_counter
        self.second_pass_seconds = 0.0  # of all second passes over the prompt, run within its first pass
        for index, layer in enumerate(first.layers):
            if not isinstance(layer, CompressedLayer):
                for cache in caches[1:]:
                    cache.layers[index] = layer
        # The layers of this cache serve those of the first branch and their likes.
        layers: list[Any] = []
        for index, layer in enumerate(first.layers):
            if isinstance(layer, HybridLayer):
                layers.append(FanOutHybridLayer(self, index, layer))
            else:
                layers.append(FanOutLayer(self, index) if isinstance(layer, CompressedLayer) else layer)
        super().__init__(layers=layers)

    @classmethod
    def of_filled(cls, caches: Sequence[CompressedCache], device: torch.device) -> "FanOutCache":
        """Serve caches that have read prompts of one length apart from each other."""
        others = [[cache.layers[index] for cache in caches] for index in range(len(caches[0].layers))]
        joined = cls(caches, device)
        joined.is_split = True
        for index, layers in enumerate(others):
            layer = joined.layers[index]
            if isinstance(layer, FanOutHybridLayer):
                take_states(layer, join_layers(layers))
            elif not isinstance(layer, FanOutLayer):
                joined.layers[index] = join_layers(layers)
        joined._number_rows([len(cache.compressed_layers()[0].lengths) for cache in caches])
        return joined

    def expect(self, tokens: int, chunk: int | None = None) -> list[int]:
        """Announce a prompt to every branch; see `CompressedCache.expect`."""
        sizes = [branch.cache.expect(tokens, chunk) for branch in self.branches]
        return sizes[0]

    @property
    def settings(self) -> LayerSettings | None:
        """Settings of the only branch; None if there are several."""
        return self.branches[0].cache.settings if len(self.branches) == 1 else None

    @property
    def num_rows(self) -> int:
        """Rows of the batch after `split`."""
        return sum(branch.rows.stop - branch.rows.start for branch in self.branches)

    def copy_recurrent_states(self) -> None:
        """Give every branch a copy of the recurrent states beside its slots, which the first branch's layers hold.

        Call it after the prompt's last pass, before branches leave.
        """
        first, *others = (branch.cache for branch in self.branches)
        for index, layer in enumerate(self.layers):
            if isinstance(layer, FanOutHybridLayer):
                for cache in others:
                    take_states(cache.layers[index], first.layers[index], copied=True)

    def follow_first(self) -> None:
        """Use the recurrent states that the first branch's layers hold now."""
        for index, layer in enumerate(self.layers):
            if isinstance(layer, FanOutHybridLayer):
                take_states(layer, self.branches[0].cache.layers[index])

    def split(self) -> None:
        """Give every branch rows of its own, in order; the prompt's rows are repeated for each."""
        rows = len(self.branches[0].cache.compressed_layers()[0].lengths)
        self.follow_first()
        self._select_others(list(range(rows)) * len(self.branches))
        self.is_split = True
        self.now = time.perf_counter
        self._number_rows([rows] * len(self.branches))

    def common_seconds(self, seconds: float) -> float:
        """The part of `seconds` that the model spent outside all branches and second passes."""
        return max(seconds - self.second_pass_seconds - sum(branch.seconds for branch in self.branches), 0.0)

    def fork(self, branch: Branch) -> Branch:
        """A new branch, with the last rows of the batch, that continues from the state of `branch`, unobserved."""
        new_branch = Branch(copy_cache(branch.cache))
        every = list(range(self.num_rows))
        self._select_others(every + every[branch.rows])
        self.branches.append(new_branch)
        self._number_rows([self._count(one) for one in self.branches[:-1]] + [self._count(branch)])
        return new_branch

    def drop(self, leaving: Sequence[Branch]) -> None:
        """Remove branches and their rows."""
        kept = [branch for branch in self.branches if branch not in leaving]
        if self.is_split and len(kept) < len(self.branches):
            every = list(range(self.num_rows))
            self._select_others([row for branch in kept for row in every[branch.rows]])
        self.branches = kept
        if self.is_split:
            self._number_rows([self._count(branch) for branch in kept])

    def keep_rows(self, branch: Branch, rows: Sequence[int]) -> None:
        """Let a branch have only the `rows` that are numbered within it; a row may repeat."""
        every = list(range(self.num_rows))
        chosen = [every[branch.rows][row] for row in rows]
        self._select_others([row for one in self.branches for row in (chosen if one is branch else every[one.rows])])
        for layer in branch.cache.compressed_layers():  # the others belong to several caches
            layer.batch_select_indices(torch.tensor(rows, device=layer.device))
        self._number_rows([len(rows) if one is branch else self._count(one) for one in self.branches])

    def check(self) -> None:
        """Raise the first error if every branch has failed."""
        errors = [branch.error for branch in self.branches]
        if errors and errors[0] is not None and None not in errors:
            raise errors[0]

    def take_failed(self) -> list[Branch]:
        """Remove and return the branches that have failed."""
        failed = [branch for branch in self.branches if branch.error is not None]
        self.drop(failed)
        return failed

    def _count(self, branch: Branch) -> int:
        return branch.rows.stop - branch.rows.start

    def _number_rows(self, counts: Sequence[int]) -> None:
        begun = 0
        for branch, count in zip(self.branches, counts, strict=True):
            branch.rows = slice(begun, begun + count)
            begun += count

    def _select_others(self, rows: list[int]) -> None:
        """Select or repeat rows of the layers that are not compressed."""
        for index, layer in enumerate(self.layers):
            if isinstance(layer, FanOutHybridLayer) or not isinstance(layer, FanOutLayer):
                self.layers[index] = join_layers([layer], rows)


def caches_in(given: Any) -> list[CompressedCache]:
    """The compressed caches behind what a model is given as `past_key_values`, failed branches left out."""
    if isinstance(given, FanOutCache):
        return [branch.cache for branch in given.branches if branch.error is None]
    return [given] if isinstance(given, CompressedCache) else []
