"""Tokenize samples: special start tokens (mostly BOS), then the context, then the question.

Each is tokenized separately, so the context's ids do not depend on the question.
"""

from typing import Literal

from transformers import PreTrainedTokenizerBase

from kvlab.core.errors import UserError
from kvlab.tasks.sample import Sample


def text_ids(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """Return the ids of the text without special tokens."""
    return list(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]) if text else []


def start_ids(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Return the special tokens before a text: BOS for most tokenizers, where the attention sink is."""
    bos = tokenizer.bos_token_id
    whole = tokenizer("a", verbose=False)["input_ids"]
    return [bos] if bos is not None and whole[:1] == [bos] else []


def token_starts(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """Return where each token of the text starts, in characters; raises UserError without a fast tokenizer."""
    if not tokenizer.is_fast:
        raise UserError(f"{tokenizer.name_or_path} has no fast tokenizer: text tasks need one with character offsets.")
    encoding = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    return [start for start, _ in encoding["offset_mapping"]]


def prompt_ids(tokenizer: PreTrainedTokenizerBase, sample: Sample) -> tuple[list[int], list[int]]:
    """Return (BOS + context ids, ids of decoded text and question), without the first words of the answer."""
    later = text_ids(tokenizer, sample.decoded) + text_ids(tokenizer, sample.question)
    return start_ids(tokenizer) + text_ids(tokenizer, sample.context), later


def count_tokens(tokenizer: PreTrainedTokenizerBase, *parts: str) -> int:
    """Return the number of tokens of a prompt with these parts, including BOS."""
    return len(start_ids(tokenizer)) + sum(len(text_ids(tokenizer, part)) for part in parts)


Cut = Literal["start", "middle", "end"]


def shorten(tokenizer: PreTrainedTokenizerBase, sample: Sample, most: int, cut: Cut = "middle") -> Sample:
    """Cut the sample's context if its prompt exceeds `most` tokens; `meta["shortened_from"]` is the original length.

    `middle` is LongBench's rule: the prompt's first and last `most // 2` tokens are kept (its pred.py). The question is
    never cut: if it is longer than its half, the context's end is dropped. `start` and `end` cut the context's start or
    end. Raises UserError if the question alone is too long.
    """
    context = text_ids(tokenizer, sample.context)
    first = len(start_ids(tokenizer))
    question = len(text_ids(tokenizer, sample.question))
    if not sample.question and sample.answers and sample.max_new_tokens == 0:
        question = len(text_ids(tokenizer, sample.answers[0]))
    rest = first + question
    if len(context) + rest <= most:
        return sample
    # head and tail: the context's first and last tokens that are kept
    half = most // 2
    free = max(most - rest, 0)
    head, tail = (free, 0) if cut == "end" else (0, free)
    if cut == "middle":
        tail = max(half - question, 0)
        head = min(half - first, free) if tail else free
    while head + tail > 0:  # joined, the halves may take one more token
        # A cut inside a character leaves invalid bytes, which are removed.
        parts = context[:head], context[len(context) - tail :]
        first_part, last_part = (str(tokenizer.decode(part)) for part in parts)
        text = first_part.rstrip("\ufffd") + last_part.lstrip("\ufffd")
        found = len(text_ids(tokenizer, text)) + rest
        if found <= most:
            meta = {**sample.meta, "shortened_from": len(context) + rest}
            return sample.model_copy(update={"context": text, "length": found, "meta": meta})
        head, tail = max(head - (head >= tail), 0), max(tail - (tail >= head), 0)
    raise UserError(f"{sample.task} #{sample.index}: the question alone fills the {most:,} tokens a prompt may have.")


def hidden_positions(tokenizer: PreTrainedTokenizerBase, sample: Sample) -> list[int]:
    """Return the prompt positions of every token that overlaps a hidden statement, in order.

    Empty if nothing is hidden, or if the tokenizer is a slow one without character offsets.
    """
    statements = sample.meta.get("statements")
    texts = [str(text) for text in statements] if isinstance(statements, list) else []
    first = len(start_ids(tokenizer))
    searched = (first, sample.context), (first + len(text_ids(tokenizer, sample.context)), sample.decoded)
    return sorted(
        {
            start + place
            for start, whole in searched
            for text in texts
            for place in text_positions(tokenizer, whole, text)
        }
    )


def text_positions(tokenizer: PreTrainedTokenizerBase, whole: str, text: str) -> list[int]:
    """Return the indices of the tokens of `whole` that overlap the first occurrence of `text`; none if it is empty.

    Special tokens are not counted. Empty too for a slow tokenizer, which has no character offsets.
    """
    start = whole.find(text)
    if not text or start < 0 or not tokenizer.is_fast:
        return []
    stop = start + len(text)
    found = tokenizer(whole, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    return [place for place, (begin, end) in enumerate(found["offset_mapping"]) if start < end and begin < stop]
