"""A prompt that comes in chunks: how it is cut, and for which methods the result is the same.

Chunks make a pass's own states (hidden states, logits, attention masks) small. They do not make the cache small: every
layer holds all keys and values until the last chunk, when the method decides as it would have for the whole prompt.
Deciding after each chunk would need less, and would be another method. Without chunks no more than one layer's keys and
values are uncompressed at any moment.
"""

from __future__ import annotations

from kvlab.cache.layers.layer_state import LayerState
from kvlab.common.errors import UserError
from kvlab.methods.core.pipeline import Pipeline


def chunk_sizes(tokens: int, chunk: int) -> list[int]:
    """Sizes of the passes, each `chunk` but the first, which takes what is left over.

    The odd one comes first because methods look at the last queries. Raises UserError for a chunk below 1.
    """
    if chunk < 1:
        raise UserError(f"A prefill chunk of {chunk} tokens cannot be used: give a whole number of at least 1.")
    whole, odd = divmod(tokens, chunk)
    return [odd] * (odd > 0) + [chunk] * whole


def chunk_with_full_window(pipeline: Pipeline, tokens: int, most: int) -> int:
    """The largest chunk up to `most` whose last pass, which takes what is left over, is not too short.

    transformers puts the odd chunk last, and the method may look at more queries than it has. Raises UserError where
    no chunk gives the result of one pass.
    """
    check_chunks(pipeline, tokens, most)
    rows = pipeline.prompt_rows(tokens)
    fitting = (size for size in range(most, rows - 1, -1) if tokens % size == 0 or tokens % size >= rows)
    chunk = next(fitting, 0)
    if not chunk:
        raise UserError(
            f"This method looks at the last {rows:,} queries of the prompt together, and no chunk of up to {most:,} "
            f"tokens leaves so many for the last pass of {tokens:,} tokens: use a larger prefill_chunk_size, or none."
        )
    return chunk


def check_chunks(pipeline: Pipeline, tokens: int, chunk: int) -> None:
    """Raises UserError where a prompt of `tokens` in chunks of `chunk` would not give the result of one pass."""
    if tokens <= chunk:
        return
    check_parts(pipeline)
    if (rows := pipeline.prompt_rows(tokens)) > chunk:
        raise UserError(
            f"This method looks at the last {rows:,} queries of a prompt of {tokens:,} tokens together, so its prompt "
            f"cannot come in chunks of {chunk:,}: use chunks of at least {rows:,}."
        )


def check_parts(pipeline: Pipeline) -> None:
    """Raises UserError where the method must see the whole prompt in one pass."""
    if pipeline.score.needs_hidden_states:
        raise UserError(
            "This method works on the hidden states of the whole prompt, so its prompt cannot come in chunks: leave "
            "the prefill chunk out."
        )
    if pipeline.block:
        raise UserError("This method takes its prompt in blocks of its own: leave the prefill chunk out.")
    if pipeline.saves_prefill:
        raise UserError("prefill_saving drops tokens between layers, so the prompt cannot come in chunks: use one.")


def check_pass(layer: LayerState, rows: int) -> None:
    """Raises UserError, before anything changes, where the next pass of `rows` tokens would make a result that one pass
    over the prompt does not give: it does not fit the announced length, or the length was not announced.
    """
    settings, before = layer.settings, layer.cumulative_length
    narrowed = settings.passage is not None and layer.rank > 0  # the first layer was given all
    if settings.rehearses_now or narrowed or not settings.loses:
        return
    if layer.quota is None:
        _check_piece(settings.pipeline, before, rows, settings.prompt_tokens)
    elif rows > 1 and before == layer.prompt_end and not settings.prompt_tokens:
        raise UserError(
            f"The cache took the first pass of {before:,} tokens for the whole prompt, and {rows:,} more came at once: "
            f"for a prompt in several passes call cache.expect({before + rows}) before the first one, and "
            f"cache.expect({before}) where they are a second turn."
        )


def _check_piece(pipeline: Pipeline, before: int, rows: int, tokens: int) -> None:
    """Of a prompt of `tokens`, 0 where that is not known, `before` are there and `rows` come."""
    left = tokens - before - rows
    if not tokens or (left == 0 and before == 0):
        return
    if left < 0:
        raise UserError(
            f"A prompt of {tokens:,} tokens was announced, and this pass would make it {before + rows:,}: announce the "
            "whole prompt with cache.expect, and pass a further turn by itself."
        )
    check_parts(pipeline)
    last, wanted = left or rows, pipeline.prompt_rows(tokens)
    if last < wanted:
        raise UserError(
            f"This method looks at the last {wanted:,} queries of the prompt together, and the last pass would have "
            f"{last:,}: pass at least {wanted:,} tokens last."
        )
