"""Mathematics with a boxed answer: MATH-500 (`problem`, `answer`) and AIME (`Problem`, `Answer`), as JSON or Parquet.

The prompt is short and the answer long, so the generated text is what is compressed: use a budget in slots. The content
of the answer's last \\boxed{} is compared by math-verify (`pip install 'kvlab[math]'`).
"""

from __future__ import annotations

from pathlib import Path

from pydantic import AliasChoices, BaseModel, Field, field_validator
from transformers import PreTrainedTokenizerBase

from kvlab.tasks.loaders.jsonl import Loaded, read_records, sample_of
from kvlab.tasks.sample import Sample

# lm-eval allows 32,768 on AIME, more than many context windows; the option `max_new_tokens` changes it.
NEW_TOKENS = 2048
QUESTION = "\n\nPlease reason step by step, and put your final answer within \\boxed{}."


class MathRecord(BaseModel):
    """One problem with its answer, LaTeX without dollars or a whole number."""

    problem: str = Field(min_length=1, validation_alias=AliasChoices("problem", "Problem"))
    answer: str = Field(min_length=1, validation_alias=AliasChoices("answer", "Answer"))

    @field_validator("answer", mode="before")
    @classmethod
    def _as_text(cls, given: object) -> object:
        return str(given) if isinstance(given, int) and not isinstance(given, bool) else given


def load_math(path: Path, tokenizer: PreTrainedTokenizerBase, skip_malformed: bool = False) -> Loaded:
    """Return one sample per problem; raises UserError naming the first malformed line."""
    records, skipped = read_records(path, MathRecord, skip_malformed)
    return Loaded([_sample(path.stem, number, record, tokenizer) for number, record in records], skipped)


def _sample(name: str, number: int, record: MathRecord, tokenizer: PreTrainedTokenizerBase) -> Sample:
    return sample_of(
        number,
        tokenizer,
        record.problem,
        QUESTION,
        task=f"math/{name}",
        answers=[record.answer],
        metric="boxed",
        max_new_tokens=NEW_TOKENS,
        stop=None,
    )
