"""Long-text perplexity: bits per byte of the continuation after a compressed prefix."""

from __future__ import annotations

from transformers import PreTrainedTokenizerBase

from kvlab.tasks.draft import Draft, book_sample
from kvlab.tasks.sample import Sample
from kvlab.tasks.task import Task
from kvlab.tasks.text_windows import CONTINUATION


def generate(
    tokenizer: PreTrainedTokenizerBase, length: int, seed: int, index: int, *, continuation: int = CONTINUATION
) -> Sample:
    """Return `length` tokens of a book; the last `continuation` are forced and scored in bits per byte."""
    return book_sample(Draft(tokenizer, "perplexity", length, seed, index), "bits_per_byte", continuation)


TASK = Task("perplexity", "bits per byte of a book's continuation (lower is better)", generate)
