"""Measure prompts of one shape under one cache: generated answers, or likelihoods against the full cache."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from transformers import Cache

from kvlab.cache import CompressedCache
from kvlab.common.token_ids import check_ids
from kvlab.evaluate.generate import Drawing, generate_answers
from kvlab.evaluate.plan import PlannedPrompt
from kvlab.evaluate.results.outcome import CacheMaker, Loaded, Outcome
from kvlab.evaluate.results.rows import PromptIdentity
from kvlab.evaluate.scoring.likelihood import compare, forced_log_probabilities, scored_bytes
from kvlab.evaluate.scoring.metrics import LIKELIHOOD_METRICS
from kvlab.evaluate.scoring.survival import Followed
from kvlab.models.chat import Chat
from kvlab.models.placement import input_device
from kvlab.requests.compare import FULL, MethodChoice
from kvlab.tasks.hidden_question import hidden_positions
from kvlab.tasks.sample import Sample
from kvlab.tasks.tokens import continuation_ids, prompt_ids, start_ids


@dataclass(frozen=True)
class PreparedPrompt:
    """A prompt made and tokenized."""

    identity: PromptIdentity
    sample: Sample
    context: list[int]
    question: list[int]
    continuation: list[int]
    hidden: tuple[int, ...] = ()  # positions of the tokens of hidden statements
    closing: int = 0  # last tokens of the question that end the user's turn in a chat

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt, BOS and a forced continuation included."""
        return len(self.context) + len(self.question) + len(self.continuation)

    def in_sight(self, question_aware: bool) -> int:
        """Return how many tokens are prefilled and compressed before the rest goes in."""
        if question_aware and self.question:
            held_back = self.sample.hold_back and self.sample.hold_back + self.closing
            return len(self.context) + len(self.question) - held_back
        return len(self.context)

    @property
    def shape(self) -> tuple[object, ...]:
        """Prompts of one shape may run in one batch without padding."""
        sample = self.sample
        alone = self.identity if self.continuation or sample.temperature else None  # what is drawn runs by itself
        hides = bool(self.hidden)
        return (
            len(self.context),
            len(self.question),
            sample.hold_back,
            sample.max_new_tokens,
            sample.stop,
            alone,
            hides,
        )


def prepare(planned: PlannedPrompt, loaded: Loaded, chat: Chat | None = None) -> PreparedPrompt:
    """Return the prompt made and tokenized, in `chat` where one is given; a text that is forced is never a turn.

    Raises UserError for a token that the model has no embedding for.
    """
    prepared = _prepared(planned, loaded, chat)
    check_ids([*prepared.context, *prepared.question, *prepared.continuation], loaded.model, loaded.tokenizer)
    return prepared


def _prepared(planned: PlannedPrompt, loaded: Loaded, chat: Chat | None) -> PreparedPrompt:
    sample = planned.make()
    context, question = prompt_ids(loaded.tokenizer, sample)
    forced = sample.metric in LIKELIHOOD_METRICS
    continuation = continuation_ids(loaded.tokenizer, sample) if forced else []
    hidden = tuple(hidden_positions(loaded.tokenizer, sample))
    if chat is None or forced or not sample.chat:
        return PreparedPrompt(planned.identity, sample, context, question, continuation, hidden)
    before, after = chat.around()
    start = len(start_ids(loaded.tokenizer))  # the template puts its own
    moved = tuple(place + len(before) - start for place in hidden)
    return PreparedPrompt(planned.identity, sample, before + context[start:], question + after, [], moved, len(after))


class Measurer:
    """Runs prompts under one choice after another; keeps the full cache's predictions of the latest forced text."""

    def __init__(
        self, loaded: Loaded, make_cache: CacheMaker, question_aware: bool, prefill_chunk: int | None = None
    ) -> None:
        self.loaded = loaded
        self.make_cache = make_cache
        self.question_aware = question_aware
        self.prefill_chunk = prefill_chunk
        self._reference: tuple[PromptIdentity, torch.Tensor] | None = None

    def measure(self, prompts: Sequence[PreparedPrompt], choice: MethodChoice) -> list[Outcome]:
        """Return one outcome a prompt; all prompts must be of one shape."""
        first = prompts[0]
        if first.continuation:
            return [self._force(first, choice)]
        cache = self.make_cache(choice)
        if isinstance(cache, CompressedCache):
            cache.rehearse_only(len(first.context))
        followed = _follow(prompts, cache, self.loaded)
        outcomes = generate_answers(
            self.loaded,
            [prompt.context + prompt.question for prompt in prompts],
            cache,
            first.in_sight(self.question_aware),
            first.sample.max_new_tokens,
            first.sample.stop,
            self.prefill_chunk,
            Drawing(first.sample.temperature, _seed(first.identity)) if first.sample.temperature else None,
        )
        if followed is None:
            return outcomes
        found = followed.survival(cache)
        return [replace(outcome, survival=survival) for outcome, survival in zip(outcomes, found, strict=True)]

    def _force(self, prompt: PreparedPrompt, choice: MethodChoice) -> Outcome:
        outcome, found = self._predictions(prompt, choice)
        if choice.method == FULL.method:
            self._reference = (prompt.identity, found)
        if self._reference is None or self._reference[0] != prompt.identity:
            self._reference = (prompt.identity, self._predictions(prompt, FULL)[1])
        text_bytes = scored_bytes(self.loaded, prompt.continuation)
        return compare(outcome, found, self._reference[1], prompt.continuation, text_bytes)

    def _predictions(self, prompt: PreparedPrompt, choice: MethodChoice) -> tuple[Outcome, torch.Tensor]:
        found, outcome = forced_log_probabilities(
            self.loaded, prompt.context, prompt.continuation, self.make_cache(choice), prefill_chunk=self.prefill_chunk
        )
        return outcome, found


def _seed(identity: PromptIdentity) -> int:
    """What a prompt's answer is drawn with: the same under every method, so that only the cache differs."""
    return zlib.crc32(f"{identity.seed}/{identity.task}/{identity.index}/{identity.content}".encode())


def _follow(prompts: Sequence[PreparedPrompt], cache: Cache, loaded: Loaded) -> Followed | None:
    """An observer of the prompts' hidden tokens, already watching the cache; None where nothing is hidden."""
    if not prompts[0].hidden or not isinstance(cache, CompressedCache):
        return None
    followed = Followed([prompt.hidden for prompt in prompts], input_device(loaded.model))
    cache.settings.observer = followed
    return followed
