"""One lane of a live session: a cache, what it has read, and its answers."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from kvlab.core.cache import CompressedCache, make_cache
from kvlab.core.cache.cache_copy import copy_cache
from kvlab.core.choice import MethodChoice
from kvlab.core.methods import make_method
from kvlab.core.methods.wrappers.choice import check_tokens, reading_with_changes, with_changes
from kvlab.live.merges import ContextMerges, ContextShares, context_shares
from kvlab.models.answer_text import decode_answer
from kvlab.models.load import LoadedModel

MOST_TOKENS = 1 << 20  # after the context, in heads that drop nothing
UNFINISHED = "\ufffd"  # what a tokenizer decodes an incomplete character to


@dataclass(frozen=True)
class Checkpoint:
    """A lane as it was before a question; the cache is not changed any more."""

    cache: CompressedCache
    tokens_seen: int
    follows: bool


@dataclass(eq=False)
class Lane:
    """A method with its own cache. `tokens_seen` counts all tokens read; `answer` are ids of the present answer.

    `follows` is whether its text equals the full cache's so far. `merges` is what was merged when the context was
    compressed, `checkpoints` the state before some of the questions, and always before the first.
    """

    choice: MethodChoice
    cache: CompressedCache
    merges: ContextMerges
    tokens_seen: int = 0
    answer: list[int] = field(default_factory=list)
    text: str = ""
    follows: bool = True
    failure: str = ""
    checkpoints: dict[int, Checkpoint] = field(default_factory=dict)

    @classmethod
    def new(cls, loaded: LoadedModel, choice: MethodChoice, seed: int, tokens: int) -> Lane:
        """A lane that has read nothing yet of a context of so many tokens.

        Raises UserError if the method refuses the model or the budget, or for a changed token outside the context.
        """
        check_tokens(choice, tokens)
        method = make_method(choice.method, **choice.hyper_parameters)
        cache = make_cache(loaded, method, choice.budget, seed=seed)
        layers = [layer.layer_idx for layer in cache.compressed_layers()]
        cache.settings.pipeline = with_changes(cache.settings.pipeline, choice, layers, MOST_TOKENS)
        cache.settings.reading = reading_with_changes(cache.settings.reading, choice)
        cache.settings.observer = merges = ContextMerges(tokens)
        return cls(choice, cache, merges)

    def settle(self) -> None:
        """Remember the state after the context."""
        self.cache.settings.observer = None  # later decisions run in place, which an observer prevents
        self.tokens_seen = self.merges.tokens
        self.checkpoints = {}
        self._remember(0)
        self.cache = copy_cache(self.cache)  # lanes that read together share their layers without slots

    def return_to(self, turn: int) -> None:
        """Return to the state before question `turn`, which has a checkpoint; a lane that never settled stays."""
        self.answer = []
        self.text = ""
        if turn in self.checkpoints:
            known = self.checkpoints[turn]
            self.cache = copy_cache(known.cache)
            self.tokens_seen = known.tokens_seen
            self.follows = known.follows
            self.checkpoints = {number: one for number, one in self.checkpoints.items() if number <= turn}

    def fork(self) -> Lane:
        """A lane as this one was after the context; the context's checkpoint is shared."""
        other = replace(self, checkpoints={turn: one for turn, one in self.checkpoints.items() if turn == 0})
        other.return_to(0)
        return other

    def _remember(self, turn: int) -> None:
        self.checkpoints[turn] = Checkpoint(copy_cache(self.cache), self.tokens_seen, self.follows)

    def fail(self, error: Exception) -> None:
        """Note the error that ends the lane."""
        self.failure = str(error) or type(error).__name__

    def begin_answer(self, turn: int) -> None:
        """Remember the state from before question `turn`."""
        if turn not in self.checkpoints:
            self._remember(turn)
        self.answer = []
        self.text = ""

    def write(self, token: int, loaded: LoadedModel) -> str:
        """Append a token to the answer; returns the text it adds, once the characters are complete."""
        self.answer.append(token)
        whole = decode_answer(loaded.tokenizer, self.answer)
        if whole.endswith(UNFINISHED):
            return ""
        added = whole[len(self.text) :]
        self.text = whole
        return added

    def context_shares(self) -> ContextShares:
        """Shares of layers and heads that hold each token of the context."""
        return context_shares(self.cache.compressed_layers(), self.merges.tokens, self.merges)

    @property
    def live_bytes(self) -> int:
        """Bytes of the cache's valid slots."""
        return self.cache.memory().live_bytes
