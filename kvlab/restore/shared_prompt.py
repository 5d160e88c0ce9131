"""A run's prompt after prefill and before its method's decision, the shared start of every rerun."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from kvlab.cache import CompressedCache, make_cache
from kvlab.cache.prefill.shared_prefix import Prefix, hold
from kvlab.cache.settings import Observer
from kvlab.engine.forward import decode_one, end_ids, greedy, prefill
from kvlab.engine.prompt import Continuation, continuation, encode_prompt
from kvlab.engine.token_choice import Choose, chooser
from kvlab.methods import make_method
from kvlab.methods.core.pipeline import Pipeline
from kvlab.methods.wrappers.pin_tokens import keeping
from kvlab.methods.wrappers.restore import giving_back
from kvlab.models.chat import chat_of
from kvlab.models.load import LoadedModel
from kvlab.requests.compare import CompareRequest
from kvlab.requests.restore import Return

EVERYTHING = Return(kind="heads")


@dataclass(frozen=True)
class Prompt:
    """The read prompt; `first` (V,) are the logits after it, independent of the decision.

    `choosing` creates the token chooser of one text.
    """

    loaded: LoadedModel
    tokens: int
    most: int
    prefix: Prefix
    first: Tensor
    pipeline: Pipeline
    choosing: Callable[[], Choose]

    @property
    def layers(self) -> tuple[int, ...]:
        return tuple(layer.layer_idx for layer in self.prefix.held.compressed_layers())

    @property
    def heads(self) -> int:
        return int(self.prefix.held.compressed_layers()[0].streams.heads)

    def cache(self, returned: Return | None, observer: Observer | None = None) -> CompressedCache:
        """The run's cache after the prompt with `returned` restored; with `EVERYTHING`, the full cache."""
        return self.prefix.cache(giving_back(self.pipeline, returned, self.layers, self.most), observer)

    def write(self, returned: Return | None, ended: Callable[[list[int]], bool]) -> list[int]:
        """Token ids of the greedy continuation, until `ended` returns true."""
        ids: list[int] = []
        own = greedy(self.loaded, self.cache(returned), self.first, self.most, lambda: None, self.choosing())
        for token, _ in own:
            ids.append(token)
            if ended(ids):
                break
        return ids

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
    start = prefill(loaded, hold(cache), ids)
    choosing = partial(chooser, loaded, ids, request.max_new_tokens, request.generation_config)
    return Prompt(loaded, ids.shape[1], request.max_new_tokens, Prefix(cache), start.next_logits, pipeline, choosing)
