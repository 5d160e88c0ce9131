"""Document and summary pairs as jsonl (XSum: `document`, `summary`; CNN/DailyMail's `article`, `highlights` too)."""

from __future__ import annotations

from pathlib import Path

from pydantic import AliasChoices, BaseModel, Field
from transformers import PreTrainedTokenizerBase

from kvlab.tasks.loaders.jsonl import Loaded, read_records, sample_of
from kvlab.tasks.sample import Sample

QUESTION = "\n\nSummarize the above article in one sentence.\nSummary:"


class SummaryRecord(BaseModel):
    """One document with its reference summaries."""

    document: str = Field(min_length=1, validation_alias=AliasChoices("document", "article"))
    summary: str = Field(min_length=1, validation_alias=AliasChoices("summary", "highlights"))


def load_summaries(path: Path, tokenizer: PreTrainedTokenizerBase, skip_malformed: bool = False) -> Loaded:
    """Return one sample per document, scored by ROUGE-L; raises UserError naming the first malformed line."""
    records, skipped = read_records(path, SummaryRecord, skip_malformed)
    return Loaded([_sample(number, record, tokenizer) for number, record in records], skipped)


def _sample(number: int, record: SummaryRecord, tokenizer: PreTrainedTokenizerBase) -> Sample:
    context = f"Article: {record.document}"
    return sample_of(
        number,
        tokenizer,
        context,
        QUESTION,
        task="summary",
        answers=[record.summary],
        metric="rouge_l",
        max_new_tokens=64,
    )
