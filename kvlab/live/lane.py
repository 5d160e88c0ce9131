"""One lane of a live session: a cache, what it has read, and its answers."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from kvlab.cache import CompressedCache, make_cache
from kvlab.cache.cache_copy import copy_cache
from kvlab.live.merges import ContextMerges, ContextShares, context_shares
from kvlab.methods import make_method
from kvlab.methods.wrappers.pin_tokens import keeping
from kvlab.models.load import LoadedModel
from kvlab.requests.compare import MethodChoice

UNFINISHED = "\ufffd"  # what a tokenizer decodes an incomplete character to


@dataclass(eq=False)
class Lane:
    """A method with its own cache. `tokens_seen` counts all tokens read; `answer` are ids of the present answer.

    `follows` is whether its text equals the full cache's so far. `settled` is a copy of the cache as it was after the
    context, `merges` what was merged then, and `before` a copy from before the last question, with the tokens seen and
    `follows` of then.
    """

    choice: MethodChoice
    cache: CompressedCache
    merges: ContextMerges
    tokens_seen: int = 0
    answer: list[int] = field(default_factory=list)
    text: str = ""
    follows: bool = True
    failure: str = ""
    settled: CompressedCache | None = None
    before: tuple[CompressedCache, int, bool] | None = None

    @classmethod
    def new(cls, loaded: LoadedModel, choice: MethodChoice, seed: int, tokens: int) -> Lane:
        """A lane that has read nothing yet of a context of so many tokens.

        Raises UserError if the method refuses the model or the budget.
        """
        method = make_method(choice.method, **choice.hyper_parameters)
        cache = make_cache(loaded, method, choice.budget, seed=seed)
        cache.settings.pipeline = keeping(cache.settings.pipeline, choice.force_keep)
        cache.settings.observer = merges = ContextMerges(tokens)
        return cls(choice, cache, merges)

    def settle(self) -> None:
        """Remember the state after the context."""
        self.cache.settings.observer = None  # later decisions run in place, which an observer prevents
        self.tokens_seen, self.settled = self.merges.tokens, copy_cache(self.cache)

    def restart(self) -> None:
        """Return to the state after the context."""
        if self.settled is not None:
            self.cache, self.tokens_seen, self.follows = copy_cache(self.settled), self.merges.tokens, True
        self.before, self.answer, self.text = None, [], ""

    def fail(self, error: Exception) -> None:
        """Note the error that ends the lane."""
        self.failure = str(error) or type(error).__name__

    def begin_answer(self) -> None:
        """Remember the state from before a question."""
        self.before = copy_cache(self.cache), self.tokens_seen, self.follows
        self.answer, self.text = [], ""

    def take_back(self) -> None:
        """Return to the state from before the last question; nothing if there was none."""
        if self.before is not None:
            self.cache, self.tokens_seen, self.follows = self.before
            self.before, self.answer, self.text = None, [], ""

    def position_ids(self, tokens: int, device: torch.device) -> Tensor:
        """Positions (1, q) of the next tokens."""
        return torch.arange(self.tokens_seen, self.tokens_seen + tokens, device=device)[None]

    def write(self, token: int, loaded: LoadedModel) -> str:
        """Append a token to the answer; returns the text it adds, once the characters are complete."""
        self.answer.append(token)
        whole = str(loaded.tokenizer.decode(self.answer, skip_special_tokens=True))
        if whole.endswith(UNFINISHED):
            return ""
        added, self.text = whole[len(self.text) :], whole
        return added

    def context_shares(self) -> ContextShares:
        """What all layers and heads still hold of the context."""
        return context_shares(self.cache.compressed_layers(), self.merges.tokens, self.merges)

    @property
    def live_bytes(self) -> int:
        """Bytes of the cache's valid slots."""
        return self.cache.memory().live_bytes
