"""Split a prompt into prefill passes: all at once, or chunks with the same result."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from transformers import Cache

from kvlab.cache import CompressedCache
from kvlab.cache.chunked_prefill import check_chunks, chunk_sizes
from kvlab.common.errors import UserError
from kvlab.methods import make_method
from kvlab.requests.compare import MethodChoice


def pass_ends(cache: Cache, tokens: int, prefill_chunk: int | None) -> list[int]:
    """End position of each pass over a first prompt of `tokens`, which is announced to the cache.

    Raises UserError for a method whose result chunks would change.
    """
    if isinstance(cache, CompressedCache):
        return list(accumulate(cache.expect(tokens, prefill_chunk)))
    return list(accumulate(chunk_sizes(tokens, prefill_chunk or tokens)))


def check_choices(choices: Sequence[MethodChoice], tokens: int, prefill_chunk: int) -> None:
    """Raise UserError, naming the method, if chunks would change its result for a prompt of `tokens`."""
    for choice in choices:
        pipeline = make_method(choice.method, **choice.hyper_parameters).pipeline()
        try:
            check_chunks(pipeline, tokens, prefill_chunk)
        except UserError as error:
            raise UserError(f"{choice.label} and a prefill chunk of {prefill_chunk:,}: {error}") from None
