"""Text of a PDF, page by page; scanned pages have none."""

import io
import logging
import re
from collections import Counter
from itertools import pairwise
from typing import Any

from kvlab.common.formatting import join_words, left_out
from kvlab.core.errors import UserError
from kvlab.tasks.documents.document import Document, Lines

MOST_PAGES = 500
LINKS = {"/Link", "/Popup"}  # annotations that are not remarks
FIELD = "/Widget"
ATTACHED = "/FileAttachment"
MOST_NESTED = 8  # nesting depth of forms searched for images
INLINE_IMAGE = re.compile(rb"(?<!\S)BI\s[^<>]{0,400}?\sID\s")


def read_pdf(content: bytes) -> Document:
    """The text of every page, separated by empty lines.

    Raises:
        UserError: pypdf is not installed, or the file is not a PDF, is locked, too long, or without text.
    """
    try:
        from pypdf import PdfReader
        from pypdf.errors import PyPdfError
    except ImportError as error:
        raise UserError("Reading PDF needs the package pypdf: pip install pypdf, or save it as text.") from error
    logging.getLogger("pypdf").setLevel(logging.CRITICAL)
    try:
        reader = PdfReader(io.BytesIO(content))
        if reader.is_encrypted and not reader.decrypt(""):
            raise UserError("It is password-protected: save it without a password and try again.")
        return _text_of(reader)
    except (UserError, MemoryError):
        raise
    except (PyPdfError, Exception) as error:  # a damaged file breaks pypdf in many ways
        if "cryptography" in str(error):
            why = "It is encrypted with AES: save it without encryption, or pip install cryptography."
            raise UserError(why) from error
        cause = (" ".join(str(error).split()) or type(error).__name__)[:120].rstrip(".")
        raise UserError(f"It is not a PDF, or it is damaged ({cause}): save it again, or as text.") from error


def _text_of(reader: Any) -> Document:
    pages = len(reader.pages)
    if pages > MOST_PAGES:
        raise UserError(f"It has {pages:,} pages, more than {MOST_PAGES}: save the pages you need as a separate file.")
    lines = Lines()
    silent = []
    images = set[Any]()
    counts = Counter[str]()
    for number, page in enumerate(reader.pages, 1):
        text = page.extract_text()
        if not text.strip():
            silent.append(number)
        lines.add(text + "\n\n")
        images |= _images(page)
        content = page.get_contents()
        counts["image"] += len(INLINE_IMAGE.findall(content.get_data())) if content is not None else 0
        # Annotations whose text is not in the page's text.
        for one in page.get("/Annots") or ():
            found = one.get_object()
            kind = found.get("/Subtype")
            if kind == FIELD:
                holder = found if "/V" in found else found.get("/Parent", {}).get_object() if "/Parent" in found else {}
                counts["form field"] += bool(str(holder.get("/V", "")).strip())
            elif kind == ATTACHED:
                counts["attached file"] += 1
            elif kind not in LINKS:
                counts["remark"] += 1
    if len(silent) == pages:
        none = "its page has not" if pages == 1 else f"not one of its {pages:,} pages has"
        raise UserError(f"It holds no text: {none} any (scanned?). Run text recognition (OCR) on it first.")
    counts["image"] += len(images)
    counts["attached file"] += len(reader.attachments)
    notes = left_out({noun: counts[noun] for noun in ("image", "remark", "form field", "attached file")})
    if silent:
        # `4`, `4 and 7`, `1 to 3 and 9`
        gaps = [index for index, (one, other) in enumerate(pairwise(silent), 1) if other > one + 1]
        parts = [silent[start:stop] for start, stop in pairwise([0, *gaps, len(silent)])]
        ranges = [str(part[0]) if len(part) == 1 else f"{part[0]} to {part[-1]}" for part in parts]
        named = "Page {} has" if len(silent) == 1 else "Pages {} have"
        notes += (f"{named.format(join_words(ranges))} no text (scanned?).",)
    return Document(lines.text, notes)


def _images(part: Any, depth: int = 0) -> set[Any]:
    """Object numbers of a page's images, including those in its forms."""
    resources = part.get("/Resources")
    found = resources.get_object().get("/XObject") if resources is not None else None
    parts: Any = found.get_object() if found is not None else {}
    images: set[Any] = set()
    for name in parts:
        reference = parts.raw_get(name)
        held = reference.get_object()
        if held.get("/Subtype") == "/Image":
            images.add(getattr(reference, "idnum", id(reference)))
        elif held.get("/Subtype") == "/Form" and depth < MOST_NESTED:
            images |= _images(held, depth + 1)
    return images
