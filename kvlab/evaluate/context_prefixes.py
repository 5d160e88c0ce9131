"""Compressed contexts of evaluations, kept as prefixes: each is read once per method, and then opened."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from kvlab.core.cache import CompressedCache
from kvlab.core.cache.cache_copy import copy_cache
from kvlab.core.choice import MethodChoice
from kvlab.core.methods import make_method
from kvlab.engine.prefix import Prefix
from kvlab.engine.prefix.provenance import header_of, model_of
from kvlab.evaluate.prepare import PreparedPrompt
from kvlab.library.prefix_lanes import proposed_name, recorded_loading
from kvlab.library.prefixes import PrefixFile, list_prefixes, prefix_path, read_prefix
from kvlab.models.load import LoadedModel
from kvlab.requests.compare import ModelRequest

Key = tuple[str, str, str, str, bool | None]  # text, method as JSON, and settings of the chat template


class KeptContexts:
    """The prefixes of a folder of runs as they fit one model and chat template; `opened` and `kept` count them."""

    def __init__(self, root: Path, loaded: LoadedModel, request: ModelRequest) -> None:
        self.root = root
        self.loaded = loaded
        self.request = request
        self.opened = self.kept = 0
        self._model = model_of(loaded, recorded_loading(request))
        self._files = {self._key_of(file): file for file in list_prefixes(root)[0] if self._fits(file)}

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

    def _fits(self, file: PrefixFile) -> bool:
        head = file.header
        same = head.model.model_copy(update={"name": self._model.name, "loading": self._model.loading}) == self._model
        return same and head.tokens == head.context_tokens and head.compress_every == 1 and head.seed == 0

    def _key_of(self, file: PrefixFile) -> Key:
        head = file.header
        return head.text_sha256, head.choice.model_dump_json(), head.chat, head.system, head.thinking

    def _chat_of(self, prompt: PreparedPrompt) -> tuple[str, str, bool | None]:
        """Settings of the chat template that the prompt is put into."""
        request = self.request
        return (request.chat, request.system, request.thinking) if prompt.is_in_chat else ("no", "", None)


def can_keep(prompts: Sequence[PreparedPrompt], question_aware: bool) -> bool:
    """Whether these prompts compress their context alone, so that its cache serves other questions too."""
    first = prompts[0]
    alone = first.in_sight(question_aware) == len(first.context) and bool(first.context)
    return len(prompts) == 1 and alone and not first.is_forced and not first.sample.temperature
