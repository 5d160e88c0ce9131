"""Generate and tokenize a planned prompt, in a chat if the model has one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from kvlab.common.thoughts import open_tag
from kvlab.core.validation import check_ids
from kvlab.evaluate.plan import PlannedPrompt
from kvlab.evaluate.results.outcome import Loaded
from kvlab.evaluate.results.rows import PromptIdentity
from kvlab.evaluate.scoring.metrics import LIKELIHOOD_METRICS
from kvlab.models.chat import Chat
from kvlab.models.turns import Turns
from kvlab.tasks.sample import Sample
from kvlab.tasks.tokens import hidden_positions, prompt_ids, start_ids, text_ids, text_positions


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
    parts: tuple[tuple[int, ...], ...] = ()  # positions of the tokens of each of the sample's parts
    further: tuple[list[int], ...] = ()  # further questions, with what a chat has before and after each
    open_tag: str = ""  # the tag that opens thinking at the end of the chat template

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
        if question_aware and self.question and not self.sample.compresses_context_alone:
            held_back = self.sample.hold_back and self.sample.hold_back + self.closing
            return len(self.context) + len(self.question) - held_back
        return len(self.context)

    @property
    def shape(self) -> tuple[object, ...]:
        """Prompts with equal shapes can run in one batch without padding."""
        sample = self.sample
        runs_alone = self.is_forced or sample.temperature or self.further  # sampled answers too
        alone = self.identity if runs_alone else None
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
    tokenizer = loaded.tokenizer
    forced = sample.metric in LIKELIHOOD_METRICS and bool(sample.answers)
    if chat is not None and sample.chat and not forced:
        return _in_chat(planned.identity, sample, chat, loaded)
    context, question = prompt_ids(tokenizer, sample)
    first = len(start_ids(tokenizer))
    opening = text_ids(tokenizer, sample.answer_start)
    return PreparedPrompt(
        planned.identity,
        sample,
        context,
        question + opening,
        text_ids(tokenizer, sample.answers[0]) if forced else [],
        tuple(hidden_positions(tokenizer, sample)),
        parts=_parts(sample, lambda text: [first + at for at in text_positions(tokenizer, sample.context, text)]),
        further=tuple(text_ids(tokenizer, one.question + one.answer_start) for one in sample.further),
    )


def _in_chat(identity: PromptIdentity, sample: Sample, chat: Chat, loaded: Loaded) -> PreparedPrompt:
    """The prompt in a user's turn, its beginning in the system prompt if the sample says so."""
    tokenizer = loaded.tokenizer
    chat = replace(chat, system="\n".join(filter(None, [chat.system, sample.system]))) if sample.system else chat
    front, back = chat.sides()
    before = chat.ids(front)
    after = chat.ids(back)
    body = sample.context.removeprefix(sample.system).lstrip("\n") if sample.system else sample.context
    context = text_ids(tokenizer, body)

    def positions(text: str) -> list[int]:
        if sample.system and text in sample.system:
            return text_positions(tokenizer, front, text)
        return [len(before) + place for place in text_positions(tokenizer, body, text)]

    statements = sample.meta.get("statements")
    hidden = {place for text in (statements if isinstance(statements, list) else ()) for place in positions(str(text))}
    opening = text_ids(tokenizer, sample.answer_start)
    turns = Turns.of(chat) if sample.further and sample.keeps_answers else None
    later = []
    for one in sample.further:
        asked = text_ids(tokenizer, one.question) + after
        if turns is not None:
            asked = chat.ids(turns.between + one.question.lstrip("\n") + turns.closing)
        later.append(asked + text_ids(tokenizer, one.answer_start))
    return PreparedPrompt(
        identity,
        sample,
        before + context,
        text_ids(tokenizer, sample.question) + after + opening,
        [],
        tuple(sorted(hidden)),
        closing=0 if opening else len(after),  # what is held back then ends with the opening
        parts=_parts(sample, positions),
        further=tuple(later),
        open_tag=open_tag(back),
    )


def _parts(sample: Sample, positions: Callable[[str], list[int]]) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(positions(part.text)) for part in sample.parts)
