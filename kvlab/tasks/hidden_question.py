"""Where in a prompt the statements that a task hid stand, in tokens."""

from __future__ import annotations

from transformers import PreTrainedTokenizerBase

from kvlab.tasks.sample import Sample
from kvlab.tasks.tokens import start_ids


def hidden_positions(tokenizer: PreTrainedTokenizerBase, sample: Sample) -> list[int]:
    """Return the positions in the prompt of every token that holds part of a hidden statement, in order.

    Empty where the sample hides nothing, or where the tokenizer does not say where its tokens stand (a slow one).
    """
    statements = sample.meta.get("statements")
    if not isinstance(statements, list) or not tokenizer.is_fast:
        return []
    found = tokenizer(sample.context, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    spans = [(start, start + len(text)) for text in map(str, statements) if (start := sample.context.find(text)) >= 0]
    first = len(start_ids(tokenizer))
    return [
        first + place
        for place, (start, stop) in enumerate(found["offset_mapping"])
        if any(start < end and begin < stop for begin, end in spans)
    ]
