"""Chat templates: how a prompt is presented to an instruct model, as the user's turn."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from transformers import AutoConfig, AutoTokenizer, PreTrainedConfig, PreTrainedTokenizerBase

from kvlab.common.thoughts import SETTING, Tags, hide_thinking, is_mark
from kvlab.core.errors import UserError
from kvlab.models.sources import Source
from kvlab.requests.compare import ChatRequest, ModelRequest
from kvlab.requests.conversation import Turn
from kvlab.requests.live_session import GAP
from kvlab.requests.prompt_notes import TokenizerInfo

if TYPE_CHECKING:  # a prompt is rendered in a process without torch
    from kvlab.models.load import LoadedModel


def decode_answer(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> str:
    """The text of generated tokens."""
    marks, special = special_tokens(tokenizer)
    if marks.isdisjoint(ids):
        return str(tokenizer.decode(list(ids), skip_special_tokens=True))
    return str(tokenizer.decode([one for one in ids if one not in special], skip_special_tokens=False))


@lru_cache(maxsize=4)
def special_tokens(tokenizer: PreTrainedTokenizerBase) -> tuple[frozenset[int], frozenset[int]]:
    """(ids of special tokens that mark thinking, ids of all other special tokens)."""
    added: dict[int, Any] = getattr(tokenizer, "added_tokens_decoder", {})
    tags = think_tags(tokenizer)
    marks = frozenset(one for one, token in added.items() if token.special and is_mark(str(token), tags))
    others = {one for one, token in added.items() if token.special}
    return marks, frozenset((others | set(tokenizer.all_special_ids)) - marks)


@lru_cache(maxsize=4)
def think_tags(tokenizer: PreTrainedTokenizerBase) -> Tags | None:
    """(opening, closing) tag that the chat template puts around thinking; None if `kvlab.common.thoughts` knows it.

    A marked thought is rendered in the last turn, as templates drop those of earlier turns. Only tags in brackets
    count: a word such as "Answer:" may stand anywhere in an answer. None too for a template that shows no thought.
    """
    if not _template(tokenizer):
        return None

    def rendered(**thought: str) -> str:
        turns = [{"role": "user", "content": QUESTION}, {"role": "assistant", "content": ANSWER, **thought}]
        try:
            return str(tokenizer.apply_chat_template(turns, tokenize=False, enable_thinking=True))
        except Exception:  # a template is a program of its own, and need not take these turns
            return ""

    header = rendered().partition(ANSWER)[0]
    for name in THOUGHT_FIELDS:
        before, found, after = rendered(**{name: THOUGHT}).partition(THOUGHT)
        between, answered, _ = after.partition(ANSWER)
        if not (found and answered):
            continue
        turn = before.rpartition(QUESTION)[2] + found + between + answered
        shown = hide_thinking(turn)
        if ANSWER in shown and THOUGHT not in shown:
            return None
        opening = before.removeprefix(header).strip()
        first = re.search(rf"{_BRACKETS}$", opening)
        last = re.match(_BRACKETS, between.strip())
        return (first[0], last[0]) if first and last else None
    return None


SWITCH = "enable_thinking"
THOUGHT_FIELDS = (
    "reasoning_content",
    "thinking",
    "reasoning",
)  # of an assistant's turn
THOUGHT = "kvlab-puts-a-thought-here"
_BRACKETS = r"(?:<[^<>\s]+>|\[[^\[\]\s]+\])"
PLACE = "kvlab-puts-the-prompt-here"


@dataclass(frozen=True)
class Chat:
    """A model's chat template and its settings. `thinking` is for templates with a switch; None: the template's
    default.

    If `turns` (including any system prompt) are given, they are rendered instead of the prompt.
    """

    tokenizer: PreTrainedTokenizerBase
    system: str = ""
    thinking: bool | None = None
    turns: tuple[Turn, ...] = ()

    def rendered(self, prompt: str) -> str:
        """Text the model reads, including special tokens, up to the start of its answer.

        Raises UserError if the template rejects these messages (some have no system prompt).
        """
        system = [{"role": "system", "content": self.system}] if self.system else []
        turns = [{"role": turn.role, "content": turn.content} for turn in self.turns]
        options: dict[str, Any] = {} if self.thinking is None else {SWITCH: self.thinking}
        try:
            text = self.tokenizer.apply_chat_template(
                turns or [*system, {"role": "user", "content": prompt}],
                tokenize=False,
                add_generation_prompt=True,
                **options,
            )
        except Exception as error:  # a template is a program of its own
            message = " ".join(str(error).split())[:160].rstrip(".")
            raise UserError(f"The model's chat template rejects this prompt ({message}): use --set chat=no.") from None
        return str(text)

    def sides(self) -> tuple[str, str]:
        """Text before and after the prompt. Raises UserError if the template leaves the prompt out."""
        before, found, after = self.rendered(PLACE).partition(PLACE)
        if not found:
            raise UserError("The model's chat template leaves the prompt out: use --set chat=no.")
        return before, after

    def around(self) -> tuple[list[int], list[int]]:
        """Token ids before and after the prompt, for prompts given as tokens."""
        before, after = self.sides()
        return self.ids(before), self.ids(after)

    def ids(self, text: str) -> list[int]:
        """Ids of rendered text, in which the template has inserted all special tokens."""
        return list(self.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])

    @property
    def settings(self) -> dict[str, Any]:
        """The settings for a run's record."""
        turns = {"turns": [turn.model_dump() for turn in self.turns]} if self.turns else {}
        tags = think_tags(self.tokenizer)
        return {"system": self.system, "thinking": self.thinking, **turns, **({SETTING: list(tags)} if tags else {})}


def chat_of(request: ModelRequest, tokenizer: PreTrainedTokenizerBase) -> Chat | None:
    """The chat for a request; None for plain text: if requested, or if the model has no template.

    A conversation is then read as written by `kvlab.requests.conversation.as_text`. Raises UserError for a system
    prompt or a switch that would have no effect.
    """
    template = _template(tokenizer) if request.chat == "auto" else ""
    if template:
        if request.thinking is not None and SWITCH not in template:
            raise UserError(f"The chat template of {request.model!r} has no switch for thinking: do not set it.")
        turns = request.turns if isinstance(request, ChatRequest) else ()
        return Chat(tokenizer, request.system.strip(), request.thinking, turns)
    if request.system.strip() or request.thinking is not None:
        why = "chat is off" if request.chat == "no" else f"{request.model!r} has no chat template"
        raise UserError(f"The system prompt or thinking switch would have no effect: {why}.")
    return None


def tokenizer_info(tokenizer: PreTrainedTokenizerBase) -> TokenizerInfo:
    """Tokenizer data for notes on prompts."""
    special = tuple(map(str, tokenizer.all_special_tokens))
    return TokenizerInfo(tokenizer.bos_token, tokenizer.eos_token, special, _template(tokenizer))


def _template(tokenizer: PreTrainedTokenizerBase) -> str:
    template: Any = tokenizer.chat_template
    if isinstance(template, dict):
        template = template.get("default") or next(iter(template.values()), "")
    return template or ""


ANY_WINDOW = 1 << 30  # for a model that states none


def load_tokenizer(
    name: str, revision: str | None = None, cache_dir: str | None = None
) -> tuple[PreTrainedTokenizerBase, int]:
    """The tokenizer and the model's context window; raises UserError if they are unavailable."""
    source = Source(name, revision, cache_dir)
    source.config_file()
    try:
        config = AutoConfig.from_pretrained(source.where, **source.options)
        tokenizer = AutoTokenizer.from_pretrained(source.where, **source.options)
    except (OSError, ValueError) as error:
        message = " ".join(str(error).split())[:160].rstrip(".")
        raise UserError(f"The tokenizer of {name!r} cannot be loaded ({message}).") from None
    return tokenizer, window_of(config)


def window_of(config: PreTrainedConfig) -> int:
    """The context window in tokens that a model's config names; unlimited if none."""
    text = config.get_text_config(decoder=True)
    return getattr(text, "max_position_embeddings", None) or ANY_WINDOW


CONTEXT, ANSWER, QUESTION = (f"kvlab-puts-the-{part}-here" for part in ("context", "answer", "question"))


@dataclass(frozen=True)
class Turns:
    """Text around questions and answers. With a chat template the context begins the user's first turn; without one
    questions follow the context as plain text.

    Attributes:
        opening: text before the context.
        between: text between an answer and the next question; an end token that the model wrote is part of it.
        closing: text between a question and its answer.
        special: whether the tokenizer adds special tokens such as BOS before the context.
    """

    opening: str
    between: str
    closing: str
    special: bool

    @classmethod
    def from_chat(cls, chat: Chat | None) -> Turns:
        """The turns of a chat template, or of plain text with None.

        Raises UserError if the template changes or leaves out what the user wrote.
        """
        if chat is None:
            return cls("", "\n", "", special=True)
        opening, found, closing = chat.rendered(CONTEXT).partition(CONTEXT)
        turns = [("user", CONTEXT), ("assistant", ANSWER), ("user", QUESTION)]
        system = [("system", chat.system)] if chat.system else []
        messages = [{"role": role, "content": content} for role, content in (*system, *turns)]
        try:
            later = str(chat.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))
        except Exception as error:  # a template is a program of its own
            message = " ".join(str(error).split())[:160].rstrip(".")
            raise UserError(
                f"The model's chat template rejects a conversation ({message}): use --set chat=no."
            ) from None
        _, answered, rest = later.partition(ANSWER)
        between, asked, _ = rest.partition(QUESTION)
        if not (found and answered and asked):
            raise UserError("The model's chat template leaves parts of a conversation out: use --set chat=no.")
        return cls(opening, between, closing, special=False)

    def context_ids(self, loaded: LoadedModel, context: str) -> list[int]:
        """What all caches read and compress before the first question."""
        ids: list[int] = loaded.encode(self.opening + context, special=self.special)[0].tolist()
        return ids

    def question_ids(self, loaded: LoadedModel, question: str, is_first: bool) -> list[int]:
        """A question with the text before and after it."""
        before = GAP if is_first else self.between
        ids: list[int] = loaded.encode(before + question + self.closing, special=False)[0].tolist()
        return ids
