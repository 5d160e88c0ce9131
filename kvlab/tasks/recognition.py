"""Recognise the benchmark of a file from its name and its records' fields."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvlab.core.errors import UserError
from kvlab.tasks.loaders.jsonl import rows_in
from kvlab.tasks.loaders.longbench import LONGBENCH_TASKS
from kvlab.tasks.prompt_table import ANSWERS, as_row

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


@dataclass(frozen=True)
class Recognised:
    """A format of `kvlab.tasks.loaders`, and the benchmark's name."""

    form: str
    benchmark: str


def recognise(path: Path) -> Recognised:
    """Recognise a file's format; raises UserError if it cannot be read or is unknown."""
    known: dict[str, None] = {}
    for row in rows_in(path):
        record = row.value if isinstance(row.value, Mapping) else None
        if row.value is not None and (found := _of_record(path, row.value)):
            return found
        known |= dict.fromkeys(map(str, record or ()))
        if row.number >= MOST_RECORDS:
            break
    if path.suffix.lower() in PROSE and not known:
        return Recognised("text", "plain text")
    if not known:
        raise UserError(f"{path} has no JSON object and is not a text file ({', '.join(PROSE)}): name its --loader.")
    fields = ", ".join(list(known)[:12])
    raise UserError(f"{path} is no benchmark that kvlab knows (its fields: {fields}): name its --loader.")


def _of_record(path: Path, given: Any) -> Recognised | None:
    fields = given.items() if isinstance(given, Mapping) else ()
    record = {str(name).strip().casefold(): value for name, value in fields}
    answer = record.get("answer")
    if "question" in record and isinstance(answer, str) and "####" in answer:
        return Recognised("gsm8k", "GSM8K")
    form = next((form for form, fields in FIELDS if fields <= set(record)), None)
    if form is None:
        with suppress(UserError):
            row = as_row(given, "The row")
            # Columns for prompt and answer are enough: the reader checks their content.
            form = "table" if row.column(ANSWERS) is not None and (row.chat or row.parts) else None
    return Recognised(form, _benchmark(form, path, record)) if form else None


def _benchmark(form: str, path: Path, record: Mapping[str, Any]) -> str:
    if form == "longbench":
        name = str(record.get("dataset") or path.stem)
        unknown = "" if name.removesuffix("_e") in LONGBENCH_TASKS else " (kvlab has no prompt for it)"
        return f"LongBench{'-E' if name.endswith('_e') else ''} {name}{unknown}"
    if form == "ruler":
        return f"RULER {path.parent.name if path.stem in ('validation', 'test') else path.stem}"
    if form == "math":
        return "AIME" if "aime" in path.name.lower() else "MATH"
    if form == "table":
        named = record.get("task")
        return "a table of prompts" + (f" (its first task: {named})" if named else "")
    words = {
        "longbench2": "LongBench v2",
        "helm": "few-shot summaries as in HELM",
        "pairs": "lost-in-the-middle's key-value pairs",
        "mt_bench": "MT-bench",
        "search": "depth-first-search state queries",
        "ifeval": "IFEval",
    }
    return words.get(form, "documents and summaries")
