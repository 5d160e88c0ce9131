"""Files of documents and their summaries: HELM's prompts, XSum, CNN/DailyMail."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import AliasChoices, BaseModel, Field
from transformers import PreTrainedTokenizerBase

from kvlab.tasks.loaders.jsonl import Loaded, read_records, sample_of

STOP = "###"
SUMMARIZE = "\n\nSummarize the above article in one sentence.\nSummary:"


class HelmRecord(BaseModel):
    """One instance of a HELM scenario file."""

    article: str = Field(min_length=1)
    summary_gt: str = Field(min_length=1)
    max_tokens: int = Field(default=64, ge=1, le=4096)
    stop: list[str] | str | None = None


def load_helm(path: Path, tokenizer: PreTrainedTokenizerBase, skip_malformed: bool = False) -> Loaded:
    """HELM's few-shot summaries as used by H2O, LESS, CaM and D2O: JSON lines with one whole prompt per line.

    Fields: `article` (instruction, worked examples and text in one prompt), `summary_gt`, and as in HELM's requests
    `max_tokens`, `temperature` and `stop`. The summary ends at the stop text, "###"; without it the summary is used
    whole (H2O's script then loses its last character). These codes sample at the file's temperature, 0.3; here the
    answer is greedy unless the option `temperature=0.3` is given. The prompt is to be continued, so no chat template is
    used. Scored by ROUGE-L; ROUGE-1 and ROUGE-2 can be computed from the rows
    (`kvlab.evaluation.scoring.metrics.rescore`). Raises UserError naming the first malformed line.
    """
    records, skipped = read_records(path, HelmRecord, skip_malformed)
    samples = []
    for number, record in records:
        stops = [record.stop] if isinstance(record.stop, str) else record.stop or []
        fields: Any = {"task": f"helm/{path.stem}", "metric": "rouge_l", "chat": False}
        fields |= {"answers": [record.summary_gt], "max_new_tokens": record.max_tokens}
        fields["stop"] = next(filter(None, stops), STOP)
        samples.append(sample_of(number, tokenizer, record.article, "", **fields))
    return Loaded(samples, skipped)


class SummaryRecord(BaseModel):
    """One document with its reference summaries."""

    document: str = Field(min_length=1, validation_alias=AliasChoices("document", "article"))
    summary: str = Field(min_length=1, validation_alias=AliasChoices("summary", "highlights"))


def load_summaries(path: Path, tokenizer: PreTrainedTokenizerBase, skip_malformed: bool = False) -> Loaded:
    """Document and summary pairs as jsonl (XSum: `document`, `summary`; CNN/DailyMail's `article`, `highlights` too).

    Scored by ROUGE-L. Raises UserError naming the first malformed line.
    """
    records, skipped = read_records(path, SummaryRecord, skip_malformed)
    fields: Any = {"task": "summary", "metric": "rouge_l", "max_new_tokens": 64}
    samples = [
        sample_of(number, tokenizer, f"Article: {record.document}", SUMMARIZE, answers=[record.summary], **fields)
        for number, record in records
    ]
    return Loaded(samples, skipped)
