"""A prompt that comes in chunks: how it is cut, and for which methods the result is the same.

Chunks make a pass's own states (hidden states, logits, attention masks) small. They do not make the cache small: every
layer holds all keys and values until the last chunk, when the method decides as it would have for the whole prompt.
Deciding after each chunk would need less, and would be another method. Without chunks no more than one layer's keys and
values are uncompressed at any moment.
"""

from __future__ import annotations

from kvlab.errors import UserError
from kvlab.methods.pipeline import Pipeline


def chunk_sizes(tokens: int, chunk: int) -> list[int]:
    """Sizes of the passes, each `chunk` but the first, which takes what is left over.

    The odd one comes first because methods look at the last queries. Raises UserError for a chunk below 1.
    """
    if chunk < 1:
        raise UserError(f"A prefill chunk of {chunk} tokens cannot be used: give a whole number of at least 1.")
    whole, odd = divmod(tokens, chunk)
    return [odd] * (odd > 0) + [chunk] * whole


def check_chunks(pipeline: Pipeline, tokens: int, chunk: int) -> None:
    """Raises UserError where a prompt of `tokens` in chunks of `chunk` would not give the result of one pass."""
    if tokens <= chunk:
        return
    if pipeline.score.needs_hidden_states:
        raise UserError(
            "This method works on the hidden states of the whole prompt, so its prompt cannot come in chunks: leave "
            "the prefill chunk out."
        )
    if pipeline.block:
        raise UserError("This method takes its prompt in blocks of its own: leave the prefill chunk out.")
    if pipeline.saves_prefill:
        raise UserError("prefill_saving drops tokens between layers, so the prompt cannot come in chunks: use one.")
    if (rows := pipeline.prompt_rows(tokens)) > chunk:
        raise UserError(
            f"This method looks at the last {rows:,} queries of a prompt of {tokens:,} tokens together, so its prompt "
            f"cannot come in chunks of {chunk:,}: use chunks of at least {rows:,}."
        )
