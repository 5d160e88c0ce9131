"""Measure prompts of one shape with one cache: generated answers, or likelihoods against the full cache."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from transformers import Cache

from kvlab.cache import CompressedCache
from kvlab.common.token_ids import check_ids
from kvlab.evaluate.generate import Sampling, generate_answers
from kvlab.evaluate.plan import PlannedPrompt
from kvlab.evaluate.results.outcome import CacheMaker, Loaded, Outcome
from kvlab.evaluate.results.rows import PromptIdentity
from kvlab.evaluate.scoring.likelihood import compare, forced_log_probabilities, scored_bytes
from kvlab.evaluate.scoring.metrics import LIKELIHOOD_METRICS
from kvlab.evaluate.scoring.survival import HiddenTokenTracker
from kvlab.models.chat import Chat
from kvlab.models.placement import input_device
from kvlab.requests.compare import FULL, MethodChoice
from kvlab.tasks.sample import Sample
from kvlab.tasks.tokens import continuation_ids, hidden_positions, prompt_ids, start_ids


@dataclass(frozen=True)
class PreparedPrompt:
    """A generated and tokenized prompt."""

    identity: PromptIdentity
    sample: Sample
    context: list[int]
    question: list[int]
    continuation: list[int]
    hidden: tuple[int, ...] = ()  # positions of the tokens of hidden statements
    closing: int = 0  # last tokens of the question that end the user's turn in a chat

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt, including BOS and a forced continuation."""
        return len(self.context) + len(self.question) + len(self.continuation)

    def in_sight(self, question_aware: bool) -> int:
        """How many tokens are prefilled and compressed before the rest follows."""
        if question_aware and self.question:
            held_back = self.sample.hold_back and self.sample.hold_back + self.closing
            return len(self.context) + len(self.question) - held_back
        return len(self.context)

    @property
    def shape(self) -> tuple[object, ...]:
        """Prompts with equal shapes can run in one batch without padding."""
        sample = self.sample
        alone = self.identity if self.continuation or sample.temperature else None  # sampled answers run alone
        lengths = len(self.context), len(self.question), sample.hold_back, sample.max_new_tokens
        return *lengths, sample.stop, alone, bool(self.hidden)


def prepare(planned: PlannedPrompt, loaded: Loaded, chat: Chat | None = None) -> PreparedPrompt:
    """Generate and tokenize the prompt, in `chat` if given; a forced text is never put into a turn.

    Raises UserError for a token without an embedding in the model.
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
    start = len(start_ids(loaded.tokenizer))  # the template has its own
    moved = tuple(place + len(before) - start for place in hidden)
    return PreparedPrompt(planned.identity, sample, before + context[start:], question + after, [], moved, len(after))


class Measurer:
    """Run prompts with one choice after another; keeps the full cache's predictions for the last forced text."""

    def __init__(
        self, loaded: Loaded, make_cache: CacheMaker, question_aware: bool, prefill_chunk: int | None = None
    ) -> None:
        self.loaded = loaded
        self.make_cache = make_cache
        self.question_aware = question_aware
        self.prefill_chunk = prefill_chunk
        self._reference: tuple[PromptIdentity, torch.Tensor] | None = None

    def measure(self, prompts: Sequence[PreparedPrompt], choice: MethodChoice) -> list[Outcome]:
        """One outcome per prompt; all prompts must have one shape."""
        first = prompts[0]
        if first.continuation:
            return [self._force(first, choice)]
        cache = self.make_cache(choice)
        if isinstance(cache, CompressedCache):
            cache.rehearse_only(len(first.context))
        tracker = _track(prompts, cache, self.loaded)
        outcomes = generate_answers(
            self.loaded,
            [prompt.context + prompt.question for prompt in prompts],
            cache,
            first.in_sight(self.question_aware),
            first.sample.max_new_tokens,
            first.sample.stop,
            self.prefill_chunk,
            Sampling(first.sample.temperature, _seed(first.identity)) if first.sample.temperature else None,
        )
        if tracker is None:
            return outcomes
        pairs = zip(outcomes, tracker.survival(cache), strict=True)
        return [replace(outcome, survival=survival) for outcome, survival in pairs]

    def _force(self, prompt: PreparedPrompt, choice: MethodChoice) -> Outcome:
        outcome, predictions = self._predictions(prompt, choice)
        if choice.method == FULL.method:
            self._reference = (prompt.identity, predictions)
        if self._reference is None or self._reference[0] != prompt.identity:
            self._reference = (prompt.identity, self._predictions(prompt, FULL)[1])
        text_bytes = scored_bytes(self.loaded, prompt.continuation)
        return compare(outcome, predictions, self._reference[1], prompt.continuation, text_bytes)

    def _predictions(self, prompt: PreparedPrompt, choice: MethodChoice) -> tuple[Outcome, torch.Tensor]:
        predictions, outcome = forced_log_probabilities(
            self.loaded, prompt.context, prompt.continuation, self.make_cache(choice), prefill_chunk=self.prefill_chunk
        )
        return outcome, predictions


def _seed(identity: PromptIdentity) -> int:
    """Seed for sampling a prompt's answer: the same for every method, so that only the cache differs."""
    return zlib.crc32(f"{identity.seed}/{identity.task}/{identity.index}/{identity.content}".encode())


def _track(prompts: Sequence[PreparedPrompt], cache: Cache, loaded: Loaded) -> HiddenTokenTracker | None:
    """Attach an observer of the prompts' hidden tokens to the cache; None if nothing is hidden."""
    if not prompts[0].hidden or not isinstance(cache, CompressedCache):
        return None
    tracker = HiddenTokenTracker([prompt.hidden for prompt in prompts], input_device(loaded.model))
    cache.settings.observer = tracker
    return tracker
