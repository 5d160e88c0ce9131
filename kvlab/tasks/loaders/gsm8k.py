"""GSM8K's jsonl files: one object per line with `question` and `answer`; the result follows "####".

The first `shots` problems become the worked examples of the context (the part that is compressed); the others are the
questions. With `shots_from=FILE`, such as train.jsonl, the examples are that file's first problems and every problem is
a question, as in lm-eval (with 5). A cache that loses the examples loses the answer format and the reasoning.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, Field
from transformers import PreTrainedTokenizerBase

from kvlab.common.errors import UserError
from kvlab.tasks.loaders.jsonl import Loaded, read_records, sample_of
from kvlab.tasks.sample import Sample

SHOTS = 8


class Gsm8kRecord(BaseModel):
    """One line of a GSM8K file."""

    question: str = Field(min_length=1)
    answer: str = Field(pattern=r"####\s*-?\d")


def load_gsm8k(
    path: Path,
    tokenizer: PreTrainedTokenizerBase,
    skip_malformed: bool = False,
    shots: int = SHOTS,
    shots_from: str = "",
) -> Loaded:
    """Return one sample per question; a short file has fewer examples, so that one question is left.

    Raises UserError naming the first malformed line of either file, or if there are fewer examples than requested.
    """
    records, skipped = read_records(path, Gsm8kRecord, skip_malformed)
    if shots_from:
        shown, left_out = read_records(Path(shots_from), Gsm8kRecord, skip_malformed)
        skipped += left_out
        if len(shown) < shots:
            raise UserError(f"{shots_from} has {len(shown)} problems, fewer than the {shots} shots requested.")
    else:
        shots = min(shots, len(records) - 1)
        shown, records = records, records[shots:]
    context = "".join(f"Question: {record.question}\nAnswer: {record.answer}\n\n" for _, record in shown[:shots])
    return Loaded([_sample(context, number, record, tokenizer) for number, record in records], skipped)


def _sample(context: str, number: int, record: Gsm8kRecord, tokenizer: PreTrainedTokenizerBase) -> Sample:
    question = f"Question: {record.question}\nAnswer:"
    return sample_of(
        number,
        tokenizer,
        context,
        question,
        task="gsm8k",
        answers=[record.answer],
        metric="final_number",
        max_new_tokens=256,
        stop="\n\nQuestion",
    )
