"""Generate and tokenize a planned prompt, in a chat if the model has one."""

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path

from kvlab.common.thoughts import Tags, open_tag
from kvlab.core import MethodChoice, UserError, check_ids
from kvlab.core.cache import CompressedCache
from kvlab.core.cache.cache_copy import copy_cache
from kvlab.core.methods import make_method
from kvlab.engine.prefix import Prefix
from kvlab.engine.prefix.provenance import header_of, model_of
from kvlab.evaluation.plan import PlannedPrompt
from kvlab.evaluation.request import EvalRequest
from kvlab.evaluation.results.rows import PromptIdentity
from kvlab.evaluation.scoring.metrics import LIKELIHOOD_METRICS
from kvlab.library.prefixes import PrefixFile, list_prefixes, prefix_path, proposed_name, read_prefix, recorded_loading
from kvlab.models.chat import Chat, Turns, think_tags
from kvlab.models.load import LoadedModel
from kvlab.tasks.registry import get_task
from kvlab.tasks.sample import Sample
from kvlab.tasks.tokens import hidden_positions, prompt_ids, start_ids, text_ids, text_positions


@dataclass(frozen=True)
class PreparedPrompt:
    """A generated and tokenized prompt."""

    identity: PromptIdentity
    sample: Sample
    context: list[int]
    question: list[int]  # with the decoded text before it
    continuation: list[int]
    hidden: tuple[int, ...] = ()  # positions of the tokens of hidden statements
    decoded: int = 0  # first tokens of the question that enter one by one
    closing: int = 0  # last tokens of the question that end the user's turn in a chat
    parts: tuple[tuple[int, ...], ...] = ()  # positions of the tokens of each of the sample's parts
    further: tuple[list[int], ...] = ()  # further questions, with what a chat has before and after each
    open_tag: str = ""  # the tag that opens thinking at the end of the chat template
    tags: Tags | None = None  # those of thinking that only the chat template declares

    @property
    def is_forced(self) -> bool:
        """Whether a continuation is forced: a given text, or without one the full cache's own."""
        return self.sample.metric in LIKELIHOOD_METRICS

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
        return *lengths, self.decoded, sample.stop, alone, bool(self.hidden)


def prepare(planned: PlannedPrompt, loaded: LoadedModel, chat: Chat | None = None) -> PreparedPrompt:
    """Generate and tokenize the prompt, in `chat` if given; a forced text is never put into a turn.

    Raises UserError for a token without an embedding in the model.
    """
    sample = planned.make()
    tokenizer = loaded.tokenizer
    forced = sample.metric in LIKELIHOOD_METRICS and bool(sample.answers)
    if chat is not None and sample.chat and not forced:
        prepared = _in_chat(planned.identity, sample, chat, loaded)
    else:
        context, question = prompt_ids(tokenizer, sample)
        first = len(start_ids(tokenizer))
        places = [text_positions(tokenizer, sample.context, part.text) for part in sample.parts]
        prepared = PreparedPrompt(
            planned.identity,
            sample,
            context,
            question + text_ids(tokenizer, sample.answer_start),
            text_ids(tokenizer, sample.answers[0]) if forced else [],
            tuple(hidden_positions(tokenizer, sample)),
            len(text_ids(tokenizer, sample.decoded)),
            parts=tuple(tuple(first + place for place in part) for part in places),
            further=tuple(text_ids(tokenizer, one.question + one.answer_start) for one in sample.further),
        )
    check_ids([*prepared.context, *prepared.question, *prepared.continuation], loaded.model, tokenizer)
    return prepared


def _in_chat(identity: PromptIdentity, sample: Sample, chat: Chat, loaded: LoadedModel) -> PreparedPrompt:
    """The prompt in a user's turn, its beginning in the system prompt if the sample says so."""
    tokenizer = loaded.tokenizer
    chat = replace(chat, system="\n".join(filter(None, [chat.system, sample.system]))) if sample.system else chat
    front, back = chat.sides()
    before = chat.ids(front)
    after = chat.ids(back)
    body = sample.context.removeprefix(sample.system).lstrip("\n") if sample.system else sample.context
    context = before + text_ids(tokenizer, body)
    decoded = text_ids(tokenizer, sample.decoded)
    turns = Turns.from_chat(chat) if decoded or (sample.further and sample.keeps_answers) else None
    if decoded:  # the model's turn, which the question follows
        context += after

    def positions(text: str) -> list[int]:
        if sample.system and text in sample.system:
            return text_positions(tokenizer, front, text)
        if found := text_positions(tokenizer, body, text):
            return [len(before) + place for place in found]
        return [len(context) + place for place in text_positions(tokenizer, sample.decoded, text)]

    def asked(question: str, is_later: bool) -> list[int]:
        if turns is None or not is_later:
            return text_ids(tokenizer, question) + after
        return chat.ids(turns.between + question.lstrip("\n") + turns.closing)

    statements = sample.meta.get("statements")
    hidden = {place for text in (statements if isinstance(statements, list) else ()) for place in positions(str(text))}
    opening = text_ids(tokenizer, sample.answer_start)
    tags = think_tags(tokenizer)
    further = [asked(one.question, is_later=True) + text_ids(tokenizer, one.answer_start) for one in sample.further]
    return PreparedPrompt(
        identity,
        sample,
        context,
        decoded + asked(sample.question, is_later=bool(decoded)) + opening,
        [],
        tuple(sorted(hidden)),
        len(decoded),
        closing=0 if opening else len(after),  # what is held back then ends with the opening
        parts=tuple(tuple(positions(part.text)) for part in sample.parts),
        further=tuple(further),
        open_tag=open_tag(back, tags),
        tags=tags,
    )


Key = tuple[str, str, str, str, bool | None]  # text, method as JSON, and settings of the chat template


class KeptContexts:
    """The prefixes of a folder of runs as they fit one model and chat template; `opened` and `kept` count them.

    Raises UserError where no context is compressed alone, or the model is not `kvlab.load_model`'s.
    """

    def __init__(self, root: Path, loaded: LoadedModel, request: EvalRequest) -> None:
        alone = request.tasks and not request.files and all(get_task(one.task).context_alone for one in request.tasks)
        if request.question_aware and not alone:
            raise UserError("A prefix has read no question: add --question-aware no.")
        if not isinstance(loaded, LoadedModel) or (request.batch_rows or 1) > 1:
            raise UserError("Prefixes are asked one by one: leave out --set batch.")
        self.root = root
        self.loaded = loaded
        self.request = request
        self.opened = self.kept = 0
        self._files: dict[Key, PrefixFile] = {}
        model = model_of(loaded, recorded_loading(request))
        for file in list_prefixes(root)[0]:
            head = file.header
            is_same = head.model.model_copy(update={"name": model.name, "loading": model.loading}) == model
            is_context = head.tokens == head.context_tokens and head.compress_every == 1 and head.seed == 0
            if is_same and is_context:
                self._files[self._key_of(file)] = file

    def open(self, prompt: PreparedPrompt, choice: MethodChoice) -> CompressedCache | None:
        """The cache that has read the prompt's context with this method; None if it is not kept.

        Raises UserError for a file that is damaged.
        """
        digest = hashlib.sha256(prompt.sample.context.encode()).hexdigest()
        file = self._files.get((digest, choice.model_dump_json(), *self._chat_of(prompt)))
        if file is None or file.header.context_tokens != len(prompt.context):
            return None
        prefix = Prefix.load(file.path, self.loaded)
        prefix.verify()
        if prefix.turns.context_ids(self.loaded, prompt.sample.context) != prompt.context:
            return None
        self.opened += 1
        return prefix.cache

    def keep(self, prompt: PreparedPrompt, choice: MethodChoice, cache: CompressedCache, seconds: float) -> None:
        """Write a cache that has read the prompt's context and nothing else; it stays as it is.

        Nothing is written if a prefix of this text would begin with other tokens, as with a system prompt of a task.
        """
        context, (chat, system, thinking) = prompt.sample.context, self._chat_of(prompt)
        header = header_of(
            self.loaded,
            context,
            choice,
            make_method(choice.method, **choice.hyper_parameters),
            loading=recorded_loading(self.request),
            context_tokens=len(prompt.context),
            chat=chat,
            system=system,
            thinking=thinking,
            seconds=seconds,
        )
        prefix = Prefix.of_cache(self.loaded, context, header, copy_cache(cache))
        if prefix.turns.context_ids(self.loaded, context) != prompt.context:
            return
        path = prefix_path(self.root, proposed_name(self.root, context, choice))
        prefix.save(path)
        self.kept += 1
        file = read_prefix(path)
        self._files[self._key_of(file)] = file

    def _key_of(self, file: PrefixFile) -> Key:
        head = file.header
        return head.text_sha256, head.choice.model_dump_json(), head.chat, head.system, head.thinking

    def _chat_of(self, prompt: PreparedPrompt) -> tuple[str, str, bool | None]:
        """Settings of the chat template that the prompt is put into."""
        request = self.request
        is_in_chat = prompt.sample.chat and not prompt.continuation  # a given text never is
        return (request.chat, request.system, request.thinking) if is_in_chat else ("no", "", None)
