"""Decode, check and count the tokens of pasted or uploaded prompts."""

from functools import lru_cache
from pathlib import Path
from typing import Any

from kvlab.common.formatting import format_bytes
from kvlab.core import UserError, check_text, decode_text
from kvlab.models.info.chat_template import ChatFormat, render_prompt, tokenizer_info
from kvlab.models.info.names import model_file
from kvlab.requests.compare import LARGEST_PROMPT_BYTES
from kvlab.requests.prompt_notes import prompt_notes, template_notes

CHARACTERS_PER_TOKEN = 4.0  # English prose under the usual vocabularies
TOKENIZER = "tokenizer.json"


def decode_upload(name: str, content: bytes) -> str:
    """The text of an uploaded file. Raises UserError if it is too large, empty, or not text."""
    check_upload_size(name, len(content))
    return check_prompt(decode_text(content, f"The file {name}"))


def check_upload_size(name: str, size: int) -> None:
    """Raises UserError if a text file is too large."""
    if size > LARGEST_PROMPT_BYTES:
        raise UserError(_too_large(f"The file {name}", size))


def check_prompt(text: str) -> str:
    """The prompt, if it can be run. Raises UserError if it is empty or too large."""
    if not text.strip():
        raise UserError("The prompt is empty: paste some text, upload a file or take a sample.")
    size = len(text.encode("utf-8", errors="surrogatepass"))
    if size > LARGEST_PROMPT_BYTES:
        raise UserError(_too_large("The prompt", size))
    return check_text(text)


def count_tokens(prompt: str, how: ChatFormat) -> tuple[int, bool]:
    """Tokens of the rendered prompt, and whether the count is exact; an estimate without the model's tokenizer.

    Raises UserError if the chat template refuses the prompt, or the system prompt would be ignored.
    """
    file = model_file(how.model, TOKENIZER)
    if file is None or tokenizer_of(how.model) is None:
        return max(1, round(len(prompt) / CHARACTERS_PER_TOKEN)), False
    read = render_prompt(prompt, how)
    return _count(file, file.stat().st_mtime, read.text, not read.templated), True


def notes(prompt: str, how: ChatFormat) -> list[str]:
    """Likely mistakes in the prompt's format, one sentence each; none without the model's tokenizer.

    Raises UserError as `count_tokens`.
    """
    tokenizer = tokenizer_of(how.model)
    if tokenizer is None or not prompt.strip():
        return []
    read = render_prompt(prompt, how)
    special = [token.content for token in tokenizer.get_added_tokens_decoder().values() if token.special]
    reader = tokenizer_info(how.model, special)
    # Only a text that writes out the BOS token can have two, so others need not be encoded.
    written = reader.bos is not None and reader.bos in read.text
    tokens = encode_text(tokenizer, read.text, not read.templated).tokens if written else []
    found = template_notes(read.text, how.turns, reader.template) if read.templated else []
    return [*found, *prompt_notes(prompt, tokens, read.templated, reader)]


def tokenizer_of(model: str) -> Any:
    """The model's tokenizer (of the tokenizers library) if it is on this machine, else None."""
    file = model_file(model, TOKENIZER)
    return _tokenizer(file, file.stat().st_mtime) if file else None


@lru_cache(maxsize=16)
def _count(file: Path, changed: float, text: str, special: bool) -> int:
    return len(encode_text(_tokenizer(file, changed), text, special))


def encode_text(tokenizer: Any, text: str, special: bool) -> Any:
    """The text's tokens (`tokenizers.Encoding`), without blocking other threads.

    Encoding a single text holds the GIL, 2.6 s for 2 MB; as a batch of one it does not.
    """
    return tokenizer.encode_batch([text], add_special_tokens=special)[0]


@lru_cache(maxsize=2)
def _tokenizer(file: Path, _changed: float) -> Any:
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception:  # the library raises no narrower class; the worker reports the error
        return None
    # transformers sets both for each call, whatever the file says, and kvlab asks for neither.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _too_large(what: str, size: int) -> str:
    most = format_bytes(LARGEST_PROMPT_BYTES)
    return f"{what} has {format_bytes(size)} and the most is {most}: cut it to the part you study."
