"""Split a text into a prefix, which is compressed, and a continuation, which is forced and scored."""

from __future__ import annotations

from transformers import PreTrainedTokenizerBase

from kvlab.common.errors import UserError
from kvlab.tasks.sample import Sample
from kvlab.tasks.tokens import count_tokens, start_ids

CONTINUATION = 128  # tokens scored per sample: enough for a stable mean, few enough to decode one by one
SHORTEST_PREFIX = 32  # with fewer tokens there is nothing to compress


def token_starts(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """Return where each token of the text starts, in characters; raises UserError without a fast tokenizer."""
    if not tokenizer.is_fast:
        raise UserError(f"{tokenizer.name_or_path} has no fast tokenizer: text tasks need one with character offsets.")
    encoding = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    return [start for start, _ in encoding["offset_mapping"]]


def text_sample(
    tokenizer: PreTrainedTokenizerBase,
    text: str,
    task: str,
    index: int,
    seed: int,
    metric: str,
    continuation: int = CONTINUATION,
    length: int | None = None,
) -> Sample:
    """Return the sample that forces the last `continuation` tokens of `text`; raises UserError for too short a text."""
    starts = token_starts(tokenizer, text)
    if continuation < 2 or len(starts) < continuation + SHORTEST_PREFIX:
        need = max(continuation, 2) + SHORTEST_PREFIX
        raise UserError(f"{task}: {len(starts)} tokens are too few: give at least {need} or a smaller continuation.")
    cut = starts[-continuation]
    found = count_tokens(tokenizer, text[:cut], text[cut:])
    return Sample(
        task=task,
        index=index,
        seed=seed,
        length=length or found,
        context=text[:cut],
        question="",
        answers=[text[cut:]],
        metric=metric,
        max_new_tokens=0,
        stop=None,
        meta={"continuation": continuation},
    )


def windows(tokenizer: PreTrainedTokenizerBase, text: str, length: int, continuation: int = CONTINUATION) -> list[str]:
    """Cut the text into pieces of at most `length` tokens, including BOS; a short last piece is dropped."""
    starts = [*token_starts(tokenizer, text), len(text)]
    step = length - len(start_ids(tokenizer))
    last = len(starts) - 1
    pieces = [text[starts[i] : starts[min(i + step, last)]] for i in range(0, last, step) if i + step <= last or i == 0]
    return [_shorten(tokenizer, piece, length) for piece in pieces]


def _shorten(tokenizer: PreTrainedTokenizerBase, piece: str, length: int) -> str:
    # Tokenized on its own, a piece may start with different tokens and be one or two longer.
    while (excess := count_tokens(tokenizer, piece) - length) > 0:
        piece = piece[token_starts(tokenizer, piece)[excess] or 1 :]
    return piece
