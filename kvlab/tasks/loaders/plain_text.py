"""Any text file: no labels needed, the compressed cache is measured against the full one.

The text is cut into windows of `length` tokens; the last `continuation` tokens of each are forced.
"""

from __future__ import annotations

from pathlib import Path

from transformers import PreTrainedTokenizerBase

from kvlab.common.errors import UserError
from kvlab.tasks.loaders.jsonl import Loaded, read_text
from kvlab.tasks.sample import Sample
from kvlab.tasks.text_windows import CONTINUATION, text_sample, windows


def load_plain_text(
    path: Path,
    tokenizer: PreTrainedTokenizerBase,
    skip_malformed: bool = False,
    length: int = 1024,
    continuation: int = CONTINUATION,
) -> Loaded:
    """Return one sample per window, in text order; raises UserError for an empty or undecodable file."""
    text = read_text(path)
    if not text.strip():
        raise UserError(f"{path} is empty: give a text of at least a few hundred words.")
    pieces = windows(tokenizer, text, length, continuation)
    return Loaded([_sample(path, index, piece, continuation, tokenizer) for index, piece in enumerate(pieces)])


def _sample(path: Path, index: int, piece: str, continuation: int, tokenizer: PreTrainedTokenizerBase) -> Sample:
    return text_sample(tokenizer, piece, f"text/{path.stem}", index, 0, "kl", continuation)
