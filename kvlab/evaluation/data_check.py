"""Check a data file before an evaluation: its benchmark, lines, prompt lengths, and what would be cut."""

from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby, islice
from pathlib import Path
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from kvlab.core import UserError, read_file
from kvlab.evaluation.plan import Plan, fit_to_window, make_plan
from kvlab.evaluation.request import EvalRequest
from kvlab.evaluation.scoring.metrics import check_metric
from kvlab.models.chat import chat_of, load_tokenizer
from kvlab.tasks.draft import DEFAULT_LENGTHS
from kvlab.tasks.loaders import load_file
from kvlab.tasks.loaders.jsonl import LARGEST_FILE_BYTES
from kvlab.tasks.loaders.longbench import LONGBENCH_TASKS
from kvlab.tasks.prompt_table import ANSWERS, as_row
from kvlab.tasks.rows import read_rows
from kvlab.tasks.sample import Sample
from kvlab.tasks.tokens import Cut, count_tokens

MOST_RECORDS = 50  # examined, as the first ones may be malformed
PROSE = (".txt", ".md", ".text")

# Fields that identify a format, in lower case, most specific first.
FIELDS: tuple[tuple[str, frozenset[str]], ...] = (
    ("longbench2", frozenset({"context", "question", "choice_a", "choice_d", "answer"})),
    ("longbench", frozenset({"context", "input", "answers"})),
    ("pairs", frozenset({"ordered_kv_records", "key", "value"})),
    ("mt_bench", frozenset({"question_id", "turns"})),
    ("search", frozenset({"graph", "start_node", "steps", "answer"})),
    ("ifeval", frozenset({"prompt", "instruction_id_list", "kwargs"})),
    ("ruler", frozenset({"input", "outputs"})),
    ("helm", frozenset({"article", "summary_gt"})),
    ("math", frozenset({"problem", "answer"})),
    ("summaries", frozenset({"document", "summary"})),
    ("summaries", frozenset({"article", "highlights"})),
)


BENCHMARKS = {
    "gsm8k": "GSM8K",
    "longbench2": "LongBench v2",
    "helm": "few-shot summaries as in HELM",
    "pairs": "lost-in-the-middle's key-value pairs",
    "mt_bench": "MT-bench",
    "search": "depth-first-search state queries",
    "ifeval": "IFEval",
    "table": "a table of prompts",
}


@dataclass(frozen=True)
class Recognised:
    """A format of `kvlab.tasks.loaders`, and the benchmark's name."""

    form: str
    benchmark: str


def recognise(path: Path) -> Recognised:
    """Recognise a file's format; raises UserError if it cannot be read or is unknown."""
    known: dict[str, None] = {}
    for row in read_rows(str(path), read_file(path, "The file", LARGEST_FILE_BYTES)):
        fields = row.value if isinstance(row.value, Mapping) else {}
        record = {str(name).strip().casefold(): value for name, value in fields.items()}
        form = next((form for form, needed in FIELDS if needed <= set(record)), None)
        answer = record.get("answer")
        if "question" in record and isinstance(answer, str) and "####" in answer:
            form = "gsm8k"
        if form is None and row.value is not None:
            with suppress(UserError):
                entry = as_row(row.value, "The row")
                # Columns for prompt and answer are enough: the reader checks their content.
                form = "table" if entry.column(ANSWERS) is not None and (entry.chat or entry.parts) else None
        if form is not None:
            benchmark = BENCHMARKS.get(form, "documents and summaries")
            if form == "longbench":
                name = str(record.get("dataset") or path.stem)
                unknown = "" if name.removesuffix("_e") in LONGBENCH_TASKS else " (kvlab has no prompt for it)"
                benchmark = f"LongBench{'-E' if name.endswith('_e') else ''} {name}{unknown}"
            elif form == "ruler":
                benchmark = f"RULER {path.parent.name if path.stem in ('validation', 'test') else path.stem}"
            elif form == "math":
                benchmark = "AIME" if "aime" in path.name.lower() else "MATH"
            elif form == "table" and record.get("task"):
                benchmark += f" (its first task: {record['task']})"
            return Recognised(form, benchmark)
        known |= dict.fromkeys(map(str, fields))
        if row.number >= MOST_RECORDS:
            break
    if path.suffix.lower() in PROSE and not known:
        return Recognised("text", "plain text")
    if not known:
        raise UserError(f"{path} has no JSON object and is not a text file ({', '.join(PROSE)}): name its --loader.")
    names = ", ".join(list(known)[:12])
    raise UserError(f"{path} is no benchmark that kvlab knows (its fields: {names}): name its --loader.")


@dataclass(frozen=True)
class Lengths:
    """Token lengths of the prompts of a file: median, 95th percentile, maximum."""

    median: float
    p95: float
    longest: int


@dataclass(frozen=True)
class FileCheck:
    """Contents of a file; `malformed` has a sentence per bad line, `notes` per problem that would stop a run."""

    path: Path
    form: str
    benchmark: str
    tasks: dict[str, int]
    prompts: Lengths
    answers: Lengths
    new_tokens: int
    metrics: tuple[str, ...]
    window: int
    most: int  # tokens allowed per prompt
    cut: Cut
    shortened: tuple[int, ...]  # original lengths of the prompts that are cut
    lost: int  # tokens cut in total
    malformed: tuple[str, ...]
    notes: tuple[str, ...]
    count: int  # of prompts


def check_file(
    path: Path,
    tokenizer: PreTrainedTokenizerBase,
    window: int,
    form: str = "",
    max_prompt: int | None = None,
    cut: Cut = "middle",
    options: dict[str, Any] | None = None,
) -> FileCheck:
    """Read the whole file as an evaluation would, without its malformed lines.

    `form` names the loader; by default it is recognised from the records' fields. Raises UserError if the file cannot
    be read, is not recognised, or has no usable line.
    """
    recognised = None if form else recognise(path)
    form = recognised.form if recognised else form
    settings = dict(options or {})
    if form == "text":
        settings.setdefault("length", min(DEFAULT_LENGTHS[0], window))
    loaded = load_file(form, path, tokenizer, True, **settings)
    samples = loaded.samples
    notes = [*loaded.notes]
    short: list[Sample] = []
    try:
        short = [fit_to_window(sample, tokenizer, window, max_prompt, cut) for sample in samples]
    except UserError as error:
        notes.append(str(error))
    metrics = sorted({sample.metric for sample in samples})
    for metric in metrics:
        try:
            check_metric(metric)
        except UserError as error:
            notes.append(str(error))
    cuts = [
        (int(str(sample.meta["shortened_from"])), sample.length) for sample in short if "shortened_from" in sample.meta
    ]
    answers = [max((count_tokens(tokenizer, answer) for answer in sample.answers), default=0) for sample in samples]
    longest_answer = max(sample.max_new_tokens for sample in samples)
    of_prompts, of_answers = (
        Lengths(float(np.median(tokens)), float(np.percentile(tokens, 95)), max(tokens))
        for tokens in ([sample.length for sample in samples], answers)
    )
    return FileCheck(
        path=path,
        form=form,
        benchmark=recognised.benchmark if recognised else f"read as {form}, as requested",
        tasks=dict(Counter(sample.task for sample in samples)),
        prompts=of_prompts,
        answers=of_answers,
        new_tokens=longest_answer,
        metrics=tuple(metrics),
        window=window,
        most=max(0, min(max_prompt or window, window - longest_answer)),
        cut=cut,
        shortened=tuple(before for before, _ in cuts),
        lost=sum(before - after for before, after in cuts),
        malformed=tuple(loaded.skipped),
        notes=tuple(notes),
        count=len(samples),
    )


TRIED = 4  # prompts per task, length and depth: names and numbers differ, and with them the tokens needed


def check_tasks(request: EvalRequest) -> None:
    """Generate the first prompts of every task. Files and models without a loadable tokenizer are not checked here.

    Raises UserError for a length too short for its task or too long for the model, or an unknown task or difficulty.
    """
    if not request.tasks:
        return
    few = request.model_copy(update={"files": (), "samples": min(request.samples, TRIED)})
    plan = plan_ahead(few)
    if plan is None:
        return
    for _, cell in groupby(plan.prompts, lambda prompt: (prompt.identity.task, prompt.identity.length)):
        for prompt in islice(cell, TRIED):
            prompt.make()


def plan_ahead(request: EvalRequest) -> Plan | None:
    """The request's plan before its model is loaded; None if its tokenizer cannot be. Raises as `make_plan`."""
    try:
        tokenizer, window = load_tokenizer(request.model, request.revision, request.cache_dir)
    except UserError:
        return None
    chat = chat_of(request, tokenizer)
    turn = 0 if chat is None else sum(map(len, chat.around()))
    return make_plan(request, tokenizer, window - turn, chat is not None)
