"""Tables of prompts."""

from collections import Counter
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from kvlab.common.formatting import prompts
from kvlab.core.errors import UserError
from kvlab.tasks.loaders.jsonl import Loaded, read_records, sample_of
from kvlab.tasks.loaders.longbench import LONGBENCH_TASKS
from kvlab.tasks.loaders.ruler import ruler_metric
from kvlab.tasks.prompt_table import TableRecord
from kvlab.tasks.sample import UNSCORED, Sample


def load_table(path: Path, tokenizer: PreTrainedTokenizerBase, skip_malformed: bool = False) -> Loaded:
    """Prompts with answers as JSON lines, JSON, CSV or Parquet: kvpress's tables, and any user's prompts.

    Columns: `context` (or `prompt`, `text`, `input` ...), `answer` (or `answers`, a text, a number or a list of them),
    and optionally `question`, `answer_prefix`, `max_new_tokens`, `task`, `group`, `metric` and `all_classes` (the
    classes of `classification`); or `messages`. See `kvlab.tasks.prompt_table` for how a row is read. A row is scored
    by its `metric`, else by that of the RULER or LongBench task it is named after, else by whether any answer occurs in
    the generated text (`string_match_part`). Raises UserError naming the first malformed line.
    """
    records, skipped = read_records(path, TableRecord, skip_malformed)
    counts = Counter(note for _, record in records for note in record.notes)
    notes = [f"{path}, {prompts(count)}: {note}" for note, count in counts.items()]
    return Loaded([table_sample(path, number, record, tokenizer) for number, record in records], skipped, notes)


def table_sample(path: Path, number: int, record: TableRecord, tokenizer: PreTrainedTokenizerBase) -> Sample:
    """The sample of a row; its task is its group, its task, or the file's name, and without answers it has no score."""
    context = record.context
    if record.turns and tokenizer.chat_template:
        if len(record.turns) > 1:
            raise UserError(
                f"{path}:{number} is a conversation of {len(record.turns)} turns; with a chat template these work "
                "in `kvlab compare` only: give the text of one user turn."
            )
        context = record.turns[0].content
    name = record.task.removesuffix("_e")
    longbench = LONGBENCH_TASKS.get(name)
    metric = longbench.metric if longbench else ruler_metric(name) or "string_match_part"
    metric = (record.metric or metric) if record.answer else UNSCORED
    return sample_of(
        number,
        tokenizer,
        context,
        record.question,
        task=record.group or record.task or path.stem,
        answers=record.answer,
        metric=metric,
        max_new_tokens=record.max_new_tokens,
        stop=None,
        meta={"classes": list(record.all_classes)} if record.all_classes else None,
    )
