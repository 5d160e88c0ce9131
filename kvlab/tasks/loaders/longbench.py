"""LongBench's jsonl files: one object per line with `input`, `context`, `answers`, `all_classes` and `dataset`.

Prompts, answer lengths, metrics and the use of chat templates are LongBench's (`longbench_prompts`). Three differences
from the released scorer are intended: ROUGE-L is from rouge-score (the option `metric=rouge_l_longbench` selects the
package `rouge`, as LongBench), edit similarity is from rapidfuzz, and a class name that is part of the right one is
always ignored (the released loop skips an element after each one it removes).
"""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, Field
from transformers import PreTrainedTokenizerBase

from kvlab.common.errors import UserError
from kvlab.tasks.loaders.jsonl import Loaded, read_records, sample_of
from kvlab.tasks.loaders.longbench_prompts import FIRST_LINE_TASKS, LONGBENCH_TASKS, UNWRAPPED_TASKS, LongBenchTask
from kvlab.tasks.sample import Sample


class LongBenchRecord(BaseModel):
    """One line of a LongBench file."""

    context: str = Field(min_length=1)
    answers: list[str] = Field(min_length=1)
    input: str = ""
    all_classes: list[str] | None = None
    dataset: str | None = None


def load_longbench(path: Path, tokenizer: PreTrainedTokenizerBase, skip_malformed: bool = False) -> Loaded:
    """Return the samples of a LongBench file; raises UserError for a malformed line or an unknown task."""
    records, skipped = read_records(path, LongBenchRecord, skip_malformed)
    samples = [_sample(_task_name(path, record), number, record, tokenizer) for number, record in records]
    return Loaded(samples, skipped)


def _task_name(path: Path, record: LongBenchRecord) -> str:
    name = (record.dataset or path.stem).removesuffix("_e")
    if name not in LONGBENCH_TASKS:
        known = ", ".join(LONGBENCH_TASKS)
        raise UserError(
            f"{path}: kvlab has no prompt for the LongBench task '{name}': name the file after one of {known}."
        )
    return name


def _sample(name: str, number: int, record: LongBenchRecord, tokenizer: PreTrainedTokenizerBase) -> Sample:
    task: LongBenchTask = LONGBENCH_TASKS[name]
    head, _, tail = task.prompt.partition("{context}")
    context, question = head + record.context, tail.replace("{input}", record.input)
    return sample_of(
        number,
        tokenizer,
        context,
        question,
        task=f"longbench/{name}",
        answers=record.answers,
        metric=task.metric,
        max_new_tokens=task.max_new_tokens,
        stop="\n" if name in FIRST_LINE_TASKS else None,
        chat=name not in UNWRAPPED_TASKS,
        meta={"classes": list(record.all_classes or [])},
    )
