"""LongBench v2's data.json: 503 questions with four choices, a JSON list (or JSON lines or Parquet).

Fields: `_id`, `domain`, `sub_domain`, `difficulty`, `length` (short, medium or long), `question`, `choice_A` to
`choice_D`, `answer` (a letter) and `context`. Prompt, answer length and scoring are those of its pred.py without chain
of thought (prompts/0shot.txt, 128 tokens). It cuts prompts of more than 120,000 tokens in the middle (--max-prompt) and
samples at temperature 0.1; here the answer is greedy unless the option `temperature=0.1` is given.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, Field
from transformers import PreTrainedTokenizerBase

from kvlab.tasks.loaders.jsonl import Loaded, read_records, sample_of
from kvlab.tasks.sample import Sample

NEW_TOKENS = 128
CHOICES = "ABCD"
BEFORE = "Please read the following text and answer the question below.\n\n<text>\n"
AFTER = (
    "\n</text>\n\nWhat is the correct answer to this question: {question}\n"
    "Choices:\n(A) {a}\n(B) {b}\n(C) {c}\n(D) {d}\n\n"
    'Format your response as follows: "The correct answer is (insert answer here)".'
)


class LongBench2Record(BaseModel):
    """One question."""

    context: str = Field(min_length=1)
    question: str = Field(min_length=1)
    choice_A: str
    choice_B: str
    choice_C: str
    choice_D: str
    answer: Literal["A", "B", "C", "D"]
    domain: str = ""
    difficulty: str = ""
    length: str = ""


def load_longbench2(path: Path, tokenizer: PreTrainedTokenizerBase, skip_malformed: bool = False) -> Loaded:
    """Return one sample per question; raises UserError naming the first malformed entry."""
    records, skipped = read_records(path, LongBench2Record, skip_malformed)
    return Loaded([_sample(number, record, tokenizer) for number, record in records], skipped)


def _sample(number: int, record: LongBench2Record, tokenizer: PreTrainedTokenizerBase) -> Sample:
    texts = {letter.lower(): getattr(record, f"choice_{letter}").strip() for letter in CHOICES}
    context, question = BEFORE + record.context.strip(), AFTER.format(question=record.question.strip(), **texts)
    return sample_of(
        number,
        tokenizer,
        context,
        question,
        task="longbench2",
        answers=[record.answer],
        metric="letter_choice",
        max_new_tokens=NEW_TOKENS,
        stop=None,
        meta={"domain": record.domain, "difficulty": record.difficulty, "category": record.length},
    )
