"""RULER's files."""

from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field
from transformers import PreTrainedTokenizerBase

from kvlab.tasks.loaders.jsonl import Loaded, read_records, sample_of

# Tokens RULER lets each family of tasks generate.
_NEW_TOKENS = {"niah": 128, "vt": 30, "cwe": 120, "fwe": 50, "qa": 32}


class RulerRecord(BaseModel):
    """One line of a RULER file."""

    input: str = Field(min_length=1)
    outputs: list[str] = Field(min_length=1)
    answer_prefix: str = ""
    index: int | None = None
    token_position_answer: int | None = None


def load_ruler(path: Path, tokenizer: PreTrainedTokenizerBase, skip_malformed: bool = False) -> Loaded:
    """RULER's jsonl files: one object per line with `input`, `outputs` and, in newer versions, `answer_prefix` and
    `token_position_answer`.

    The task is the file's folder (RULER writes <task>/validation.jsonl) or the file's name. The question is the last
    line of the input, which holds for all thirteen tasks. Scores are RULER's: string_match_part for QA, else
    string_match_all. Raises UserError naming the first malformed line.

    If a record has `token_position_answer`, its answer occurs in the text, at the first match (RULER counts with the
    file's tokenizer). kvlab locates it with the model's tokenizer, tracks the answers' tokens through the cache, and
    records their survival in the rows. In such files `index` is that position in characters, not a counter.
    """
    name = path.parent.name if path.stem in ("validation", "test") else path.stem
    records, skipped = read_records(path, RulerRecord, skip_malformed)
    fields: Any = {
        "task": f"ruler/{name}",
        "metric": ruler_metric(name) or "string_match_all",
        "max_new_tokens": _NEW_TOKENS.get(name.split("_")[0], 128),
        "stop": None,
    }
    samples = []
    for number, record in records:
        # The question is the last line, with the newline before it.
        cut = max(record.input.rstrip().rfind("\n"), 0)
        context = record.input[:cut] if cut else record.input
        question = record.input[cut:] if cut else ""
        located = record.token_position_answer is not None
        statements = [answer for answer in record.outputs if located and answer in context]
        samples.append(
            sample_of(
                number,
                tokenizer,
                context,
                question + record.answer_prefix,
                answers=record.outputs,
                index=number - 1 if record.index is None or located else record.index,
                meta={"statements": list(statements)} if statements else None,
                **fields,
            )
        )
    return Loaded(samples, skipped)


def ruler_metric(name: str) -> str:
    """Return the metric of a RULER task; empty for any other name."""
    family = name.split("_")[0]
    if family not in _NEW_TOKENS:
        return ""
    return "string_match_part" if family == "qa" else "string_match_all"
