"""A run's prompt after prefill and before its method's decision, the shared start of every rerun."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from kvlab.core.cache import CompressedCache, make_cache
from kvlab.core.cache.cache_copy import PromptCache, defer_decision
from kvlab.core.cache.fan_out.fan_out_cache import FanOutCache, shares_passes
from kvlab.core.cache.fan_out.fan_out_layer import Branch
from kvlab.core.cache.settings import Observer
from kvlab.core.contract.pipeline import Pipeline
from kvlab.core.methods import make_method
from kvlab.core.methods.wrappers.pin_tokens import keeping
from kvlab.core.methods.wrappers.read_back import reading_back
from kvlab.core.methods.wrappers.restore import giving_back
from kvlab.core.restore import Restore
from kvlab.engine.forward import Choose, Ended, chooser, decode_one, end_check, end_ids, prefill
from kvlab.engine.prompt import Continuation, continuation, encode_prompt
from kvlab.models.chat import chat_of
from kvlab.models.load import LoadedModel
from kvlab.requests.compare import CompareRequest

EVERYTHING = Restore(kind="heads")


@dataclass(frozen=True)
class Prompt:
    """The read prompt; `first` (V,) are the logits after it, independent of the decision.

    `choosing` creates the token chooser of one text, `has_ended` says whether its tokens end it.
    """

    loaded: LoadedModel
    tokens: int
    most: int
    prefix: PromptCache
    first: Tensor
    pipeline: Pipeline
    choosing: Callable[[], Choose]
    has_ended: Ended

    @property
    def layers(self) -> tuple[int, ...]:
        """The compressed layers."""
        return tuple(layer.layer_idx for layer in self.prefix.prompt_cache.compressed_layers())

    @property
    def heads(self) -> int:
        """Number of KV heads."""
        return int(self.prefix.prompt_cache.compressed_layers()[0].streams.heads)

    @property
    def reads_part(self) -> bool:
        """Whether the run has a reading, so that its decode steps leave slots out."""
        return self.prefix.prompt_cache.settings.reading is not None

    def cache(self, returned: Restore | None, observer: Observer | None = None) -> CompressedCache:
        """The run's cache after the prompt with `returned` restored; with `EVERYTHING`, the full cache."""
        cache = self.prefix.cache(giving_back(self.pipeline, returned, self.layers, self.most), observer)
        if returned is not None:
            cache.settings.reading = reading_back(cache.settings.reading, returned)
        return cache

    def write(self, returned: Restore | None, ended: Callable[[list[int]], bool]) -> list[int]:
        """Token ids of the greedy continuation, until `ended` returns true."""
        return self.write_together([returned], ended)[0]

    @torch.inference_mode()
    def write_together(self, returned: Sequence[Restore | None], ended: Callable[[list[int]], bool]) -> list[list[int]]:
        """Token ids of each greedy continuation, until `ended` returns true; all are rows of one batch."""
        caches = [self.cache(one) for one in returned]
        if len(caches) > 1 and not shares_passes(caches[0]):
            return [self.write(one, ended) for one in returned]
        writing = FanOutCache.of_filled(caches, self.loaded.device)
        texts: dict[Branch, list[int]] = {branch: [] for branch in writing.branches}
        choose = {branch: self.choosing() for branch in writing.branches}
        rows = self.first.expand(len(caches), -1)
        for index in range(self.most):
            for branch, row in zip(writing.branches, rows, strict=True):
                texts[branch].append(int(choose[branch](row)))
            last = index == self.most - 1
            over = [one for one in writing.branches if last or self.has_ended(texts[one]) or ended(texts[one])]
            writing.drop(over)
            if not writing.branches:
                break
            tokens = torch.tensor([[texts[branch][-1]] for branch in writing.branches], device=self.loaded.device)
            rows = self.loaded.model(tokens, past_key_values=writing, use_cache=True).logits[:, -1].float()
            for branch in writing.branches:
                if branch.error is not None:
                    raise branch.error
        return list(texts.values())

    def along(self, cache: CompressedCache, ids: list[int], step: Callable[[], None] = lambda: None) -> list[Tensor]:
        """Log-probabilities (V,) that predict each of `ids` when `cache` decodes them (forced)."""
        rows = [torch.log_softmax(self.first, -1)]
        for token in ids[:-1]:
            step()
            rows.append(decode_one(self.loaded, cache, torch.tensor(token, device=self.loaded.device)))
        return rows

    def decode(self, ids: list[int]) -> str:
        """The text of generated tokens, without special tokens and the end token."""
        return self._continuation(ids).text

    def texts(self, ids: list[int]) -> list[str]:
        """The text that each token adds."""
        return self._continuation(ids).pieces

    def _continuation(self, ids: list[int]) -> Continuation:
        return continuation(self.loaded.tokenizer, ids, end_ids(self.loaded))


def read_prompt(loaded: LoadedModel, request: CompareRequest) -> Prompt:
    """Prefill the prompt for the only choice of `request`. Raises UserError as a comparison does."""
    ids = encode_prompt(loaded, request.prompt, request.max_new_tokens, chat_of(request, loaded.tokenizer))
    choice = request.choices[0]
    method = make_method(choice.method, **choice.hyper_parameters)
    cache = make_cache(loaded, method, choice.budget, compress_every=request.compress_every, seed=request.seed)
    pipeline = keeping(cache.settings.pipeline, choice.force_keep)
    cache.settings.pipeline = giving_back(pipeline, None, (), 0)
    start = prefill(loaded, defer_decision(cache), ids)
    choosing = partial(chooser, loaded, ids, request.max_new_tokens, request.generation_config)
    has_ended = end_check(loaded, ids, request.generation_config)
    return Prompt(
        loaded,
        ids.shape[1],
        request.max_new_tokens,
        PromptCache(cache),
        start.next_logits,
        pipeline,
        choosing,
        has_ended,
    )
