"""Text of a Jupyter notebook: the source of its cells and what they print."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

from kvlab.common.formatting import left_out
from kvlab.core.errors import UserError
from kvlab.core.validation import decode_text, plain_text, read_json
from kvlab.tasks.documents.document import Document, Lines

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
    cells = _cells(notebook)
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


def _cells(notebook: Any) -> list[dict[str, Any]]:
    """The cells of format 4, or those of the worksheets of format 3."""
    sheets = notebook.get("worksheets") if isinstance(notebook, dict) else None
    holders = [notebook, *sheets] if isinstance(sheets, list) else [notebook]
    lists = [one["cells"] for one in holders if isinstance(one, dict) and isinstance(one.get("cells"), list)]
    if not lists:
        raise UserError("It is not a notebook, as it has no cells: save it again, or as text.")
    return [cell for cells in lists for cell in cells if isinstance(cell, dict)]


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
