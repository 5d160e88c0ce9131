"""Files of mathematical problems: GSM8K, MATH and AIME."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import AliasChoices, BaseModel, Field, field_validator
from transformers import PreTrainedTokenizerBase

from kvlab.core.errors import UserError
from kvlab.tasks.loaders.jsonl import Loaded, read_records, sample_of

SHOTS = 8
# lm-eval allows 32,768 on AIME, more than many context windows; the option `max_new_tokens` changes it.
NEW_TOKENS = 2048
QUESTION = "\n\nPlease reason step by step, and put your final answer within \\boxed{}."


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
    """GSM8K's jsonl files: one object per line with `question` and `answer`; the result follows "####".

    The first `shots` problems become the worked examples of the context (the part that is compressed); the others are
    the questions. With `shots_from=FILE`, such as train.jsonl, the examples are that file's first problems and every
    problem is a question, as in lm-eval (with 5). A cache that loses the examples loses the answer format and the
    reasoning. A short file has fewer examples, so that one question is left.

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
        shown = records
        records = records[shots:]
    context = "".join(f"Question: {record.question}\nAnswer: {record.answer}\n\n" for _, record in shown[:shots])
    fields: Any = {"task": "gsm8k", "metric": "final_number", "max_new_tokens": 256, "stop": "\n\nQuestion"}
    samples = []
    for number, record in records:
        question = f"Question: {record.question}\nAnswer:"
        samples.append(sample_of(number, tokenizer, context, question, answers=[record.answer], **fields))
    return Loaded(samples, skipped)


class MathRecord(BaseModel):
    """One problem with its answer, LaTeX without dollars or a whole number."""

    problem: str = Field(min_length=1, validation_alias=AliasChoices("problem", "Problem"))
    answer: str = Field(min_length=1, validation_alias=AliasChoices("answer", "Answer"))

    @field_validator("answer", mode="before")
    @classmethod
    def _as_text(cls, value: object) -> object:
        return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def load_math(path: Path, tokenizer: PreTrainedTokenizerBase, skip_malformed: bool = False) -> Loaded:
    """Mathematics with a boxed answer: MATH-500 (`problem`, `answer`) and AIME (`Problem`, `Answer`), as JSON or
    Parquet.

    The prompt is short and the answer long, so the generated text is what is compressed: use a budget in slots. The
    content of the answer's last \\boxed{} is compared by math-verify (`pip install 'kvlab[math]'`). Raises UserError
    naming the first malformed line.
    """
    records, skipped = read_records(path, MathRecord, skip_malformed)
    fields: Any = {
        "task": f"math/{path.stem}",
        "metric": "boxed",
        "max_new_tokens": NEW_TOKENS,
        "stop": None,
    }
    samples = [
        sample_of(number, tokenizer, record.problem, QUESTION, answers=[record.answer], **fields)
        for number, record in records
    ]
    return Loaded(samples, skipped)
