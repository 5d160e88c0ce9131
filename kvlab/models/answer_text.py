"""Decode what a model wrote: without special tokens, but with those that mark where thinking begins and ends."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from transformers import PreTrainedTokenizerBase

from kvlab.common.thoughts import is_mark


def decode_answer(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> str:
    """The text of generated tokens."""
    marks, special = special_tokens(tokenizer)
    if marks.isdisjoint(ids):
        return str(tokenizer.decode(list(ids), skip_special_tokens=True))
    return str(tokenizer.decode([one for one in ids if one not in special], skip_special_tokens=False))


@lru_cache(maxsize=4)
def special_tokens(tokenizer: PreTrainedTokenizerBase) -> tuple[frozenset[int], frozenset[int]]:
    """(ids of special tokens that mark thinking, ids of all other special tokens)."""
    added: dict[int, Any] = getattr(tokenizer, "added_tokens_decoder", {})
    marks = frozenset(one for one, token in added.items() if token.special and is_mark(str(token)))
    others = {one for one, token in added.items() if token.special}
    return marks, frozenset((others | set(tokenizer.all_special_ids)) - marks)
