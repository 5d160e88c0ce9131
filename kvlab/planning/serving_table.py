"""Servability of all methods as it was measured on mini: the file that ships, and the table of docs/serving.md."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import fields
from functools import lru_cache
from pathlib import Path

from kvlab.core.errors import UserError
from kvlab.planning.serving_levels import PAGES, Freed, Held, Servability, yes

FILE = Path(__file__).with_name("serving_methods.csv")
BEGIN = "<!-- kvlab serve-check --all -->"
END = "<!-- end -->"
# Besides every method with its defaults: settings that change the level.
FURTHER = (
    "streaming-llm:positions=cache", "snapkv:page=16", "snapkv:page=32", "h2o:page=16", "adakv:page=16",
    "kvzip:level=uniform", "kvzip:page=16", "exactmerge2:page=16",
    "kvzip:page=16:page_heads=model", "exactmerge2:page=16:page_heads=model",
)  # fmt: skip
HEADER = (
    "method", "level", "why", "per head", "per layer", "same tokens in all heads", "reads besides keys and values",
    "acts while decoding", "second pass", "freed, page 16", "freed, page 32", "freed, page 16, one page table",
)  # fmt: skip
SHARES = ("head", "layer", "model")


def write_csv(rows: Iterable[Servability], file: Path = FILE) -> None:
    """Write the measured table."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_columns())
    writer.writerows(_cells(row) for row in rows)
    file.write_text(text.getvalue(), encoding="utf-8")


@lru_cache(maxsize=1)
def read_csv(file: Path = FILE) -> tuple[Servability, ...]:
    """Read the measured table; raises UserError if it is damaged."""
    try:
        with file.open(encoding="utf-8", newline="") as lines:
            return tuple(_row(cells) for cells in csv.DictReader(lines))
    except (OSError, KeyError, ValueError, TypeError) as error:
        raise UserError(f"kvlab's own table {file} is missing or damaged: install kvlab again.") from error


def measured_row(method: str) -> Servability | None:
    """The measured row of a method with its defaults; None for methods from plug-ins."""
    return next((row for row in read_csv() if row.method == method), None)


def markdown(rows: Sequence[Servability]) -> str:
    """The table of the documentation."""
    lines = ["| " + " | ".join(HEADER) + " |", "|" + "---|" * len(HEADER)]
    return "\n".join([*lines, *("| " + " | ".join(_words(row)) + " |" for row in rows)])


def with_table(text: str, rows: Sequence[Servability]) -> str:
    """A document's text with the table between its two marks; raises UserError without marks."""
    return replace_between(text, BEGIN, markdown(rows))


def replace_between(text: str, begin: str, content: str) -> str:
    """A document's text with `content` between the lines `begin` and END; raises UserError without them."""
    before, begun, rest = text.partition(begin)
    _, ended, after = rest.partition(END)
    if not (begun and ended):
        raise UserError(f"The document has no lines {begin} and {END}: write them where the table shall be.")
    return f"{before}{begin}\n\n{content}\n\n{END}{after}"


def _words(row: Servability) -> list[str]:
    held = row.held
    freed = [row.freed[16].layer, row.freed[32].layer, row.freed[16].model]
    flags = [yes(flag) for flag in (held.by_head, held.by_layer, not held.apart)]
    acts = [yes(row.decodes), yes(row.second_pass)]
    return [
        row.method,
        str(row.level),
        held.why,
        *flags,
        row.needs,
        *acts,
        *(f"{100 * share:.0f} %" for share in freed),
    ]


def _columns() -> list[str]:
    freed = [f"freed_{page}_{share}" for page in PAGES for share in SHARES]
    plain = ["reads_prompt", "reads_decode", "decodes", "second_pass", "store", "kept"]
    return ["method", "title", *(one.name for one in fields(Held)), *plain, *freed]


def _cells(row: Servability) -> list[str]:
    held = [str(int(getattr(row.held, one.name))) for one in fields(Held)]
    reads = ["+".join(names) for names in (row.reads_prompt, row.reads_decode)]
    freed = [f"{getattr(row.freed[page], share):.4f}" for page in PAGES for share in SHARES]
    acts = [str(int(row.decodes)), str(int(row.second_pass))]
    return [row.method, row.title, *held, *reads, *acts, row.store, f"{row.kept:.4f}", *freed]


def _row(cells: dict[str, str]) -> Servability:
    prompt, decode = (tuple(filter(None, cells[name].split("+"))) for name in ("reads_prompt", "reads_decode"))
    return Servability(
        method=cells["method"],
        title=cells["title"],
        held=Held(**{one.name: cells[one.name] == "1" for one in fields(Held)}),
        reads_prompt=prompt,
        reads_decode=decode,
        decodes=cells["decodes"] == "1",
        second_pass=cells["second_pass"] == "1",
        store=cells["store"],
        kept=float(cells["kept"]),
        freed={page: Freed(*(float(cells[f"freed_{page}_{share}"]) for share in SHARES)) for page in PAGES},
    )
