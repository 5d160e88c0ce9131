"""What a prefix is made of, as checked values: a text, and a method with its budget."""

from __future__ import annotations

from pathlib import Path

from pydantic import JsonValue, ValidationError

from kvlab.core.choice import FULL, MethodChoice
from kvlab.core.errors import UserError
from kvlab.core.methods import make_method
from kvlab.core.validation import check_text, decode_text, in_one_sentence, read_file
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
