"""Measure prompts of one shape with many choices: generated answers, or likelihoods against the full cache."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

from kvlab.cache import CompressedCache
from kvlab.common.validation import check_ids
from kvlab.evaluate.generate import Sampling, Stops, generate_together
from kvlab.evaluate.plan import PlannedPrompt
from kvlab.evaluate.results.outcome import CacheMaker, Loaded, Outcome
from kvlab.evaluate.results.rows import PromptIdentity
from kvlab.evaluate.scoring.likelihood import Leader, compare, forced_together, scored_bytes
from kvlab.evaluate.scoring.metrics import LIKELIHOOD_METRICS
from kvlab.evaluate.scoring.survival import HiddenTokenTracker, Survival
from kvlab.evaluate.shared_prompt import Check, nothing
from kvlab.models.chat import Chat
from kvlab.models.placement import input_device
from kvlab.requests.compare import FULL, MethodChoice
from kvlab.tasks.sample import Sample
from kvlab.tasks.tokens import hidden_positions, prompt_ids, start_ids, text_ids


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
    def is_forced(self) -> bool:
        """Whether a continuation is forced: a given text, or without one the full cache's own."""
        return self.sample.metric in LIKELIHOOD_METRICS

    @property
    def is_in_chat(self) -> bool:
        """Whether it is put into a chat template, if the model has one; a given text never is."""
        return self.sample.chat and not self.continuation

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
        alone = self.identity if self.is_forced or sample.temperature else None  # sampled answers run alone
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
    forced = sample.metric in LIKELIHOOD_METRICS and bool(sample.answers)
    continuation = text_ids(loaded.tokenizer, sample.answers[0]) if forced else []
    hidden = tuple(hidden_positions(loaded.tokenizer, sample))
    opening = text_ids(loaded.tokenizer, sample.answer_start)
    if chat is None or forced or not sample.chat:
        return PreparedPrompt(planned.identity, sample, context, question + opening, continuation, hidden)
    before, after = chat.around()
    start = len(start_ids(loaded.tokenizer))  # the template has its own
    moved = tuple(place + len(before) - start for place in hidden)
    closing = 0 if opening else len(after)  # what is held back then ends with the opening
    asked = question + after + opening
    return PreparedPrompt(planned.identity, sample, before + context[start:], asked, [], moved, closing)


class Measurer:
    """Run prompts of one shape with many choices in shared passes."""

    def __init__(
        self, loaded: Loaded, make_cache: CacheMaker, question_aware: bool, prefill_chunk: int | None = None
    ) -> None:
        self.loaded = loaded
        self.make_cache = make_cache
        self.question_aware = question_aware
        self.prefill_chunk = prefill_chunk
        self.check: Check = nothing  # called between layers and steps; may raise to stop

    def measure(
        self, prompts: Sequence[PreparedPrompt], choices: Sequence[MethodChoice]
    ) -> list[list[Outcome] | Exception]:
        """For each choice one outcome per prompt, or the error of its method; all prompts must have one shape."""
        first = prompts[0]
        if first.is_forced:
            return self._force(first, choices)
        caches = [self.make_cache(choice) for choice in choices]
        for cache in caches:
            cache.rehearse_only(len(first.context))
        trackers = [_track(prompts, cache, self.loaded) for cache in caches]
        survived: dict[tuple[int, int], Survival] = {}

        def leave(number: int, gone: dict[int, int], stay: list[int]) -> None:
            tracker = trackers[number]
            if tracker is not None:
                found = tracker.survival(caches[number])
                survived.update({(number, prompt): found[row] for row, prompt in gone.items()})
                tracker.keep_rows(stay)

        results = generate_together(
            self.loaded,
            [prompt.context + prompt.question for prompt in prompts],
            caches,
            first.in_sight(self.question_aware),
            first.sample.max_new_tokens,
            Stops((first.sample.stop,) if first.sample.stop else ()),
            self.prefill_chunk,
            Sampling(first.sample.temperature, _seed(first.identity)) if first.sample.temperature else None,
            self.check,
            leave,
        )
        return [
            outcomes
            if isinstance(outcomes, Exception)
            else [replace(outcome, survival=survived.get((number, row))) for row, outcome in enumerate(outcomes)]
            for number, outcomes in enumerate(results)
        ]

    def _force(self, prompt: PreparedPrompt, choices: Sequence[MethodChoice]) -> list[list[Outcome] | Exception]:
        """Score the forced text with every choice, and with the full cache for comparison.

        Without a given text, the full cache chooses it as it goes.
        """
        full = next((number for number, choice in enumerate(choices) if choice.method == FULL.method), len(choices))
        caches = [self.make_cache(choice) for choice in (*choices, *([FULL] if full == len(choices) else []))]
        text, leader = list(prompt.continuation), None
        if not text:
            stops = Stops((prompt.sample.stop,) if prompt.sample.stop else ())
            leader = Leader(self.loaded, full, stops, prompt.sample.max_new_tokens)
            for cache in caches:
                cache.rehearse_only(len(prompt.context))
        in_sight = prompt.in_sight(self.question_aware) if leader else len(prompt.context)
        prefix = prompt.context + prompt.question
        found = forced_together(self.loaded, prefix, text, caches, in_sight, self.prefill_chunk, self.check, leader)
        reference, text_bytes = found[full], scored_bytes(self.loaded, text)
        if isinstance(reference, Exception):
            raise reference
        compared = [
            one if isinstance(one, Exception) else compare(*one, reference[1], text, text_bytes)
            for one in found[: len(choices)]
        ]
        written = leader.text if leader else ""
        return [one if isinstance(one, Exception) else [replace(one, prediction=written)] for one in compared]


def _seed(identity: PromptIdentity) -> int:
    """Seed for sampling a prompt's answer: the same for every method, so that only the cache differs."""
    return zlib.crc32(f"{identity.seed}/{identity.task}/{identity.index}/{identity.content}".encode())


def _track(prompts: Sequence[PreparedPrompt], cache: CompressedCache, loaded: Loaded) -> HiddenTokenTracker | None:
    """Attach an observer of the prompts' hidden tokens to the cache; None if nothing is hidden."""
    if not prompts[0].hidden:
        return None
    tracker = HiddenTokenTracker([prompt.hidden for prompt in prompts], input_device(loaded.model))
    cache.settings.observer = tracker
    return tracker
