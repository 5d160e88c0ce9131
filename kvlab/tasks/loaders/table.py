"""Prompts with their answers as JSON lines, in the columns of kvpress's tables; anybody's own prompts fit too.

One object a line: `context` (or `prompt`), `answer` (or `answers`, a text or a list), and, where wanted, `question`,
`answer_prefix`, `max_new_tokens` and `task`. An answer is right where any of those given occurs in what is written.
"""

from __future__ import annotations

from pathlib import Path

from transformers import PreTrainedTokenizerBase

from kvlab.tasks.loaders.jsonl import Loaded, read_records
from kvlab.tasks.prompt_table import TableRecord
from kvlab.tasks.sample import Sample
from kvlab.tasks.tokens import count_tokens


def load_table(path: Path, tokenizer: PreTrainedTokenizerBase, skip_malformed: bool = False) -> Loaded:
    """Return the samples of a table of prompts; raises UserError naming the first malformed line."""
    records, skipped = read_records(path, TableRecord, skip_malformed)
    return Loaded([_sample(path.stem, number, record, tokenizer) for number, record in records], skipped)


def _sample(name: str, number: int, record: TableRecord, tokenizer: PreTrainedTokenizerBase) -> Sample:
    question = record.question + record.answer_prefix
    return Sample(
        task=record.task or name,
        index=number - 1,
        seed=0,
        length=count_tokens(tokenizer, record.context, question),
        context=record.context,
        question=question,
        answers=record.answer,
        metric="string_match_part",
        max_new_tokens=record.max_new_tokens,
        stop=None,
        meta={"line": number},
    )
