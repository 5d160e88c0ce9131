"""Windows of a user's text, whose ends are forced."""

from __future__ import annotations

from pathlib import Path

from transformers import PreTrainedTokenizerBase

from kvlab.common.errors import UserError
from kvlab.tasks.loaders.jsonl import Loaded, read_text
from kvlab.tasks.text_windows import CONTINUATION, text_sample, windows


def load_plain_text(
    path: Path,
    tokenizer: PreTrainedTokenizerBase,
    skip_malformed: bool = False,
    length: int = 1024,
    continuation: int = CONTINUATION,
) -> Loaded:
    """Any text file: no labels needed, the compressed cache is measured against the full one.

    The text is cut into windows of `length` tokens; the last `continuation` tokens of each are forced. Raises UserError
    for an empty or undecodable file.
    """
    text = read_text(path)
    if not text.strip():
        raise UserError(f"{path} is empty: give a text of at least a few hundred words.")
    pieces = windows(tokenizer, text, length, continuation)
    task = f"text/{path.stem}"
    samples = [text_sample(tokenizer, piece, task, index, 0, "kl", continuation) for index, piece in enumerate(pieces)]
    return Loaded(samples)
