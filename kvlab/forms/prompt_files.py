"""Uploaded files of prompts with answers: everything `kvlab eval --data` reads, and CSV.

A file is stored in the queue's folder by its content's hash, as text: Parquet and CSV become JSON lines. `kvlab data
check` recognises and checks it in a second process, once per file.
"""

import hashlib
import io
import json
import re
from collections.abc import Iterable
from pathlib import Path

from pydantic import ValidationError

from kvlab.common.atomic_write import replace_text
from kvlab.common.formatting import format_bytes
from kvlab.core import Frozen, UserError, decode_text
from kvlab.evaluation.request import FileChoice
from kvlab.jobs.queue_db import FOLDER
from kvlab.planning.choices import run_command
from kvlab.tasks import rows
from kvlab.tasks.rows import PARQUET, Row, is_csv, read_rows, rows_of_text

PROMPTS = "prompts"  # the folder of uploaded files
CHECKED = "checked.json"
TYPES = (*rows.TYPES, "txt")
MEGABYTE = 2**20
LARGEST_UPLOAD = 4 * MEGABYTE  # the server's limit
LARGEST_TEXT = 16 * MEGABYTE  # of a table, unpacked
BY_FOLDER = ("validation", "test")  # names of RULER's files, whose task is their folder's name


class Lengths(Frozen):
    """Tokens of the prompts."""

    median: float
    longest: int


class Checked(Frozen):
    """The result of `kvlab tasks --check`."""

    form: str
    benchmark: str
    count: int
    prompts: Lengths
    malformed: tuple[str, ...] = ()

    @property
    def description(self) -> str:
        """`RULER niah_single_2: 12 prompts, median 400 tokens, longest 420 by mini's tokenizer`."""
        counted = f"median {self.prompts.median:,.0f} tokens, longest {self.prompts.longest:,} by mini's tokenizer"
        return f"{self.benchmark}: {self.count:,} {'prompt' if self.count == 1 else 'prompts'}, {counted}"


def save_prompts(root: Path, name: str, content: bytes, form: str = "") -> tuple[FileChoice, Checked]:
    """Store an uploaded file with the queue; `form` names its format if its fields do not tell.

    Raises UserError if it is too large, not in the format it claims, or holds an invalid line.
    """
    if len(content) > LARGEST_UPLOAD:
        raise UserError(_too_large(name, len(content), LARGEST_UPLOAD))
    folder = root / FOLDER / PROMPTS / hashlib.sha256(content + form.encode()).hexdigest()[:12]
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", Path(name).stem).strip(".-") or "prompts"
    suffix = ".txt" if name.lower().endswith(".txt") else ".jsonl"
    file = folder / f"{stem}{suffix}"
    checked = _checked(folder) if file.exists() else None
    if checked is None:
        replace_text(file, as_text(name, content))
        try:
            loader = ("--set", f"loader={form}") if form else ()
            done = run_command("tasks", "--check", str(file), "--json", *loader)
            try:
                checked = Checked.model_validate_json(done.stdout)
            except ValidationError:
                raise UserError(_as_uploaded(done.stderr, file, name)) from None
            if checked.malformed:
                raise UserError(_as_uploaded(checked.malformed[0], file, name) + " Fix it and upload the file again.")
            if checked.form == "ruler" and file.stem in BY_FOLDER:
                raise UserError(
                    f"{name} does not say which task of RULER it is: call it after the task, niah_single_1.jsonl."
                )
        except UserError:
            file.unlink()
            raise
        replace_text(folder / CHECKED, checked.model_dump_json())
    return FileChoice(form=checked.form, path=file), checked


def known_files(root: Path) -> dict[str, FileChoice]:
    """Every uploaded file by name, the newest of each name."""
    files = [file for file in (root / FOLDER / PROMPTS).glob("*/*") if file.name != CHECKED]
    files_by_name = {}
    for file in sorted(files, key=lambda path: path.stat().st_mtime):
        checked = _checked(file.parent)
        files_by_name[file.name] = FileChoice(form=checked.form if checked else "table", path=file)
    return files_by_name


def as_text(name: str, content: bytes) -> str:
    """The file as the loaders read it. Raises UserError if it is damaged, not text, or too large unpacked."""
    found: Iterable[Row]
    if content.startswith(PARQUET) or name.lower().endswith(".parquet"):
        found = read_rows(name, content, LARGEST_TEXT)
    else:
        text = decode_text(content, f"The file {name}")
        if not is_csv(name):
            return text
        found = rows_of_text(name, text)
    lines = io.StringIO()
    size = 0
    for row in found:
        size += lines.write(json.dumps(row.value, ensure_ascii=False, default=str) + "\n")
        if size > LARGEST_TEXT:
            raise UserError(_too_large(name, size, LARGEST_TEXT))
    return lines.getvalue()


def _checked(folder: Path) -> Checked | None:
    try:
        return Checked.model_validate_json((folder / CHECKED).read_text(encoding="utf-8"))
    except (OSError, ValidationError):
        return None


def _as_uploaded(output: str, file: Path, name: str) -> str:
    """The command's message for the form's user: with the file's own name, and without options."""
    sentence = (output.strip().splitlines() or ["It could not be read: no message."])[-1]
    message = re.sub(rf"{re.escape(str(file))}:(\d+)", rf"Line \1 of {name}", sentence).replace(str(file), name)
    return message.replace("name its --loader", "choose its format").removeprefix("Error: ").removeprefix("kvlab: ")


def _too_large(name: str, size: int, most: int) -> str:
    return (
        f"{name} has {format_bytes(size)} or more and the most is {format_bytes(most)}: copy it to this "
        "machine and name it under Files on this machine."
    )
