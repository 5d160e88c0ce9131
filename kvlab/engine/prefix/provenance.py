"""What a prefix was made by, and whether a model, a tokenizer and a method are the same now."""

import hashlib
import json
from pathlib import Path
from textwrap import shorten
from typing import Any

from pydantic import JsonValue, ValidationError

from kvlab.core.budget import Budget, resolve_store
from kvlab.core.cache.settings import shape_of
from kvlab.core.choice import FULL, MethodChoice
from kvlab.core.contract.method import METHODS
from kvlab.core.errors import UserError
from kvlab.core.fitted.files import model_digest
from kvlab.core.methods import Method, make_method, registered
from kvlab.core.plugins.origin import KVLAB
from kvlab.core.validation import check_text, decode_text, in_one_sentence, read_file
from kvlab.engine.environment import versions
from kvlab.library.prefixes import PrefixHeader, PrefixModel
from kvlab.models.load import LoadedModel
from kvlab.requests.compare import LARGEST_PROMPT_BYTES


def read_text(text: str | Path) -> str:
    """The text, or what the text file of a path holds. Raises UserError if it is empty or no text."""
    if isinstance(text, Path):
        text = decode_text(read_file(text, "The text file", LARGEST_PROMPT_BYTES), "The text file")
    if not check_text(text, "The text").strip():
        raise UserError("The text is empty: paste some text or choose a file.")
    return text


def choice_of(method: str, budget: float | int | str, hyper_parameters: dict[str, JsonValue]) -> MethodChoice:
    """The method as it is asked for; one without a budget keeps all. Raises UserError for an invalid budget."""
    try:
        choice = MethodChoice(method=method, budget=budget, hyper_parameters=hyper_parameters)
    except ValidationError as error:
        raise UserError(in_one_sentence(error, lambda field: f"The {field.partition('.')[0]}")) from None
    needs_budget = make_method(choice.method, **choice.hyper_parameters).needs_budget
    return choice if needs_budget else choice.model_copy(update={"budget": FULL.budget})


ROPE = "rope_parameters"
TOKENS = '"added_tokens"'  # a field of a tokenizer written as JSON
WIDEST_TITLE = 60


def header_of(
    model: LoadedModel,
    context: str,
    choice: MethodChoice,
    method: Method,
    *,
    loading: dict[str, JsonValue],
    context_tokens: int,
    title: str = "",
    **more: Any,
) -> PrefixHeader:
    """The header of a prefix that has read `context` with `method`, made of `choice`; its cache is not described yet.

    `loading` are the arguments of `kvlab.load_model`, `title` defaults to the first words, and `more` are other fields
    of the header as they are, such as its owner.
    """
    origin = METHODS.origin(method.name)  # a plug-in, or kvlab itself
    return PrefixHeader(
        title=title.strip() or shorten(context[: 4 * WIDEST_TITLE], WIDEST_TITLE, placeholder=" ..."),
        created="",
        versions=versions(),
        model=model_of(model, loading),
        choice=choice,
        settings=method.model_dump(mode="json"),
        origin="" if origin == KVLAB else f"{origin.name} {origin.stamp}",
        store=resolve_store(method.store, Budget(choice.budget)),
        text_sha256=hashlib.sha256(context.encode()).hexdigest(),
        context_tokens=context_tokens,
        tokens=context_tokens,
        layers=(),
        **more,
    )


def model_of(loaded: LoadedModel, loading: dict[str, JsonValue]) -> PrefixModel:
    """The model as a prefix records it; `loading` are the arguments of `kvlab.load_model` that loaded it."""
    model: Any = loaded.model
    # The tokenizer as 12 hex digits of its vocabulary, rules and chat template.
    backend: Any = getattr(loaded.tokenizer, "backend_tokenizer", None)
    if backend is None:
        rules = json.dumps(sorted(loaded.tokenizer.get_vocab().items()))
    else:  # before its tokens stand truncation and padding, which the last call may have changed
        written = backend.to_str()
        rules = written[max(written.find(TOKENS), 0) :]
    template = json.dumps(loaded.tokenizer.chat_template, sort_keys=True)
    return PrefixModel(
        name=loaded.name,
        digest=model_digest(model),
        dtype=str(model.dtype).removeprefix("torch."),
        device=loaded.device.type,
        shape=json.loads(json.dumps(shape_of(model.config), default=str)),
        tokenizer=hashlib.sha256((rules + template).encode()).hexdigest()[:12],
        loading=loading,
    )


def check_model(header: PrefixHeader, loaded: LoadedModel) -> None:
    """Raise UserError unless the model would continue the prefix as the one that read it: same weights, rope settings,
    dtype, kind of device and tokenizer.
    """
    kept = header.model
    now = model_of(loaded, {})
    if kept.device != now.device:
        raise UserError(
            f"This prefix was made on {kept.device} and the model is on {now.device}, which rounds differently: load "
            f"the model with --device {kept.device}, or make the prefix again."
        )
    if kept.dtype != now.dtype:
        raise UserError(
            f"This prefix holds keys and values in {kept.dtype}, and the model computes in {now.dtype}: load it with "
            f"--dtype {kept.dtype}."
        )
    if kept.shape.get(ROPE) != now.shape.get(ROPE):
        raise UserError(
            f"The keys of this prefix were rotated with other rope settings ({_words(kept)}) than the model has now "
            f"({_words(now)}): load the model as it was, or make the prefix again."
        )
    if (kept.digest, kept.shape) != (now.digest, now.shape):
        raise UserError(
            f"This prefix was read by {kept.name} with weights {kept.digest}, and {now.name} has weights {now.digest}: "
            "load that model, or make the prefix again."
        )
    if kept.tokenizer != now.tokenizer:
        raise UserError(
            f"The tokenizer or chat template of {now.name} has changed since this prefix was made: make the prefix "
            "again."
        )


def _words(model: PrefixModel) -> str:
    found = model.shape.get(ROPE)
    return ", ".join(f"{name} {value}" for name, value in found.items()) if isinstance(found, dict) else str(found)


def method_of(header: PrefixHeader) -> Method:
    """The method with the settings that the prefix was compressed by.

    Raises UserError if it no longer exists, such as without its plug-in, or no longer takes these settings.
    """
    name = header.choice.method
    origin = header.origin
    if name not in registered():
        if origin:
            raise UserError(
                f"This prefix was compressed by {name!r} of the plug-in {origin}: name its file with --plugin."
            )
        raise UserError(
            f"This prefix was compressed by {name!r}, which this kvlab does not have: use the version that made it, or "
            "make the prefix again."
        )
    try:
        return make_method(name, **header.settings)
    except UserError as error:
        raise UserError(f"{str(error).rstrip('.')}; the prefix has settings of another version of {name!r}.") from error
