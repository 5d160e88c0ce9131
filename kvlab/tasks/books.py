"""Tasks on an excerpt of a book, whose end is forced and scored: perplexity, and divergence from the full cache."""

from __future__ import annotations

from kvlab.tasks.draft import Draft, drafted
from kvlab.tasks.sample import Sample
from kvlab.tasks.text_windows import CONTINUATION, text_sample


@drafted("perplexity", "bits per byte of a book's continuation (lower is better)")
def perplexity(draft: Draft, *, continuation: int = CONTINUATION) -> Sample:
    """The last `continuation` tokens are scored in bits per byte, after a compressed prefix."""
    return _excerpt(draft, "bits_per_byte", continuation)


@drafted("next_token_kl", "KL to the full cache on a book's continuation (lower is better)")
def next_token_kl(draft: Draft, *, continuation: int = CONTINUATION) -> Sample:
    """KL(full || compressed) in nats is measured over the last `continuation` tokens; no labels are needed."""
    return _excerpt(draft, "kl", continuation)


def _excerpt(draft: Draft, metric: str, continuation: int) -> Sample:
    text = draft.filled(lambda window: window.text)
    return text_sample(draft.tokenizer, text, draft.task, draft.index, draft.seed, metric, continuation, draft.length)
