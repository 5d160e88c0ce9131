"""A compressed prefix: read a text once, keep what a method leaves of it in a file, and ask it many questions."""

from __future__ import annotations

import json
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import JsonValue, ValidationError

from kvlab.common.atomic_write import replace_file
from kvlab.core.cache import CompressedCache, make_cache
from kvlab.core.cache.cache_copy import copy_cache
from kvlab.core.cache.state import CacheState, restore_state, state_of
from kvlab.core.choice import DEFAULT_OF_PREFIXES, MOST_NEW_TOKENS
from kvlab.core.errors import UserError
from kvlab.core.methods import make_method
from kvlab.core.validation import check_text, in_one_sentence, path_of, whole_number
from kvlab.engine.environment import versions
from kvlab.engine.prefix.inputs import choice_of, read_text
from kvlab.engine.prefix.memory import with_memory
from kvlab.engine.prefix.passes import Answer, check_window, next_logits, read_context, write_answer
from kvlab.engine.prefix.provenance import check_model, header_of, method_of
from kvlab.engine.prefix.tensor_file import mapped_tensors, write_tensors
from kvlab.library.prefixes import (
    FORMAT,
    HEADER,
    MARK,
    STATE,
    TEXTS,
    PrefixHeader,
    PrefixText,
    check_tensors,
    read_prefix,
    read_texts,
)
from kvlab.models.chat import chat_of
from kvlab.models.load import LoadedModel
from kvlab.models.turns import Turns
from kvlab.requests.compare import ModelRequest
from kvlab.requests.live_session import GAP

CONTEXT = "context"
EXTENSION = "extension"
QUESTION = "question"
ANSWER = "answer"


@dataclass(eq=False)
class Prefix:
    """A text that a model has read and a method has compressed: `make` it, `save` it, `load` it, `ask` it, `extend` it.

    Questions go to a copy of the cache, so that each meets the text alone and none changes the prefix, unless it is
    asked with `keep`. `texts` are what was read, in order. Use it from one thread.
    """

    model: LoadedModel
    header: PrefixHeader
    cache: CompressedCache = field(repr=False)
    texts: tuple[PrefixText, ...] = field(repr=False)
    turns: Turns = field(repr=False)
    _check: Future[None] | None = field(default=None, repr=False)

    @classmethod
    def make(
        cls,
        model: LoadedModel,
        text: str | Path,
        method: str = DEFAULT_OF_PREFIXES,
        budget: float | int | str = 0.2,
        *,
        title: str = "",
        chat: Literal["auto", "no"] = "auto",
        system: str = "",
        thinking: bool | None = None,
        seed: int = 0,
        compress_every: int = 1,
        prefill_chunk: int | None = None,
        loading: dict[str, JsonValue] | None = None,
        **hyper_parameters: JsonValue,
    ) -> Prefix:
        """Read a text and compress it.

        Args:
            model: from `kvlab.load_model`.
            text: the text, or the path of a text file.
            method: a name of `kvlab.list_methods()`, with `hyper_parameters`.
            budget: as for `kvlab.make_cache`: a share of the text, slots per KV head, or bytes.
            title: a name in lists; default: the text's first words.
            chat: `auto` puts the text into the user's turn of the model's chat template, if it has one.
            system, thinking: settings of the chat template.
            prefill_chunk: tokens read at once, for less memory.
            loading: arguments of `kvlab.load_model`, recorded so that commands load the model in the same way.

        Raises UserError for an empty text, one that exceeds the model's window, or a method that refuses the model.
        """
        if not isinstance(model, LoadedModel):
            raise UserError("A prefix needs a model with its tokenizer: pass what kvlab.load_model(name) returns.")
        context = read_text(text)
        choice = choice_of(method, budget, hyper_parameters)
        made = make_method(choice.method, **choice.hyper_parameters)
        turns = _turns(model, chat, system, thinking)
        ids = turns.context_ids(model, context)
        check_window(model, len(ids), "The text")
        cache = make_cache(model, made, choice.budget, seed=seed, compress_every=compress_every)
        begun = time.perf_counter()
        read_context(model, cache, ids, prefill_chunk)
        header = header_of(
            model,
            context,
            choice,
            made,
            title=title,
            loading=loading or {},
            chat=chat,
            system=system,
            thinking=thinking,
            compress_every=compress_every,
            seed=seed,
            context_tokens=len(ids),
            seconds=time.perf_counter() - begun,
        )
        return cls.of_cache(model, context, header, cache)

    @classmethod
    def of_cache(cls, model: LoadedModel, context: str, header: PrefixHeader, cache: CompressedCache) -> Prefix:
        """A prefix of a cache that has read `context` and nothing else, as `header` tells; the cache becomes its own.

        Raises UserError for a setting of the chat template that would have no effect.
        """
        turns = _turns(model, header.chat, header.system, header.thinking)
        return cls(model, with_memory(header, cache), cache, (PrefixText(kind=CONTEXT, text=context),), turns)

    @classmethod
    def load(cls, path: str | Path, model: LoadedModel) -> Prefix:
        """Open a saved prefix; `model` is the one that read it.

        The file is mapped: slots are read when they are first used. Its header and size are verified here, its slots
        while the first question is answered, and no answer is returned from damaged ones.

        Raises UserError for a file that is missing, foreign, damaged, cut off or of a newer format, for another model,
        rope setting, dtype, kind of device or tokenizer, and for a method that does not exist here.
        """
        file = read_prefix(path_of(path, "The prefix"))
        header = file.header
        check_model(header, model)
        method = method_of(header)
        cache = make_cache(model, method, header.choice.budget, seed=header.seed, compress_every=header.compress_every)
        restore_state(cache, CacheState(json.loads(file.state), mapped_tensors(file)), model.device)
        turns = _turns(model, header.chat, header.system, header.thinking)
        executor = ThreadPoolExecutor(1, "kvlab-checksums")
        check = executor.submit(check_tensors, file)
        executor.shutdown(wait=False)
        return cls(model, header, cache, tuple(read_texts(file)), turns, check)

    def save(self, path: str | Path) -> None:
        """Write the prefix to a safetensors file, in one step: a file of this name is replaced or stays as it is.

        Raises UserError if the disk is full, this prefix was loaded from a damaged file, or its method holds what no
        file can hold, such as a plug-in's own class.
        """
        self.verify()
        try:
            state = state_of(self.cache)
        except TypeError as error:
            raise UserError(str(error)) from error
        texts = json.dumps([text.model_dump() for text in self.texts]).encode()
        tensors = {**state.tensors, TEXTS: torch.frombuffer(bytearray(texts), dtype=torch.uint8)}
        self.header = self.header.model_copy(
            update={"created": datetime.now(UTC).isoformat(timespec="seconds"), "versions": versions()}
        )
        about = {
            MARK: str(FORMAT),
            HEADER: self.header.as_json(),
            STATE: json.dumps(state.values),
        }
        replace_file(path_of(path, "The prefix"), lambda temporary: write_tensors(temporary, tensors, about))

    def verify(self) -> None:
        """Wait until the slots of a loaded prefix are verified. Raises UserError if they are damaged."""
        if self._check is not None:
            self._check.result()

    def ask(self, question: str, max_new_tokens: int = 128, *, keep: bool = False) -> Answer:
        """Answer a question about the text with the likeliest tokens.

        With `keep` question and answer stay in the cache, and the next question continues the conversation. Raises
        UserError for an empty question, or one that exceeds the model's window.
        """
        if not check_text(question, "The question").strip():
            raise UserError("The question is empty: type one.")
        whole_number(max_new_tokens, "max_new_tokens", 1, MOST_NEW_TOKENS)
        ids = self.turns.question_ids(self.model, question, is_first=self._is_open)
        check_window(self.model, self.header.tokens + len(ids) + max_new_tokens, "This question")
        cache = copy_cache(self.cache)
        answer = self._verified(lambda: write_answer(self.model, cache, ids, max_new_tokens))
        if keep:
            said = PrefixText(kind=QUESTION, text=question), PrefixText(kind=ANSWER, text=answer.text)
            self._take_over(cache, said, questions=self.header.questions + 1)
        return answer

    def extend(self, text: str | Path) -> None:
        """Read more text on top of the compressed prefix, as a further turn of a conversation is read.

        The budget stays the one that the first text was given. Raises UserError for an empty text, or one that exceeds
        the model's window; the prefix is then as it was.
        """
        more = read_text(text)
        before = GAP if self._is_open else self.turns.between
        ids = self.model.encode(before + more, special=False)[0].tolist()
        check_window(self.model, self.header.tokens + len(ids), "The text")
        cache = copy_cache(self.cache)
        self._verified(lambda: next_logits(self.model, cache, ids))
        self._take_over(cache, (PrefixText(kind=EXTENSION, text=more),))

    def fork(self) -> Prefix:
        """A prefix of its own in the same state."""
        return replace(self, cache=copy_cache(self.cache))

    @property
    def _is_open(self) -> bool:
        """Whether what was read last is a text, which a question follows in the same turn."""
        return self.texts[-1].kind in (CONTEXT, EXTENSION)

    def _verified(self, act: Any) -> Any:
        """What `act` returns once the slots it used are verified; an error of damaged slots is told as damage."""
        try:
            return act()
        finally:
            self.verify()

    def _take_over(self, cache: CompressedCache, texts: tuple[PrefixText, ...], **changed: Any) -> None:
        self.cache = cache
        self.texts = (*self.texts, *texts)
        self.header = with_memory(self.header.model_copy(update=changed), cache)


def _turns(model: LoadedModel, chat: str, system: str, thinking: bool | None) -> Turns:
    """How texts, questions and answers are put together. Raises UserError for a setting that would have no effect."""
    try:
        request = ModelRequest(model=model.name, chat=chat, system=system, thinking=thinking)
    except ValidationError as error:
        raise UserError(in_one_sentence(error, lambda field: f"The setting {field}")) from None
    return Turns.of(chat_of(request, model.tokenizer))
