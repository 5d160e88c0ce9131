"""Chunked prefill: chunk sizes, and the methods whose result does not depend on them.

Chunks reduce the pass's own states (hidden states, logits, attention masks), not the cache: every layer keeps all keys
and values until the last chunk, then the method decides as for the whole prompt. (Deciding after each chunk would need
less memory but would be another method.) Without chunks, only one layer's keys and values are uncompressed at a time.
"""

from kvlab.core.cache.layers.layer_state import LayerState
from kvlab.core.contract.pipeline import Pipeline
from kvlab.core.errors import UserError


def chunk_sizes(tokens: int, chunk: int) -> list[int]:
    """Sizes of the passes: `chunk` each, except the first, which takes the remainder.

    The remainder comes first because methods use the last queries. Raises UserError for a chunk below 1.
    """
    if chunk < 1:
        raise UserError(f"The prefill chunk must be at least 1 token, not {chunk}.")
    whole, odd = divmod(tokens, chunk)
    return [odd] * (odd > 0) + [chunk] * whole


def chunk_with_full_window(pipeline: Pipeline, tokens: int, most: int) -> int:
    """Largest chunk up to `most` whose last pass, the remainder, contains all queries the method uses.

    transformers puts the remainder last. Raises UserError if no chunk gives the result of one pass.
    """
    check_chunks(pipeline, tokens, most)
    rows = pipeline.prompt_rows(tokens)
    fitting = (size for size in range(most, rows - 1, -1) if tokens % size == 0 or tokens % size >= rows)
    chunk = next(fitting, 0)
    if not chunk:
        raise UserError(
            f"This method needs the last {rows:,} queries of the prompt in one pass, and no chunk of up to {most:,} "
            f"tokens leaves that many for the last pass of {tokens:,} tokens: use a larger prefill_chunk_size, or none."
        )
    return chunk


def check_chunks(pipeline: Pipeline, tokens: int, chunk: int) -> None:
    """Raise UserError if a prompt of `tokens` in chunks of `chunk` gives another result than one pass."""
    if tokens <= chunk:
        return
    check_parts(pipeline)
    if (rows := pipeline.prompt_rows(tokens)) > chunk:
        raise UserError(
            f"This method needs the last {rows:,} queries of the prompt of {tokens:,} tokens in one pass, so chunks of "
            f"{chunk:,} are too small: use chunks of at least {rows:,}."
        )


def check_parts(pipeline: Pipeline) -> None:
    """Raise UserError if the method needs the whole prompt in one pass."""
    if pipeline.score.needs_hidden_states:
        raise UserError(
            "This method needs the hidden states of the whole prompt in one pass, so its prompt cannot be split: do "
            "not set a prefill chunk."
        )
    if pipeline.block:
        raise UserError("This method splits its prompt into blocks itself: do not set a prefill chunk.")


def check_pass(layer: LayerState, rows: int) -> None:
    """Raise UserError, before anything changes, if a pass of `rows` tokens cannot give the result of one pass.

    That is, it does not match the announced prompt length, or no length was announced.
    """
    settings = layer.settings
    pipeline = settings.pipeline
    tokens = settings.prompt_tokens  # 0: unknown
    before = layer.cumulative_length
    if settings.in_second_pass or not settings.is_lossy:
        return
    if layer.head_budgets is not None:
        if rows > 1 and before == layer.prompt_end and not tokens:
            raise UserError(
                f"The cache took the first pass of {before:,} tokens for the whole prompt, and {rows:,} more arrived "
                f"at once: call cache.expect({before + rows}) before the first pass if the prompt comes in several "
                f"passes, or cache.expect({before}) if these are a second turn."
            )
        return
    left = tokens - before - rows
    if not tokens or (left == 0 and before == 0):
        return
    if left < 0:
        raise UserError(
            f"A prompt of {tokens:,} tokens was announced, and this pass would make it {before + rows:,}: announce the "
            "whole prompt with cache.expect, and pass further turns separately."
        )
    check_parts(pipeline)
    last = left or rows
    wanted = pipeline.prompt_rows(tokens)
    if last < wanted:
        raise UserError(
            f"This method needs the last {wanted:,} queries of the prompt in one pass, but the last pass would have "
            f"{last:,}: pass at least {wanted:,} tokens last."
        )
