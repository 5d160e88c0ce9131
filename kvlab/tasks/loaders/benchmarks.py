"""Loaders of published benchmarks' files: GSM8K, MATH and AIME, summaries, and IFEval."""

import json
from pathlib import Path
from typing import Annotated, Any

from pydantic import AliasChoices, BaseModel, BeforeValidator, Field, model_validator
from transformers import PreTrainedTokenizerBase

from kvlab.core.errors import UserError
from kvlab.tasks.loaders.jsonl import Loaded, read_records, sample_of
from kvlab.tasks.sample import Part

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
    answer: Annotated[str, BeforeValidator(lambda value: str(value) if type(value) is int else value)] = Field(
        min_length=1, validation_alias=AliasChoices("answer", "Answer")
    )


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


IFEVAL_TOKENS = 1280  # lm-eval's limit


class InstructionsRecord(BaseModel):  # type: ignore[no-redef]  # mypy gives __init__ a parameter of the alias
    """One prompt: its instructions by name, and the arguments of each, null where it has none of that name."""

    key: int = 0
    prompt: str = Field(min_length=1)
    instruction_id_list: list[str] = Field(min_length=1)
    arguments: list[dict[str, Any]] = Field(validation_alias="kwargs")

    @model_validator(mode="after")
    def _arguments_of_each(self) -> "InstructionsRecord":
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
    fields: Any = {"task": f"ifeval/{path.stem}", "metric": "ifeval", "max_new_tokens": IFEVAL_TOKENS, "stop": None}
    samples = []
    for number, record in records:
        answers = []
        for name, values in zip(record.instruction_id_list, record.arguments, strict=True):
            arguments = {key: value for key, value in values.items() if value is not None}
            instruction = {"id": name, "kwargs": arguments, "prompt": record.prompt}
            answers.append(json.dumps(instruction, ensure_ascii=False))
        parts = tuple(Part(kind=name) for name in record.instruction_id_list)
        meta: Any = {"key": record.key}
        more: Any = {"answers": answers, "parts": parts, "meta": meta}
        samples.append(sample_of(number, tokenizer, record.prompt, "\n", **more, **fields))
    return Loaded(samples, skipped)


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
