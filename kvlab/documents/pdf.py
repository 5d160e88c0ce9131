"""A PDF as the text that is written in it, page by page; a picture of a page holds none."""

from __future__ import annotations

import io
import logging
from itertools import pairwise
from typing import Any

from kvlab.counted import left_out, listed
from kvlab.documents.document import Document, Lines
from kvlab.errors import UserError

MOST_PAGES = 500
LINKS = {"/Link", "/Widget", "/Popup"}  # annotations that nobody wrote as a remark


def read_pdf(content: bytes) -> Document:
    """The text of every page, an empty line between two.

    Raises:
        UserError: pypdf is not installed, or the file is no PDF, locked, too long, or without any text.
    """
    try:
        from pypdf import PdfReader
        from pypdf.errors import PyPdfError
    except ImportError as error:
        raise UserError("Reading PDF takes the package pypdf: pip install pypdf, or save it as text.") from error
    logging.getLogger("pypdf").setLevel(logging.CRITICAL)
    try:
        reader = PdfReader(io.BytesIO(content))
        if reader.is_encrypted and not reader.decrypt(""):
            raise UserError("It is locked by a password: save it without one and try again.")
        return _text_of(reader)
    except (UserError, MemoryError):
        raise
    except (PyPdfError, Exception) as error:  # a damaged file breaks pypdf in many ways
        if "cryptography" in str(error):
            raise UserError(
                "It is encrypted with AES: save it without encryption, or pip install cryptography."
            ) from error
        raise UserError(f"It is no PDF, or a damaged one ({_cause(error)}): save it anew, or as text.") from error


def _text_of(reader: Any) -> Document:
    pages = len(reader.pages)
    if pages > MOST_PAGES:
        raise UserError(f"It has {pages:,} pages and the most is {MOST_PAGES}: save the pages you study as a file.")
    lines, silent, images, remarks = Lines(), [], set[Any](), 0
    for number, page in enumerate(reader.pages, 1):
        text = page.extract_text()
        if not text.strip():
            silent.append(number)
        lines.add(text + "\n\n")
        images |= _images(page)
        remarks += sum(one.get_object().get("/Subtype") not in LINKS for one in page.get("/Annots") or ())
    if len(silent) == pages:
        none = "its page has not" if pages == 1 else f"not one of its {pages:,} pages has"
        raise UserError(f"It holds no text: {none} any (scanned?). Run text recognition (OCR) on it first.")
    told = left_out({"image": len(images), "remark": remarks})
    if silent:
        named = "Page {} has" if len(silent) == 1 else "Pages {} have"
        told += (f"{named.format(_ranges(silent))} no text (scanned?).",)
    return Document(lines.text, told)


def _images(page: Any) -> set[Any]:
    """What tells each image of the page from others: the number of its object."""
    resources = page.get("/Resources")
    found = resources.get_object().get("/XObject") if resources is not None else None
    parts: Any = found.get_object() if found is not None else {}
    return {
        getattr(reference, "idnum", id(reference))
        for name in parts
        if (reference := parts.raw_get(name)).get_object().get("/Subtype") == "/Image"
    }


def _ranges(numbers: list[int]) -> str:
    """`4`, `4 and 7`, `1 to 3 and 9`."""
    gaps = [index for index, (one, other) in enumerate(pairwise(numbers), 1) if other > one + 1]
    parts = [numbers[start:stop] for start, stop in pairwise([0, *gaps, len(numbers)])]
    return listed([str(part[0]) if len(part) == 1 else f"{part[0]} to {part[-1]}" for part in parts])


def _cause(error: Exception) -> str:
    return (" ".join(str(error).split()) or type(error).__name__)[:120].rstrip(".")
