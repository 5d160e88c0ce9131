"""IFEval's prompts (arXiv 2311.07911): instructions that a program can check."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field, model_validator
from transformers import PreTrainedTokenizerBase

from kvlab.core.errors import UserError
from kvlab.tasks.loaders.jsonl import Loaded, read_records, sample_of
from kvlab.tasks.sample import Part

IFEVAL_TOKENS = 1280  # lm-eval's limit


class InstructionsRecord(BaseModel):  # type: ignore[no-redef]  # mypy gives __init__ a parameter of the alias
    """One prompt: its instructions by name, and the arguments of each, null where it has none of that name."""

    key: int = 0
    prompt: str = Field(min_length=1)
    instruction_id_list: list[str] = Field(min_length=1)
    arguments: list[dict[str, Any]] = Field(validation_alias="kwargs")

    @model_validator(mode="after")
    def _arguments_of_each(self) -> InstructionsRecord:
        instructions = len(self.instruction_id_list)
        arguments = len(self.arguments)
        if arguments != instructions:
            raise UserError(f"{instructions} instructions and {arguments} entries of 'kwargs'")
        return self


def load_ifeval(path: Path, tokenizer: PreTrainedTokenizerBase, skip_malformed: bool = False) -> Loaded:
    """IFEval's prompts: `key`, `prompt`, `instruction_id_list` and `kwargs` per line; checked by lm-eval's functions.

    The score is the share of a prompt's instructions that are followed strictly, with a score for each. The metric
    `ifeval_all` scores whole prompts (lm-eval's prompt_level_strict_acc), `ifeval_loose` and `ifeval_all_loose` are the
    loose ones. Raises UserError naming the first malformed line.
    """
    records, skipped = read_records(path, InstructionsRecord, skip_malformed)
    return Loaded([_sample(path, number, record, tokenizer) for number, record in records], skipped)


def _sample(path: Path, number: int, record: InstructionsRecord, tokenizer: PreTrainedTokenizerBase) -> Any:
    pairs = zip(record.instruction_id_list, record.arguments, strict=True)
    answers = [
        json.dumps({"id": name, "kwargs": _given(values), "prompt": record.prompt}, ensure_ascii=False)
        for name, values in pairs
    ]
    return sample_of(
        number,
        tokenizer,
        record.prompt,
        "\n",
        task=f"ifeval/{path.stem}",
        answers=answers,
        metric="ifeval",
        max_new_tokens=IFEVAL_TOKENS,
        stop=None,
        parts=tuple(Part(kind=name) for name in record.instruction_id_list),
        meta={"key": record.key},
    )


def _given(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}
