"""A compressed prefix: read a text once, keep what a method leaves of it in a file, and ask it many questions."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from pydantic import JsonValue, ValidationError
from torch import Tensor

from kvlab.common.atomic_write import replace_file
from kvlab.core.cache import CompressedCache, make_cache
from kvlab.core.cache.cache_copy import copy_cache
from kvlab.core.cache.state import CacheState, restore_state, state_of
from kvlab.core.choice import DEFAULT_OF_PREFIXES, MOST_NEW_TOKENS
from kvlab.core.errors import UserError
from kvlab.core.methods import make_method
from kvlab.core.validation import check_text, in_one_sentence, path_of, whole_number
from kvlab.engine.environment import versions
from kvlab.engine.forward import end_ids
from kvlab.engine.prefix.provenance import check_model, choice_of, header_of, method_of, read_text
from kvlab.library import prefixes
from kvlab.models.chat import Turns, chat_of, decode_answer, window_of
from kvlab.models.load import LoadedModel
from kvlab.requests.compare import ModelRequest
from kvlab.requests.live_session import GAP


@dataclass(frozen=True)
class Answer:
    """An answer: its text, its token ids with the end token if the model wrote one, and why it ended."""

    text: str
    token_ids: tuple[int, ...]
    ended: Literal["end", "length"]

    def __str__(self) -> str:
        return self.text


def read_context(loaded: LoadedModel, cache: CompressedCache, ids: list[int], prefill_chunk: int | None) -> None:
    """Read a text into an empty cache, in chunks of `prefill_chunk` tokens if given, which then compresses it."""
    sizes = cache.expect(len(ids), prefill_chunk)
    for size, end in zip(sizes, accumulate(sizes), strict=True):
        next_logits(loaded, cache, ids[end - size : end])


@torch.inference_mode()
def next_logits(loaded: LoadedModel, cache: CompressedCache, ids: list[int]) -> Tensor:
    """Logits (V,) after more tokens."""
    given = torch.tensor([ids], device=loaded.device)
    return loaded.model(given, past_key_values=cache, use_cache=True, logits_to_keep=1).logits[0, -1].float()


def check_window(loaded: LoadedModel, tokens: int, what: str) -> None:
    """Raise UserError if this many tokens exceed the model's context window."""
    window = window_of(loaded.model.config)
    if tokens > window:
        raise UserError(
            f"{what} needs {tokens:,} tokens with all that was read before, but the context window of {loaded.name} is "
            f"{window:,}: shorten it."
        )


ALIGNMENT = 64  # bytes
DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64,
    "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2,
}  # fmt: skip
NAMES = {dtype: name for name, dtype in DTYPES.items()}


def write_tensors(path: Path, tensors: Mapping[str, Tensor], about: Mapping[str, str]) -> None:
    """Write contiguous tensors with metadata `about`, their SHA-256 and a seal; each is read twice, none is copied."""
    layout: dict[str, dict[str, Any]] = {}
    end = 0
    for name, tensor in tensors.items():
        if gap := -end % ALIGNMENT:
            layout[f"{prefixes.PADDING}{len(layout)}"] = {
                "dtype": "U8",
                "shape": [gap],
                "data_offsets": [end, end + gap],
            }
            end += gap
        place = {"dtype": NAMES[tensor.dtype], "shape": [*tensor.shape], "data_offsets": [end, end + tensor.nbytes]}
        layout[name] = place
        end = end + tensor.nbytes
    metadata = {
        **about,
        prefixes.SUMS: json.dumps(
            {name: hashlib.sha256(_bytes(one).data).hexdigest() for name, one in tensors.items()}
        ),
    }
    header = json.dumps(
        {**layout, "__metadata__": {**metadata, prefixes.SEAL: prefixes.seal(layout, metadata)}}
    ).encode()
    header += b" " * (-(prefixes.LENGTH + len(header)) % ALIGNMENT)
    with path.open("wb") as file:
        file.write(len(header).to_bytes(prefixes.LENGTH, "little") + header)
        for name, place in layout.items():
            content = _bytes(tensors[name]) if name in tensors else np.zeros(place["shape"], np.uint8)
            if content.nbytes:  # a memory view of nothing cannot be written
                file.write(content.data)
            del content  # before the next tensor is copied to the host


def mapped_tensors(file: prefixes.PrefixFile) -> dict[str, Tensor]:
    """The tensors by name, in memory that is read from the file when it is used; changes stay in this process.

    Raises UserError if the file's header does not describe tensors.
    """
    whole = torch.from_file(str(file.path), shared=False, size=file.bytes, dtype=torch.uint8)
    found = {}
    for name, (kind, shape, start, end) in file.tensors.items():
        try:
            found[name] = whole[start:end].view(DTYPES[kind]).reshape(shape)
        except (KeyError, RuntimeError) as error:
            raise prefixes.damage_error(file.path, name) from error
    return found


def _bytes(tensor: Tensor) -> np.ndarray:
    """The memory of a contiguous tensor, on the host."""
    return tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy()


def with_memory(header: prefixes.PrefixHeader, cache: CompressedCache) -> prefixes.PrefixHeader:
    """The header with the cache's tokens, the memory of its layers, and that of a full cache."""
    memory = cache.memory()
    layers = tuple(
        prefixes.LayerTable(**{name: getattr(one, name) for name in prefixes.LayerTable.model_fields})
        for one in memory.layers
    )
    full = memory.sliding_bytes + cache.full_bytes()
    sizes = {"layers": layers, "other_bytes": memory.sliding_bytes, "full_bytes": full}
    return header.model_copy(update={"tokens": memory.logical_tokens, **sizes})


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
    header: prefixes.PrefixHeader
    cache: CompressedCache = field(repr=False)
    texts: tuple[prefixes.PrefixText, ...] = field(repr=False)
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
    def of_cache(
        cls, model: LoadedModel, context: str, header: prefixes.PrefixHeader, cache: CompressedCache
    ) -> Prefix:
        """A prefix of a cache that has read `context` and nothing else, as `header` tells; the cache becomes its own.

        Raises UserError for a setting of the chat template that would have no effect.
        """
        turns = _turns(model, header.chat, header.system, header.thinking)
        return cls(model, with_memory(header, cache), cache, (prefixes.PrefixText(kind=CONTEXT, text=context),), turns)

    @classmethod
    def load(cls, path: str | Path, model: LoadedModel) -> Prefix:
        """Open a saved prefix; `model` is the one that read it.

        The file is mapped: slots are read when they are first used. Its header and size are verified here, its slots
        while the first question is answered, and no answer is returned from damaged ones.

        Raises UserError for a file that is missing, foreign, damaged, cut off or of a newer format, for another model,
        rope setting, dtype, kind of device or tokenizer, and for a method that does not exist here.
        """
        file = prefixes.read_prefix(path_of(path, "The prefix"))
        header = file.header
        check_model(header, model)
        method = method_of(header)
        cache = make_cache(model, method, header.choice.budget, seed=header.seed, compress_every=header.compress_every)
        restore_state(cache, CacheState(json.loads(file.state), mapped_tensors(file)), model.device)
        turns = _turns(model, header.chat, header.system, header.thinking)
        executor = ThreadPoolExecutor(1, "kvlab-checksums")
        check = executor.submit(prefixes.check_tensors, file)
        executor.shutdown(wait=False)
        return cls(model, header, cache, tuple(prefixes.read_texts(file)), turns, check)

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
        tensors = {**state.tensors, prefixes.TEXTS: torch.frombuffer(bytearray(texts), dtype=torch.uint8)}
        self.header = self.header.model_copy(
            update={"created": datetime.now(UTC).isoformat(timespec="seconds"), "versions": versions()}
        )
        about = {
            prefixes.MARK: str(prefixes.FORMAT),
            prefixes.HEADER: self.header.as_json(),
            prefixes.STATE: json.dumps(state.values),
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
        ends = end_ids(self.model)
        written = list[int]()
        try:
            # The model's own end token is part of the text before a next question.
            while True:
                token = int(next_logits(self.model, cache, ids).argmax())
                written.append(token)
                ids = [token]
                if token in ends:
                    break
                if len(written) == max_new_tokens:
                    next_logits(self.model, cache, ids)
                    break
        finally:
            self.verify()  # damaged slots are reported as damage, whatever error they caused
        text = decode_answer(self.model.tokenizer, written)
        answer = Answer(text.strip(), tuple(written), "end" if token in ends else "length")
        if keep:
            said = prefixes.PrefixText(kind=QUESTION, text=question), prefixes.PrefixText(kind=ANSWER, text=answer.text)
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
        try:
            next_logits(self.model, cache, ids)
        finally:
            self.verify()  # as when it is asked
        self._take_over(cache, (prefixes.PrefixText(kind=EXTENSION, text=more),))

    def fork(self) -> Prefix:
        """A prefix of its own in the same state."""
        return replace(self, cache=copy_cache(self.cache))

    @property
    def _is_open(self) -> bool:
        """Whether what was read last is a text, which a question follows in the same turn."""
        return self.texts[-1].kind in (CONTEXT, EXTENSION)

    def _take_over(self, cache: CompressedCache, texts: tuple[prefixes.PrefixText, ...], **changed: Any) -> None:
        self.cache = cache
        self.texts = (*self.texts, *texts)
        self.header = with_memory(self.header.model_copy(update=changed), cache)


def _turns(model: LoadedModel, chat: str, system: str, thinking: bool | None) -> Turns:
    """How texts, questions and answers are put together. Raises UserError for a setting that would have no effect."""
    try:
        request = ModelRequest(model=model.name, chat=chat, system=system, thinking=thinking)
    except ValidationError as error:
        raise UserError(in_one_sentence(error, lambda field: f"The setting {field}")) from None
    return Turns.from_chat(chat_of(request, model.tokenizer))
