"""Files of LongBench and LongBench v2."""

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, Field
from transformers import PreTrainedTokenizerBase

from kvlab.core.errors import UserError
from kvlab.tasks.loaders.jsonl import Loaded, read_records, sample_of


@dataclass(frozen=True)
class LongBenchTask:
    """Prompt template, answer length and metric of one LongBench task."""

    prompt: str
    max_new_tokens: int
    metric: str


_DATA = tomllib.loads(Path(__file__).with_name("longbench.toml").read_text(encoding="utf-8"))
LONGBENCH_TASKS = {name: LongBenchTask(**fields) for name, fields in _DATA.items()}
# Only the first line of these answers counts.
FIRST_LINE_TASKS = ("trec", "triviaqa", "samsum", "lsht")
# These prompts are examples or code to be continued: LongBench uses no chat template for them.
UNWRAPPED_TASKS = (*FIRST_LINE_TASKS, "lcc", "repobench-p")
# LongBench v2: prompts/0shot.txt and its pred.py.
NEW_TOKENS = 128
BEFORE = "Please read the following text and answer the question below.\n\n<text>\n"
AFTER = (
    "\n</text>\n\nWhat is the correct answer to this question: {question}\n"
    "Choices:\n(A) {a}\n(B) {b}\n(C) {c}\n(D) {d}\n\n"
    'Format your response as follows: "The correct answer is (insert answer here)".'
)


class LongBenchRecord(BaseModel):
    """One line of a LongBench file."""

    context: str = Field(min_length=1)
    answers: list[str] = Field(min_length=1)
    input: str = ""
    all_classes: list[str] | None = None
    dataset: str | None = None


def load_longbench(path: Path, tokenizer: PreTrainedTokenizerBase, skip_malformed: bool = False) -> Loaded:
    """LongBench's jsonl files: one object per line with `input`, `context`, `answers`, `all_classes` and `dataset`.

    Prompts, answer lengths, metrics and the use of chat templates are LongBench's (`longbench.toml`). Three
    differences from the released scorer are intended: ROUGE-L is from rouge-score (the option
    `metric=rouge_l_longbench` selects the package `rouge`, as LongBench), edit similarity is from rapidfuzz, and a
    class name that is part of the right one is always ignored (the released loop skips an element after each one it
    removes). Raises UserError for a malformed line or an unknown task.
    """
    records, skipped = read_records(path, LongBenchRecord, skip_malformed)
    samples = []
    for number, record in records:
        name = (record.dataset or path.stem).removesuffix("_e")
        if name not in LONGBENCH_TASKS:
            known = ", ".join(LONGBENCH_TASKS)
            raise UserError(
                f"{path}: kvlab has no prompt for the LongBench task '{name}': name the file after one of {known}."
            )
        task = LONGBENCH_TASKS[name]
        head, _, tail = task.prompt.partition("{context}")
        samples.append(
            sample_of(
                number,
                tokenizer,
                head + record.context,
                tail.replace("{input}", record.input),
                task=f"longbench/{name}",
                answers=record.answers,
                metric=task.metric,
                max_new_tokens=task.max_new_tokens,
                stop="\n" if name in FIRST_LINE_TASKS else None,
                chat=name not in UNWRAPPED_TASKS,
                meta={"classes": list(record.all_classes or [])},
            )
        )
    return Loaded(samples, skipped)


class LongBench2Record(BaseModel):
    """One question of LongBench v2."""

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
    """LongBench v2's data.json: 503 questions with four choices, a JSON list (or JSON lines or Parquet).

    Fields: `_id`, `domain`, `sub_domain`, `difficulty`, `length` (short, medium or long), `question`, `choice_A` to
    `choice_D`, `answer` (a letter) and `context`. Prompt, answer length and scoring are those of its pred.py without
    chain of thought (128 tokens). It cuts prompts of more than 120,000 tokens in the middle (max_prompt) and samples
    at temperature 0.1; here the answer is greedy unless the option `temperature=0.1` is given. Raises UserError naming
    the first malformed entry.
    """
    records, skipped = read_records(path, LongBench2Record, skip_malformed)
    fields: Any = {
        "task": "longbench2",
        "metric": "letter_choice",
        "max_new_tokens": NEW_TOKENS,
        "stop": None,
    }
    samples = []
    for number, record in records:
        texts = {letter.lower(): getattr(record, f"choice_{letter}").strip() for letter in "ABCD"}
        context = BEFORE + record.context.strip()
        question = AFTER.format(question=record.question.strip(), **texts)
        meta: Any = {"domain": record.domain, "difficulty": record.difficulty, "category": record.length}
        samples.append(sample_of(number, tokenizer, context, question, answers=[record.answer], meta=meta, **fields))
    return Loaded(samples, skipped)
