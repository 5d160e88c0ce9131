"""What every loader makes of one entry of a file."""

from __future__ import annotations

from typing import Any

from pydantic import JsonValue
from transformers import PreTrainedTokenizerBase

from kvlab.tasks.sample import Sample
from kvlab.tasks.tokens import count_tokens


def sample_of(
    number: int,
    tokenizer: PreTrainedTokenizerBase,
    context: str,
    question: str,
    *,
    meta: dict[str, JsonValue] | None = None,
    **fields: Any,
) -> Sample:
    """Return the sample of a file's entry `number`, counted from 1, as long as its prompt; `fields` are `Sample`'s."""
    counted = {"index": number - 1, "seed": 0, "length": count_tokens(tokenizer, context, question)}
    return Sample(context=context, question=question, meta={"line": number} | (meta or {}), **(counted | fields))
