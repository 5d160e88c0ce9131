"""Validate input from the command line, a form or the Python API, with messages for the user."""

import codecs
import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import from_json

from kvlab.core.errors import UserError

LONGEST_SHOWN = 60
SETTINGS: set[str] = set()  # fields that the command which runs takes by `--set`
BREAKS_LINES = frozenset("\t\n\v\f\r\x1b")
# Longest first: the mark of UTF-32 LE begins with that of UTF-16 LE.
BYTE_ORDER_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
# a share of the characters, or so many: text from terminals and PDFs has a few
MOST_CONTROLS = 0.01
FEW_CONTROLS = 8


class Frozen(BaseModel):
    """A model whose fields do not change."""

    model_config = ConfigDict(frozen=True)


class Strict(Frozen):
    """The same that refuses unknown fields."""

    model_config = ConfigDict(extra="forbid")


def quote_value(value: object) -> str:
    """The value as quoted in a message, shortened if long."""
    text = repr(value) if not isinstance(value, int) or abs(value) < 10**LONGEST_SHOWN else "a number that long"
    return text if len(text) <= LONGEST_SHOWN else f"{text[: LONGEST_SHOWN - 4]} ..."


def check_text(text: str, what: str = "The prompt") -> str:
    """The text, if it can be encoded and is not binary.

    Raises UserError if it holds an unpaired surrogate or control characters that no text has.
    """
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise UserError(
            f"{what} holds an unpaired surrogate at {error.start:,}: remove that character, or save the text as UTF-8 "
            "again."
        ) from None
    controls = sum(character < " " and character not in BREAKS_LINES for character in text)
    if "\0" in text or controls > max(FEW_CONTROLS, MOST_CONTROLS * len(text)):
        raise UserError(
            f"{what} holds bytes that are no text ({controls:,} control characters): give it as plain text."
        )
    return text


def decode_text(content: bytes, what: str) -> str:
    """The text of a file's bytes: UTF-8, or the encoding of its byte order mark, with line breaks as `plain_text`.

    All uploaded and named files are decoded here, so that the same text has the same tokens. Raises UserError if the
    bytes are no text.
    """
    encoding = next((name for mark, name in BYTE_ORDER_MARKS if content.startswith(mark)), "utf-8")
    try:
        text = content.decode(encoding)
    except UnicodeDecodeError as error:
        raise UserError(
            f"{what} is not {encoding.upper()} text (byte {error.start} cannot be read): save it as UTF-8 and try "
            "again."
        ) from None
    return check_text(plain_text(text.lstrip("\ufeff")), what)


def plain_text(text: str) -> str:
    """The text with every line break as one line feed."""
    return re.sub(r"\r\n?", "\n", text)


def as_option(field: str) -> str:
    """How a request's field is given on the command line."""
    name = field.split(".")[0].replace("max_new_tokens", "new_tokens")
    return f"--set {name}" if name in SETTINGS else f"The option --{name.replace('_', '-')}"


Text = Annotated[str, AfterValidator(check_text)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]


def read_json(text: str | bytes) -> Any:
    """What the JSON holds; unlike `json.loads` it ends at deep nesting, endless numbers, NaN and half signs.

    Raises:
        ValueError: it is no JSON, or holds one of these.
    """
    return from_json(text, allow_inf_nan=False)


def path_of(value: object, what: str) -> Path:
    """The path; raises UserError for what names none."""
    try:
        if isinstance(value, str | os.PathLike) and "\0" not in str(value):
            os.fsencode(value)
            return Path(value)
    except (UnicodeEncodeError, TypeError):  # half a sign, or a PathLike that gives no path
        pass
    raise UserError(f"{what} cannot be {quote_value(value)}: give a path.")


def read_file(path: Path, what: str, most: int) -> bytes:
    """What the file holds. A pipe or a device is refused: one would wait, the other never end.

    Raises UserError if it is no ordinary file, has more than `most` bytes, or cannot be read.
    """
    try:
        if path.exists() and not path.is_dir() and not path.is_file():
            raise UserError(f"{what} {str(path)!r} is a pipe or a device: name an ordinary file.")
        with path.open("rb") as file:
            data = file.read(most + 1)
    except (OSError, ValueError) as error:  # a path with a zero byte is a ValueError
        if isinstance(error, UserError):
            raise
        reason = getattr(error, "strerror", None) or "no such file"
        raise UserError(f"{what} {str(path)!r} cannot be read: {reason.lower()}.") from None
    if len(data) > most:
        raise UserError(f"{what} {str(path)!r} is too large: give one of at most {most:,} bytes.")
    return data


def name_of(value: object, what: str) -> str:
    """The name; raises UserError if it is not a string."""
    if not isinstance(value, str):
        raise UserError(f"{what} cannot be {quote_value(value)}: give its name.")
    return value


def whole_number(value: object, what: str, least: int, most: int) -> int:
    """The number; raises UserError if it is not an integer in range."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise UserError(f"{what} cannot be {quote_value(value)}: give a whole number from {least} to {most}.")
    return value


def in_one_sentence(error: ValidationError, named: Callable[[str], str] = str) -> str:
    """The first validation error as a sentence; `named` maps a field to its name in the interface."""
    first: Any = error.errors(include_url=False)[0]
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, UserError):
        return str(cause)
    field = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        return f"There is no setting {named(field)!r}: check its spelling."
    reason = str(cause if cause is not None else first["msg"]).rstrip(".")
    if not field:
        return f"This request cannot be run: {reason}."
    return f"{named(field)} cannot be {quote_value(first['input'])}: {reason[:1].lower()}{reason[1:]}."


def check_ids(ids: Iterable[int], model: Any, tokenizer: Any) -> None:
    """Raises UserError for the first token id without a row in the model's embedding, which a tokenizer may have."""
    rows = int(model.get_input_embeddings().weight.shape[0])
    beyond = next((index for index in ids if index >= rows), None)
    if beyond is not None:
        raise UserError(
            f"The text holds the token {tokenizer.convert_ids_to_tokens(beyond)!r} (id {beyond:,}), but the model's "
            f"embedding has {rows:,} rows: leave the token out, or give a model whose embedding was resized for it "
            "(resize_token_embeddings)."
        )
