"""How a sample becomes token ids: what the tokenizer puts first (BOS, mostly), then the context, then the question.

Each is tokenized on its own: the context's ids are the same whether the question is in sight or not.
"""

from __future__ import annotations

from transformers import PreTrainedTokenizerBase

from kvlab.errors import UserError
from kvlab.tasks.sample import Sample


def text_ids(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """Return the ids of the text without special tokens."""
    return list(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]) if text else []


def start_ids(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Return what the tokenizer itself puts before a text: BOS for most, where the sink sits; nothing for some."""
    bos, whole = tokenizer.bos_token_id, tokenizer("a", verbose=False)["input_ids"]
    return [bos] if bos is not None and whole[:1] == [bos] else []


def prompt_ids(tokenizer: PreTrainedTokenizerBase, sample: Sample) -> tuple[list[int], list[int]]:
    """Return (BOS + context ids, question ids)."""
    return start_ids(tokenizer) + text_ids(tokenizer, sample.context), text_ids(tokenizer, sample.question)


def continuation_ids(tokenizer: PreTrainedTokenizerBase, sample: Sample) -> list[int]:
    """Return the ids of the text that a text task forces upon the model."""
    return text_ids(tokenizer, sample.answers[0])


def count_tokens(tokenizer: PreTrainedTokenizerBase, *parts: str) -> int:
    """Return the length in tokens of a prompt made of these parts, BOS included."""
    return len(start_ids(tokenizer)) + sum(len(text_ids(tokenizer, part)) for part in parts)


def shorten(tokenizer: PreTrainedTokenizerBase, sample: Sample, most: int) -> Sample:
    """Return the sample with the middle of its context cut out where its prompt exceeds `most` tokens.

    LongBench's rule; the length before stands in `meta["shortened_from"]`.
    """
    context = text_ids(tokenizer, sample.context)
    rest = len(start_ids(tokenizer)) + len(text_ids(tokenizer, sample.question))
    if not sample.question and sample.answers and sample.max_new_tokens == 0:
        rest += len(continuation_ids(tokenizer, sample))
    if len(context) + rest <= most:
        return sample
    for half in range((most - rest) // 2, 0, -1):  # joined, the halves may take a token more than apart
        text = f"{tokenizer.decode(context[:half])}{tokenizer.decode(context[-half:])}"
        found = len(text_ids(tokenizer, text)) + rest
        if found <= most:
            meta = {**sample.meta, "shortened_from": len(context) + rest}
            return sample.model_copy(update={"context": text, "length": found, "meta": meta})
    raise UserError(f"{sample.task} #{sample.index}: the question alone fills the model's window of {most} tokens.")
