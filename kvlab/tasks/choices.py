"""Read the choices of a row and the answer that refers to one of them, by label or index. Torch-free."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from string import ascii_uppercase
from typing import Any

from kvlab.core.validation import plain_text, read_json

# Columns that list the texts to choose from, and those that continue the context in place of answering a question.
LISTS = ("choices", "options", "answer_choices", "candidates")
ENDINGS = ("endings", "ending")
# Columns with the label or index of the right choice, for rows whose answer is in no column of answers.
KEYS = ("answerkey", "answer_key", "answer_index", "answer_idx", "correct_option", "correct_index", "label")
BY_COLUMN = re.compile(r"(choice|option|ending|solution|sol|answer|op)[ _-]?([a-j]|\d)", re.IGNORECASE)
LABEL_NAMES = ("label", "labels", "key", "id")
TEXT_NAMES = ("text", "texts", "content", "value")


@dataclass(frozen=True)
class Choices:
    """Texts to choose from; `labels` are as given, else letters."""

    columns: tuple[str, ...]
    labels: tuple[str, ...]
    texts: tuple[str, ...]
    continue_context: bool = False
    are_numbers: bool = False

    def chosen(self, answer: Any) -> str | None:
        """The text that an answer refers to: itself, by its label, or by its index from 0; None if it is none of them.

        A whole number is a choice itself where the choices are numbers, and a label where one column names the labels.
        Digits as text are no index into columns, as some data sets count those from 1.
        """
        if isinstance(answer, bool) or not isinstance(answer, str | int | float):
            return None
        if isinstance(answer, float) and not answer.is_integer():
            return None
        is_text = isinstance(answer, str)
        in_one_column = len(self.columns) == 1
        written = str(answer if is_text else int(answer)).strip()
        if (is_text or self.are_numbers) and written in self.texts:
            return written
        bare = written.strip("().: ").casefold()
        labels = [label.strip("().: ").casefold() for label in self.labels]
        if bare in labels and (is_text or in_one_column):
            return self.texts[labels.index(bare)]
        is_index = re.fullmatch(r"[0-9]{1,2}", bare) and (in_one_column or not is_text)
        return self.texts[int(bare)] if is_index and int(bare) < len(self.texts) else None


def find_choices(values: Mapping[str, Any]) -> Choices | None:
    """The choices of a row, in one column or in one column each (`choice_A`, `choice_B`); None without two of them."""
    columns = {name.casefold(): name for name in values}
    for known in (*LISTS, *ENDINGS):
        if known in columns and (found := _listed(columns[known], values[columns[known]], known in ENDINGS)):
            return found
    # A list of answers beside the index of the right one.
    answers = values[columns["answers"]] if {"answers", "label"} <= set(columns) else None
    if isinstance(answers, list) and (found := _listed(columns["answers"], answers)):
        return found
    # Columns of one stem that are counted from A, 0 or 1 without a gap.
    stems: dict[str, dict[str, str]] = {}
    for name, value in values.items():
        matched = BY_COLUMN.fullmatch(name.strip())
        if matched and isinstance(value, str) and value.strip():
            stems.setdefault(matched[1].casefold(), {})[matched[2].upper()] = name
    for stem, by_label in stems.items():
        labels = sorted(by_label)
        if len(labels) > 1 and any("".join(labels) == row[: len(labels)] for row in (ascii_uppercase, *DIGITS)):
            names = tuple(by_label[label] for label in labels)
            texts = tuple(plain_text(values[name]).strip() for name in names)
            return Choices(names, tuple(labels), texts, stem in ENDINGS)
    return None


DIGITS = ("0123456789", "123456789")


def _listed(column: str, value: Any, continue_context: bool = False) -> Choices | None:
    """The choices of a cell: a list of texts or of objects, an object of two lists, or texts by label."""
    if isinstance(value, str) and value.lstrip()[:1] in ("[", "{"):
        try:
            value = read_json(value)  # as CSV has it
        except ValueError:
            return None
    texts: Any = value
    labels: Any = None
    if isinstance(value, Mapping):
        texts = _first(value, TEXT_NAMES)
        labels = _first(value, LABEL_NAMES)
        if not isinstance(texts, list):
            labels = [*value]
            texts = [*value.values()]
    elif isinstance(value, list) and all(isinstance(one, Mapping) for one in value):
        texts = [_first(one, TEXT_NAMES) for one in value]
        labels = [_first(one, LABEL_NAMES) for one in value]
    if not isinstance(texts, list) or not 2 <= len(texts) <= len(ascii_uppercase):
        return None
    if not all(isinstance(one, str | int | float) and not isinstance(one, bool) for one in texts):
        return None
    has_labels = isinstance(labels, list) and len(labels) == len(texts)
    named: Sequence[Any] = ascii_uppercase[: len(texts)]
    if has_labels and all(isinstance(one, str | int) for one in labels):
        named = labels
    written = tuple(plain_text(str(one)).strip() for one in texts)
    are_numbers = not any(isinstance(one, str) for one in texts)
    return Choices((column,), tuple(map(str, named)), written, continue_context, are_numbers)


def _first(value: Mapping[str, Any], names: Sequence[str]) -> Any:
    return next((value[name] for name in names if name in value), None)
