"""Kamradt's needle test in a user's text."""

import re
from collections.abc import Sequence
from itertools import cycle, islice
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from kvlab.core.errors import UserError
from kvlab.tasks.draft import DEFAULT_LENGTHS, largest_fit, too_short
from kvlab.tasks.haystack import Window, hide, sentence_starts
from kvlab.tasks.loaders.jsonl import Loaded, read_text
from kvlab.tasks.sample import Sample
from kvlab.tasks.tokens import count_tokens

NEEDLE = "The best thing to do in San Francisco is eat a sandwich and sit in Dolores Park on a sunny day."
QUESTION = "\n\nWhat is the best thing to do in San Francisco?\nAnswer:"
PARTS = ("eat a sandwich", "Dolores Park", "sunny day")
DEPTHS = (0.05, 0.5, 0.95)
NEW_TOKENS = 48


def load_haystack(
    path: Path,
    tokenizer: PreTrainedTokenizerBase,
    skip_malformed: bool = False,
    lengths: Sequence[int] = DEFAULT_LENGTHS,
    depths: Sequence[float] = DEPTHS,
) -> Loaded:
    """Kamradt's needle test in a user's text: one prompt for each length and depth.

    Needle and question are his (LLMTest_NeedleInAHaystack); his haystack, Paul Graham's essays, can be given as one
    text file. A text shorter than requested is repeated, as in his code. He lets GPT-4 grade the answers from 1 to 10;
    here the score is the share of the needle's three parts in the answer, as whole words. Raises UserError for an empty
    file or too short a length.
    """
    words = re.findall(r"\S+\s*", read_text(path))
    if not words:
        raise UserError(f"{path} is empty: give a text to hide the needle in.")
    cells = [(length, depth) for length in lengths for depth in depths]
    return Loaded([_sample(path.stem, index, words, *cell, tokenizer) for index, cell in enumerate(cells)])


def _sample(
    name: str, index: int, words: Sequence[str], length: int, depth: float, tokenizer: PreTrainedTokenizerBase
) -> Sample:
    many = tuple(islice(cycle([*words[:-1], words[-1].rstrip() + " "]), length))  # a word has at least one token
    window = Window(many, tuple(sentence_starts(many)))

    least = count_tokens(tokenizer, hide(window.first(0), [NEEDLE], [depth]), QUESTION)
    if least > length:
        raise too_short(f"haystack/{name}", length, least)
    fits = largest_fit(
        lambda count: count_tokens(tokenizer, hide(window.first(count), [NEEDLE], [depth]), QUESTION) <= length,
        length,
        length // 2,
    )
    return Sample(
        task=f"haystack/{name}",
        index=index,
        seed=0,
        length=length,
        depth=depth,
        context=hide(window.first(fits), [NEEDLE], [depth]),
        question=QUESTION,
        answers=list(PARTS),
        metric="whole_match_all",
        max_new_tokens=NEW_TOKENS,
        meta={"statements": [NEEDLE]},
    )
