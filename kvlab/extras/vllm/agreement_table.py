"""The measured agreement as a file that ships, and as the table of docs/serving.md."""

from __future__ import annotations

import csv
import io
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path

from kvlab.common.atomic_write import replace_text
from kvlab.core.errors import UserError
from kvlab.extras.vllm.agreement import NAMES, NATIVE, Agreement
from kvlab.planning.serving_table import replace_between

FILE = Path(__file__).with_name("agreement.csv")
BEGIN = "<!-- kvlab vllm -->"
NUMBERS = {"prompts": int, "slots": int, "tokens": int, "heads": float}


def read_agreements(file: Path = FILE) -> list[Agreement]:
    """The measured rows; none without the file. Raises UserError if it is damaged."""
    if not file.exists():
        return []
    try:
        with file.open(encoding="utf-8", newline="") as lines:
            rows = [{key: NUMBERS.get(key, str)(value) for key, value in row.items()} for row in csv.DictReader(lines)]
        return [Agreement(**row) for row in rows]
    except (OSError, ValueError, TypeError) as error:
        raise UserError(f"The table {file} is damaged: delete it and measure again.") from error


def ship_run(rows: Sequence[Agreement], file: Path = FILE) -> list[Agreement]:
    """Write the rows of one run to the file, where they replace all of their models; returns what it then holds.

    So a model's table is never joined from several runs.
    """
    measured = {row.model for row in rows}
    everything = [*(row for row in read_agreements(file) if row.model not in measured), *rows]
    text = io.StringIO()
    writer = csv.DictWriter(text, [one.name for one in fields(Agreement)], lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(row) for row in everything)
    replace_text(file, text.getvalue())
    return everything


def with_agreements(text: str, rows: Sequence[Agreement]) -> str:
    """A document's text with a table per model between the marks; raises UserError without marks.

    Below each table stand what vLLM does alone, and a line per reason and situation with the methods.
    """
    tables = []
    for model in dict.fromkeys(row.model for row in rows):
        those = [row for row in rows if row.model == model]
        cells = defaultdict[tuple[str, str], str](str)
        broken = defaultdict[tuple[str, str], list[str]](list)
        for row in those:
            whole = row.slots == row.prompts == row.tokens
            counts = str(row.prompts) if whole else f"{row.slots} / {row.tokens}"
            cells[row.method, row.situation] = f"{counts} of {row.prompts}" if row.prompts else "error"
            for part in row.note.split("; "):
                number, colon, reason = part.partition(": ")
                if colon and row.situation != NATIVE:
                    broken[row.situation, reason].append(f"{row.method} {number}")
        situations = {row.situation for row in those} - {NATIVE}
        columns = [name for name in NAMES if name in situations]
        lines = [f"| {model}, slots / tokens equal | " + " | ".join(columns) + " |", "|" + "---|" * (len(columns) + 1)]
        for method in dict.fromkeys(row.method for row in those):
            lines.append(f"| {method} | " + " | ".join(cells[method, name] for name in columns) + " |")
        sentences = [
            f"- {NATIVE}, with its own attention: {row.tokens} of {row.prompts} texts are those of kvlab's full cache."
            for row in those
            if row.situation == NATIVE
        ]
        for (situation, reason), who in sorted(broken.items()):
            sentences.append(f"- {situation}: {reason} ({', '.join(who)}).")
        tables.append("\n".join([*lines, "", *sentences]))
    return replace_between(text, BEGIN, "\n\n".join(tables))
