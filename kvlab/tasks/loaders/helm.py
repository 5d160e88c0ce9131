"""HELM's few-shot summaries as used by H2O, LESS, CaM and D2O: JSON lines with one whole prompt per line.

Fields: `article` (instruction, worked examples and text in one prompt), `summary_gt`, and as in HELM's requests
`max_tokens`, `temperature` and `stop`. The summary ends at the stop text, "###"; without it the summary is used whole
(H2O's script then loses its last character). These codes sample at the file's temperature, 0.3; here the answer is
greedy unless the option `temperature=0.3` is given. The prompt is to be continued, so no chat template is used.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, Field
from transformers import PreTrainedTokenizerBase

from kvlab.tasks.loaders.jsonl import Loaded, read_records, sample_of
from kvlab.tasks.sample import Sample

STOP = "###"


class HelmRecord(BaseModel):
    """One instance of a HELM scenario file."""

    article: str = Field(min_length=1)
    summary_gt: str = Field(min_length=1)
    max_tokens: int = Field(default=64, ge=1, le=4096)
    stop: list[str] | str | None = None


def load_helm(path: Path, tokenizer: PreTrainedTokenizerBase, skip_malformed: bool = False) -> Loaded:
    """Return one sample per line, scored by ROUGE-L; raises UserError naming the first malformed line.

    ROUGE-1 and ROUGE-2 can be computed from the rows (`kvlab.evaluate.scoring.metrics.rescore`).
    """
    records, skipped = read_records(path, HelmRecord, skip_malformed)
    return Loaded([_sample(path.stem, number, record, tokenizer) for number, record in records], skipped)


def _sample(name: str, number: int, record: HelmRecord, tokenizer: PreTrainedTokenizerBase) -> Sample:
    given = [record.stop] if isinstance(record.stop, str) else record.stop or []
    return sample_of(
        number,
        tokenizer,
        record.article,
        "",
        task=f"helm/{name}",
        answers=[record.summary_gt],
        metric="rouge_l",
        max_new_tokens=record.max_tokens,
        stop=next(filter(None, given), STOP),
        chat=False,
    )
