"""Text of a Word document (ECMA-376): its main part, read as XML without document type and so without entities."""

from __future__ import annotations

import io
import re
import zipfile
from collections import Counter
from collections.abc import Mapping
from xml.parsers import expat

from kvlab.common.formatting import format_bytes, left_out
from kvlab.core.errors import UserError
from kvlab.documents.document import Document, Lines

MAIN = re.compile(r"word/document\d*\.xml")
ASIDE = re.compile(r"word/(header|footer)\d*\.xml")  # repeated on every page
MOST_UNPACKED = 64 * 2**20  # of the main part, which is mostly markup
OLE = b"\xd0\xcf\x11\xe0"  # signature of documents before 2007 and of encrypted ones
WORD = "wordprocessingml"
# Elements without document text: properties, fallback drawings, the source of tracked moves.
SKIPPED = {"pPr", "rPr", "sectPr", "Fallback", "moveFrom"}
SIGNS = {"tab": "\t", "br": "\n", "cr": "\n", "noBreakHyphen": "-"}
COUNTED = {
    "blip": "image", "imagedata": "image", "chart": "chart", "relIds": "diagram", "object": "embedded object",
    "altChunk": "embedded document", "sym": "symbol", "footnoteReference": "footnote",
    "endnoteReference": "endnote", "commentReference": "comment",
}  # fmt: skip
NOUNS = (*dict.fromkeys(COUNTED.values()), "header", "footer")


def read_docx(content: bytes) -> Document:
    """The text of all paragraphs, with table rows as lines with ` | ` between cells.

    Raises:
        UserError: it is not DOCX, is password-protected, or unpacks to too much.
    """
    if content.startswith(OLE):
        raise UserError("It is password-protected, or a .doc from before 2007: save it as DOCX without a password.")
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            name = next((one for one in archive.namelist() if MAIN.fullmatch(one)), None)
            if name is None:
                raise UserError("It is not a Word document: save it as DOCX, or as text.")
            xml = _part(archive, name)
            aside = {one: _part(archive, one) for one in archive.namelist() if ASIDE.fullmatch(one)}
    except (zipfile.BadZipFile, EOFError, OSError, NotImplementedError, RuntimeError) as error:
        raise UserError("It is not a Word document, or it is damaged: save it as DOCX again, or as text.") from error
    body = _Body()
    try:
        body.read(xml)
    except expat.ExpatError as error:
        raise UserError(f"Its text is damaged ({error}): save it as DOCX again, or as text.") from error
    counts = body.counts + _aside(aside)
    return Document(body.lines.text, left_out({noun: counts[noun] for noun in NOUNS}))


def _part(archive: zipfile.ZipFile, name: str) -> bytes:
    """Content of one file in the archive. Raises UserError if it unpacks to too much."""
    with archive.open(name) as part:
        xml = part.read(MOST_UNPACKED + 1)
    if len(xml) > MOST_UNPACKED:
        raise UserError(f"It unpacks to more than {format_bytes(MOST_UNPACKED)}: save the part you need separately.")
    return xml


def _aside(parts: Mapping[str, bytes]) -> Counter[str]:
    """Number of different non-empty headers and footers."""
    held: dict[str, set[tuple[str, ...]]] = {}
    for name, xml in parts.items():
        body = _Body()
        try:
            body.read(xml)
        except expat.ExpatError:
            body.lines.add(name)  # unreadable parts count as left out, too
        pictures = [noun for noun in NOUNS if body.counts[noun]]
        kind = ASIDE.fullmatch(name)
        if kind and (body.lines.text.strip() or pictures):
            held.setdefault(kind[1], set()).add((body.lines.text, *pictures))
    return Counter({noun: len(texts) for noun, texts in held.items()})


class _Body:
    """Parser of the main part."""

    def __init__(self) -> None:
        self.lines, self.counts = Lines(), Counter[str]()
        self.rows: list[list[str]] = []  # cells of the current row of every enclosing table
        self.cells: list[Lines] = []  # of every cell around, its text
        self.skipped = 0  # how deep in what is skipped
        self.inside_text = False

    def read(self, xml: bytes) -> None:
        parser = expat.ParserCreate(namespace_separator=" ")
        parser.StartDoctypeDeclHandler = _refuse
        parser.StartElementHandler = lambda name, _: self.start(*_parts(name))
        parser.EndElementHandler = lambda name: self.end(*_parts(name))
        parser.CharacterDataHandler = self.characters
        parser.Parse(xml, True)

    def add(self, text: str) -> None:
        (self.cells[-1] if self.cells else self.lines).add(text)

    def start(self, space: str, name: str) -> None:
        if name == "numPr" and WORD in space and self.skipped == 1:
            self.add("- ")
        if self.skipped or name in SKIPPED:
            self.skipped += 1
            return
        self.counts[COUNTED.get(name, "")] += 1
        self.inside_text = name == "t"  # of Word, and of an equation in it
        if WORD not in space:
            return
        if name in SIGNS:
            self.add(SIGNS[name])
        elif name == "tr":
            self.rows.append([])
        elif name == "tc":
            self.cells.append(Lines())

    def end(self, space: str, name: str) -> None:
        self.inside_text = False
        if self.skipped:
            self.skipped -= 1
            return
        if WORD not in space:
            return
        if name == "p":
            self.add("\n")
        elif name == "tc" and self.cells and self.rows:
            self.rows[-1].append(" ".join(self.cells.pop().text.split()))
        elif name == "tr" and self.rows:
            self.add(" | ".join(self.rows.pop()) + "\n")

    def characters(self, text: str) -> None:
        if self.inside_text and not self.skipped:
            self.add(text)


def _parts(name: str) -> tuple[str, str]:
    space, _, local = name.rpartition(" ")
    return space, local


def _refuse(*_: object) -> None:
    raise UserError("It declares a document type, as no Word document does: save it as DOCX again, or as text.")
