"""Prompts of equal length read once for several caches, and the steps that follow, with the seconds of each cache."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate

import torch
from torch import Tensor

from kvlab.core.cache import CompressedCache
from kvlab.core.cache.fan_out_cache import FanOutCache, shares_passes
from kvlab.core.cache.fan_out_layer import Branch
from kvlab.engine.forward import before_every_layer
from kvlab.models.load import LoadedModel

Check = Callable[[], None]


def nothing() -> None:
    """Check nothing."""


def sharing_groups(caches: Sequence[CompressedCache]) -> list[list[int]]:
    """Numbers of the caches that share passes; a cache that cannot is a group of its own."""
    together = [number for number, cache in enumerate(caches) if shares_passes(cache)]
    alone = [[number] for number in range(len(caches)) if number not in together]
    return [*([together] if together else []), *alone]


@contextmanager
def failures_in_branches(fan_out: FanOutCache) -> Iterator[None]:
    """Suppress the error that a pass raises once every branch in it has failed: each branch holds its own."""
    try:
        yield
    except Exception:
        if not fan_out.branches or any(branch.error is None for branch in fan_out.branches):
            raise


class SharedPrompt:
    """Prompts (P, T) that `caches`, which can share passes, read together. Every cache then has P rows of the batch.

    A cache whose method raises is left out from then on, with the error in its branch; `branches` are all of them. Of
    the tokens beyond `in_sight` the first `decoded` are read one by one, as if the model had written them.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        caches: Sequence[CompressedCache],
        prompts: Sequence[list[int]],
        in_sight: int,
        prefill_chunk: int | None = None,
        check: Check = nothing,
        decoded: int = 0,
    ) -> None:
        self.loaded = loaded
        self.in_sight = in_sight
        self.check = check
        self.decoded = decoded
        self.device = loaded.device
        self.ids = torch.tensor(list(prompts), device=self.device)
        self.fan_out = FanOutCache(caches, self.device, timed=True)
        self.branches = list(self.fan_out.branches)
        self.ends = list(accumulate(self.fan_out.expect(in_sight, prefill_chunk)))
        self._common = self._begun = 0.0
        self._own: dict[Branch, float] = {}
        self._shares: dict[Branch, float] = dict.fromkeys(self.branches, 0.0)

    @torch.inference_mode()
    def read(self) -> Tensor:
        """Logits (R, V) after the prompts; tokens beyond `in_sight` are read by every cache for itself."""
        fan_out = self.fan_out
        start = 0
        begun = fan_out.now()
        with before_every_layer(self.loaded.model, self.check):
            for end in self.ends:
                logits = self._forward(self.ids[:, start:end])
                start = end
        self._common = fan_out.common_seconds(fan_out.now() - begun)
        fan_out.copy_recurrent_states()
        self._own = {branch: branch.own_seconds() for branch in self.branches}
        for branch in self.branches:
            branch.seconds = 0.0
        fan_out.take_failed()
        fan_out.split()
        branches = len(fan_out.branches)
        for column in self.ids[:, start : start + self.decoded].T.tolist():
            self.check()
            self.step(column * branches)
            branches = len(fan_out.branches)
        start += self.decoded
        if start == self.ids.shape[1]:
            return logits.repeat(branches, 1)
        return self._timed(lambda: self._forward(self.ids[:, start:].repeat(branches, 1)))

    @torch.inference_mode()
    def step(self, tokens: Sequence[int]) -> Tensor:
        """Logits (R, V) after one more token of every row; rows of caches that failed are left out."""
        given = torch.tensor(tokens, device=self.device)[:, None]
        return self._timed(lambda: self._forward(given))

    def prompt_seconds(self, branch: Branch) -> float:
        """Seconds its cache would take alone to read, read again and compress the prompts."""
        return self._common + self._own[branch]

    def decode_seconds(self, branch: Branch) -> float:
        """Seconds of its own layers after the prompts, and of the model by its share of the rows."""
        return self._shares[branch] + branch.seconds

    def _timed(self, forward: Callable[[], Tensor]) -> Tensor:
        """Run a pass; the model's part of its time is shared out by rows."""
        fan_out = self.fan_out
        before = sum(branch.seconds for branch in fan_out.branches)
        begun = fan_out.now()
        logits = forward()
        common = fan_out.now() - begun - sum(branch.seconds for branch in fan_out.branches) + before
        for branch in fan_out.branches:
            rows = branch.rows.stop - branch.rows.start
            self._shares[branch] += max(common, 0.0) * rows / fan_out.num_rows
        kept = [branch for branch in self.fan_out.branches if branch.error is None]
        if len(kept) < len(self.fan_out.branches):
            logits = torch.cat([logits[branch.rows] for branch in kept])
            self.fan_out.take_failed()
        return logits

    def _forward(self, ids: Tensor) -> Tensor:
        output = self.loaded.model(ids, past_key_values=self.fan_out, use_cache=True, logits_to_keep=1)
        return output.logits[:, -1].float()
