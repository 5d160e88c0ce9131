"""Next-token KL: divergence of a compressed cache's predictions from the full cache's on any text; no labels."""

from __future__ import annotations

from transformers import PreTrainedTokenizerBase

from kvlab.tasks.draft import Draft, book_sample
from kvlab.tasks.sample import Sample
from kvlab.tasks.task import Task
from kvlab.tasks.text_windows import CONTINUATION


def generate(
    tokenizer: PreTrainedTokenizerBase, length: int, seed: int, index: int, *, continuation: int = CONTINUATION
) -> Sample:
    """Return `length` tokens of a book; KL(full || compressed) in nats is measured over the last `continuation`."""
    return book_sample(Draft(tokenizer, "next_token_kl", length, seed, index), "kl", continuation)


TASK = Task("next_token_kl", "KL to the full cache on a book's continuation (lower is better)", generate)
