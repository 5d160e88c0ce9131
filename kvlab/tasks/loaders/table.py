"""Prompts with their answers as Parquet or JSON, in the columns of kvpress's tables; anybody's own prompts fit too.

Columns: `context` (or `prompt`), `answer` (or `answers`, a text, a number or a list of them), and, where wanted,
`question`, `answer_prefix`, `max_new_tokens`, `task`, `metric` and `all_classes` (the classes of `classification`). A
row is scored by its `metric`; without one by that of the RULER or LongBench task it is named after; else an answer is
right where any of those given occurs in what is written (`string_match_part`).
"""

from __future__ import annotations

from pathlib import Path

from transformers import PreTrainedTokenizerBase

from kvlab.tasks.loaders.entry import sample_of
from kvlab.tasks.loaders.jsonl import Loaded, read_records
from kvlab.tasks.loaders.longbench_prompts import LONGBENCH_TASKS
from kvlab.tasks.loaders.ruler import ruler_metric
from kvlab.tasks.prompt_table import TableRecord
from kvlab.tasks.sample import Sample


def load_table(path: Path, tokenizer: PreTrainedTokenizerBase, skip_malformed: bool = False) -> Loaded:
    """Return the samples of a table of prompts; raises UserError naming the first malformed line."""
    records, skipped = read_records(path, TableRecord, skip_malformed)
    return Loaded([_sample(path.stem, number, record, tokenizer) for number, record in records], skipped)


def _sample(name: str, number: int, record: TableRecord, tokenizer: PreTrainedTokenizerBase) -> Sample:
    question = record.question + record.answer_prefix
    return sample_of(
        number,
        tokenizer,
        record.context,
        question,
        task=record.task or name,
        answers=record.answer,
        metric=record.metric or _metric_of(record.task),
        max_new_tokens=record.max_new_tokens,
        stop=None,
        meta={"classes": list(record.all_classes)} if record.all_classes else None,
    )


def _metric_of(task: str) -> str:
    name = task.removesuffix("_e")
    known = LONGBENCH_TASKS.get(name)
    return known.metric if known else ruler_metric(name) or "string_match_part"
