"""Extract a document's text in a subprocess with limited memory and time, because a file may exhaust both.

Run as `python -m kvlab.tasks.documents.read KIND` it reads the file from standard input and writes one JSON object.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import PurePath

from kvlab.common.formatting import format_bytes
from kvlab.core.errors import UserError
from kvlab.tasks.documents.document import LARGEST_BYTES, TYPES, Document
from kvlab.tasks.documents.docx import read_docx
from kvlab.tasks.documents.html import read_html
from kvlab.tasks.documents.notebook import read_notebook
from kvlab.tasks.documents.pdf import read_pdf

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
    _set_limits()
    try:
        found = READERS[sys.argv[1]](sys.stdin.buffer.read())
        answer = {"text": found.text, "left_out": found.left_out}
        if not found.text.strip():
            answer = {"error": "It contains no text: choose another file."}
    except UserError as error:
        answer = {"error": str(error)}
    json.dump(answer, sys.stdout)


def _set_limits() -> None:
    try:
        import resource
    except ImportError:  # Windows has no such limits; the time is limited everywhere
        return
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS_ALLOWED, SECONDS_ALLOWED))


if __name__ == "__main__":
    main()
