"""What a prefix is made of, as checked values: a text, a method with its budget, and the turns of a conversation."""

from __future__ import annotations

from pathlib import Path

from pydantic import JsonValue, ValidationError

from kvlab.common.errors import UserError
from kvlab.common.validation import check_text, decode_text, in_one_sentence, read_file
from kvlab.live.turns import Turns
from kvlab.methods import Method, make_method
from kvlab.methods.core.method import METHODS
from kvlab.models.chat import chat_of
from kvlab.models.load import LoadedModel
from kvlab.models.tokenizer import window_of
from kvlab.plugins.origin import KVLAB
from kvlab.requests.compare import FULL, LARGEST_PROMPT_BYTES, MethodChoice, ModelRequest


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


def turns_of(model: LoadedModel, chat: str, system: str, thinking: bool | None) -> Turns:
    """How texts, questions and answers are put together. Raises UserError for a setting that would have no effect."""
    try:
        request = ModelRequest(model=model.name, chat=chat, system=system, thinking=thinking)  # type: ignore[arg-type]
    except ValidationError as error:
        raise UserError(in_one_sentence(error, lambda field: f"The setting {field}")) from None
    return Turns.of(chat_of(request, model.tokenizer))


def check_window(loaded: LoadedModel, tokens: int, what: str) -> None:
    """Raise UserError if so many tokens exceed the model's window; `what` is what was to be read."""
    window = window_of(loaded.model.config)
    if tokens > window:
        raise UserError(
            f"{what} needs {tokens:,} tokens with all that was read before, but the context window of {loaded.name} is "
            f"{window:,}: shorten it."
        )


def origin_of(method: Method) -> str:
    """The plug-in that a method is from, with its version and hash; empty for kvlab's own."""
    origin = METHODS.origin(method.name)
    return "" if origin == KVLAB else f"{origin.name} {origin.stamp}"
