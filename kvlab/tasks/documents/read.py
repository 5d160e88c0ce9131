"""Extract a document's text in a subprocess with limited memory and time, because a file may exhaust both.

Run as `python -m kvlab.tasks.documents.read KIND` it reads the file from standard input and writes one JSON object.
"""

import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import PurePath
from typing import Any

from kvlab.common.formatting import format_bytes, left_out
from kvlab.core import UserError, decode_text, plain_text, read_json
from kvlab.tasks.documents.document import LARGEST_BYTES, TYPES, Document, Lines
from kvlab.tasks.documents.docx import read_docx
from kvlab.tasks.documents.html import read_html
from kvlab.tasks.documents.pdf import read_pdf

COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
INLINE_IMAGE = re.compile(r"data:image/[\w.+-]+;base64,[A-Za-z0-9+/=\s]*")
NOUNS = ("image", "other output")


def read_notebook(content: bytes) -> Document:
    """The source of every cell and its text outputs, separated by empty lines.

    Raises:
        UserError: it is no notebook.
    """
    try:
        notebook = read_json(decode_text(content, "The notebook"))
    except ValueError as error:
        raise UserError(f"It is not a notebook ({error}): save it again, or as text.") from error
    # The cells of format 4, or those of the worksheets of format 3.
    sheets = notebook.get("worksheets") if isinstance(notebook, dict) else None
    holders = [notebook, *sheets] if isinstance(sheets, list) else [notebook]
    lists = [one["cells"] for one in holders if isinstance(one, dict) and isinstance(one.get("cells"), list)]
    if not lists:
        raise UserError("It is not a notebook, as it has no cells: save it again, or as text.")
    cells = [cell for listed in lists for cell in listed if isinstance(cell, dict)]
    lines = Lines()
    counts = Counter[str]()
    for cell in cells:
        source = cell.get("source", cell.get("input", ""))
        texts = [_text(source), *(_output(one, counts) for one in cell.get("outputs") or () if isinstance(one, dict))]
        counts["image"] += len(cell.get("attachments") or ())
        for text in texts:
            text, images = INLINE_IMAGE.subn("", text)
            counts["image"] += images
            lines.add(f"{text}\n\n" if text.strip() else "")
    return Document(lines.text, left_out({noun: counts[noun] for noun in NOUNS}))


def _output(output: dict[str, Any], counts: Counter[str]) -> str:
    """The text of an output; pictures and what else has no text are counted."""
    if output.get("output_type") in ("error", "pyerr"):
        return f"{_text(output.get('ename'))}: {_text(output.get('evalue'))}"
    if "text" in output:
        return COLOURS.sub("", _text(output["text"]))
    # Format 3 has the kinds of data beside the output's other fields.
    kinds = output["data"] if isinstance(output.get("data"), dict) else output
    if any(kind.startswith("image/") or kind in ("png", "jpeg", "svg") for kind in kinds):
        counts["image"] += 1
        return ""
    shown = next((kinds[kind] for kind in ("text/plain", "text/markdown", "text/latex") if kind in kinds), None)
    if shown is None:
        counts["other output"] += bool(kinds)
        return ""
    return COLOURS.sub("", _text(shown))


def _text(value: Any) -> str:
    """A text that may be a list of lines."""
    return plain_text("".join(map(str, value)) if isinstance(value, list) else str(value or ""))


COMMAND = (sys.executable, "-P", "-m", "kvlab.tasks.documents.read")
SECONDS_ALLOWED = 30
MOST_MEMORY = 2 * 2**30
READERS = {"pdf": read_pdf, "docx": read_docx, "html": read_html, "htm": read_html, "ipynb": read_notebook}


def is_document(name: str) -> bool:
    """Whether the file's ending is supported."""
    return PurePath(name).suffix.lower().lstrip(".") in TYPES


def read_document(name: str, content: bytes) -> Document:
    """Text of a PDF, DOCX or HTML file or a notebook, by its ending.

    Raises:
        UserError: it is too large, not of its type, locked, without text, or takes too long.
    """
    check_size(name, len(content))
    kind = PurePath(name).suffix.lower().lstrip(".")
    try:
        done = subprocess.run([*COMMAND, kind], input=content, capture_output=True, timeout=SECONDS_ALLOWED, check=True)
        answer = json.loads(done.stdout)
    except subprocess.TimeoutExpired as error:
        why = f"{name} took longer than {SECONDS_ALLOWED} seconds to read: save the part you need as text."
        raise UserError(why) from error
    except (subprocess.SubprocessError, OSError, ValueError) as error:
        most = format_bytes(MOST_MEMORY)
        raise UserError(f"{name} could not be read within {most} of memory: save the part you need as text.") from error
    if "error" in answer:
        raise UserError(f"{name} cannot be read. {answer['error']}")
    return Document(answer["text"], tuple(answer["left_out"]))


def check_size(name: str, size: int) -> None:
    """Raise UserError if a document is too large."""
    if size > LARGEST_BYTES:
        raise UserError(
            f"The file {name} has {format_bytes(size)} but the limit is {format_bytes(LARGEST_BYTES)}: save the part "
            "you need as a separate file."
        )


def main() -> None:
    """Read one document from standard input and write the result as JSON."""
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
        resource.setrlimit(resource.RLIMIT_CPU, (SECONDS_ALLOWED, SECONDS_ALLOWED))
    except ImportError:
        pass  # Windows has no such limits; the time is limited everywhere
    try:
        found = READERS[sys.argv[1]](sys.stdin.buffer.read())
        answer = {"text": found.text, "left_out": found.left_out}
        if not found.text.strip():
            answer = {"error": "It contains no text: choose another file."}
    except UserError as error:
        answer = {"error": str(error)}
    json.dump(answer, sys.stdout)


if __name__ == "__main__":
    main()
