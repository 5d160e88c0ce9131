"""Windows of a user's text, whose ends are forced."""

from pathlib import Path

from transformers import PreTrainedTokenizerBase

from kvlab.core.errors import UserError
from kvlab.tasks.forced_texts import CONTINUATION, text_sample
from kvlab.tasks.loaders.jsonl import Loaded, read_text
from kvlab.tasks.tokens import count_tokens, start_ids, token_starts


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
    pieces = windows(tokenizer, text, length)
    task = f"text/{path.stem}"
    samples = [text_sample(tokenizer, piece, task, index, 0, "kl", continuation) for index, piece in enumerate(pieces)]
    return Loaded(samples)


def windows(tokenizer: PreTrainedTokenizerBase, text: str, length: int) -> list[str]:
    """Cut the text into pieces of at most `length` tokens, including BOS; a short last piece is dropped."""
    starts = [*token_starts(tokenizer, text), len(text)]
    step = length - len(start_ids(tokenizer))
    last = len(starts) - 1
    pieces = [text[starts[i] : starts[min(i + step, last)]] for i in range(0, last, step) if i + step <= last or i == 0]
    for number, piece in enumerate(pieces):
        # Tokenized on its own, a piece may start with different tokens and be one or two longer.
        while (excess := count_tokens(tokenizer, piece) - length) > 0:
            piece = piece[token_starts(tokenizer, piece)[excess] or 1 :]
        pieces[number] = piece
    return pieces
