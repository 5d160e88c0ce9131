"""Text of a Word document (ECMA-376): its main part, read as XML without document type and so without entities."""

import io
import re
import zipfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from xml.etree.ElementTree import Element, TreeBuilder
from xml.parsers import expat

from kvlab.common.formatting import format_bytes, left_out
from kvlab.core.errors import UserError
from kvlab.tasks.documents.document import HIDDEN, Document, Lines, number_as, raise_script

OFF = ("0", "false", "off")
LOOKS = ("vanish", "vertAlign")
MOST_BASED = 20  # styles based on one another
KINDS = {"lowerLetter": "a", "upperLetter": "A", "lowerRoman": "i", "upperRoman": "I"}


class Styles:
    """Styles by their id: what they say about hidden and raised text, and the numbering of their paragraphs."""

    def __init__(self, xml: bytes = b"") -> None:
        """Take the styles of the part `styles.xml`."""
        self._styles = {style.get("styleId", ""): style for style in _tree(xml).iter("style")}

    def look(self, name: str) -> dict[str, str]:
        """Properties of text in this style, with those of the styles that it is based on."""
        found: dict[str, str] = {}
        for style in self._based(name):
            for look in LOOKS:
                if (said := style.find(f"rPr/{look}")) is not None:
                    found.setdefault(look, said.get("val", ""))
        return found

    def numbering(self, name: str) -> dict[str, str]:
        """`numId` and `ilvl` of paragraphs in this style; empty if they have no number."""
        for style in self._based(name):
            if (said := style.find("pPr/numPr")) is not None:
                return {"numPr": ""} | {one.tag: one.get("val", "") for one in said}
        return {}

    def _based(self, name: str) -> list[Element]:
        found: list[Element] = []
        while name in self._styles and len(found) < MOST_BASED:
            found.append(self._styles[name])
            base = found[-1].find("basedOn")
            name = "" if base is None else base.get("val", "")
        return found


@dataclass
class _Level:
    """A level of a list: its first number, its style, and its text such as `%1.%2.`."""

    start: int = 1
    kind: str = "decimal"
    text: str = ""


@dataclass
class _Numbers:
    """A definition of a list, and the number of the last item of each level."""

    levels: dict[int, _Level] = field(default_factory=dict)
    counts: Counter[int] = field(default_factory=Counter)


class Numbering:
    """The lists of a document. Lists that share a definition go on counting, unless one begins anew."""

    def __init__(self, xml: bytes = b"") -> None:
        """Take the definitions of the part `numbering.xml`."""
        self._lists: dict[str, _Numbers] = {}
        tree = _tree(xml)
        shared: dict[str, _Numbers] = {}
        for one in tree.iter("abstractNum"):
            levels = {}
            for level in one.iter("lvl"):
                start, kind, text = (level.find(name) for name in ("start", "numFmt", "lvlText"))
                levels[_whole(level.get("ilvl"))] = _Level(
                    1 if start is None else _whole(start.get("val")),
                    "decimal" if kind is None else kind.get("val", "decimal"),
                    "" if text is None else text.get("val", ""),
                )
            shared[one.get("abstractNumId", "")] = _Numbers(levels)
        for one in tree.iter("num"):
            definition = one.find("abstractNumId")
            numbers = shared.get("" if definition is None else definition.get("val", ""), _Numbers())
            starts = {_whole(level.get("ilvl")): level.find("startOverride") for level in one.iter("lvlOverride")}
            anew = {depth: _whole(first.get("val")) for depth, first in starts.items() if first is not None}
            if anew:
                numbers = _Numbers(
                    {
                        depth: _Level(anew.get(depth, old.start), old.kind, old.text)
                        for depth, old in numbers.levels.items()
                    }
                )
            self._lists[one.get("numId", "")] = numbers

    def label(self, paragraph: Mapping[str, str]) -> str:
        """The label of the next item, such as `3. `; `- ` for a bullet or a list that is not defined."""
        if paragraph.get("numId") == "0":
            return ""
        level = _whole(paragraph.get("ilvl"))
        numbers = self._lists.get(paragraph.get("numId", ""))
        if numbers is None or level not in numbers.levels:
            return "  " * level + "- "
        ours = numbers.levels[level]
        numbers.counts[level] = numbers.counts[level] + 1 if level in numbers.counts else ours.start
        for deeper in [one for one in numbers.counts if one > level]:
            del numbers.counts[deeper]
        if ours.kind in ("bullet", "none"):
            return "  " * level + ("- " if ours.kind == "bullet" else "")

        def number(match: re.Match[str]) -> str:
            one = int(match[1]) - 1
            known = numbers.levels.get(one, _Level())
            return number_as(KINDS.get(known.kind, "1"), numbers.counts.get(one, known.start))

        return "  " * level + re.sub(r"%(\d)", number, ours.text or f"%{level + 1}.") + " "


def _whole(value: str | None) -> int:
    """A whole number from 0 to 8 digits, else 0."""
    return int(value) if value and re.fullmatch(r"\d{1,8}", value) else 0


def _tree(xml: bytes) -> Element:
    """The elements of a part without their namespaces; an empty element for a part that is not there.

    Raises ExpatError for damaged XML. A document type, and so an entity, is damage here.
    """
    builder = TreeBuilder()
    builder.start("part", {})
    if xml:
        parser = expat.ParserCreate(namespace_separator=" ")
        parser.StartDoctypeDeclHandler = partial(_refuse, expat.ExpatError("a document type in its styles"))
        parser.StartElementHandler = lambda name, attributes: builder.start(
            _local(name), {_local(one): value for one, value in attributes.items()}
        )
        parser.EndElementHandler = lambda name: builder.end(_local(name))
        parser.Parse(xml, True)
    builder.end("part")
    return builder.close()


def _local(name: str) -> str:
    return name.rpartition(" ")[2]


def _refuse(error: Exception, *_: object) -> None:
    """Handler of a document type, which no Word document declares."""
    raise error


MAIN = re.compile(r"word/document\d*\.xml")
STYLES = "word/styles.xml"
NUMBERING = "word/numbering.xml"
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
NOUNS = (*dict.fromkeys(COUNTED.values()), "header", "footer", HIDDEN)
SCRIPTS = {"superscript": "^", "subscript": "_"}
FORMULAS = {"sup": "^", "sub": "_", "num": "", "den": "/"}  # parts of an equation and the sign before them


def read_docx(content: bytes) -> Document:
    """The text of all paragraphs, with table rows as lines with ` | ` between cells, list items after their number.

    Superscripts are written `10^6` and subscripts `x_1`. Hidden text is left out.

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
            known = set(archive.namelist())
            styles, numbers = (_part(archive, one) if one in known else b"" for one in (STYLES, NUMBERING))
    except (zipfile.BadZipFile, EOFError, OSError, NotImplementedError, RuntimeError) as error:
        raise UserError("It is not a Word document, or it is damaged: save it as DOCX again, or as text.") from error
    body = _Body()
    try:
        body.styles = Styles(styles)
        body.numbering = Numbering(numbers)
        body.read(xml)
    except expat.ExpatError as error:
        raise UserError(f"Its text is damaged ({error}): save it as DOCX again, or as text.") from error
    # Count the different non-empty headers and footers.
    held: dict[str, set[tuple[str, ...]]] = {}
    for name, xml in aside.items():
        part = _Body()
        try:
            part.read(xml)
        except expat.ExpatError:
            part.lines.add(name)  # unreadable parts count as left out, too
        pictures = [noun for noun in NOUNS if part.counts[noun]]
        kind = ASIDE.fullmatch(name)
        if kind and (part.lines.text.strip() or pictures):
            held.setdefault(kind[1], set()).add((part.lines.text, *pictures))
    counts = body.counts + Counter({noun: len(texts) for noun, texts in held.items()})
    return Document(body.lines.text, left_out({noun: counts[noun] for noun in NOUNS}))


def _part(archive: zipfile.ZipFile, name: str) -> bytes:
    """Content of one file in the archive. Raises UserError if it unpacks to too much."""
    with archive.open(name) as part:
        xml = part.read(MOST_UNPACKED + 1)
    if len(xml) > MOST_UNPACKED:
        raise UserError(f"It unpacks to more than {format_bytes(MOST_UNPACKED)}: save the part you need separately.")
    return xml


@dataclass
class _Body:
    """Parser of the main part."""

    lines: Lines = field(default_factory=Lines)
    counts: Counter[str] = field(default_factory=Counter)
    styles: Styles = field(default_factory=Styles)
    numbering: Numbering = field(default_factory=Numbering)
    rows: list[list[str]] = field(default_factory=list)  # cells of the current row of every enclosing table
    cells: list[Lines] = field(default_factory=list)  # of every cell around, its text
    skipped: list[str] = field(default_factory=list)  # the elements around that are skipped
    inside_text: bool = False
    paragraph: dict[str, str] = field(default_factory=dict)  # properties of the paragraph, by element
    run: dict[str, str] = field(default_factory=dict)
    part: str | None = None  # the sign before the part of an equation around
    script: str | None = None  # the sign of the superscript or subscript that is read
    raised: str = ""  # its text so far
    in_hidden: bool = False  # whether the text before was hidden

    def read(self, xml: bytes) -> None:
        parser = expat.ParserCreate(namespace_separator=" ")
        why = "It declares a document type, as no Word document does: save it as DOCX again, or as text."
        parser.StartDoctypeDeclHandler = partial(_refuse, UserError(why))
        # Names are a namespace, a space and the local name.
        parser.StartElementHandler = lambda name, attributes: self.start(
            name.rpartition(" ")[0], _local(name), {_local(one): value for one, value in attributes.items()}
        )
        parser.EndElementHandler = lambda name: self.end(name.rpartition(" ")[0], _local(name))
        parser.CharacterDataHandler = lambda text: (
            self._add_text(text) if self.inside_text and not self.skipped else None
        )
        parser.Parse(xml, True)

    def add(self, text: str, sign: str | None = None) -> None:
        """Append text; that of neighbouring runs with the same `sign` is one superscript or subscript."""
        lines = self.cells[-1] if self.cells else self.lines
        if sign != self.script:
            if self.script is not None:
                lines.add(raise_script(self.raised, self.script))
            self.script = sign
            self.raised = ""
        if sign is None:
            lines.add(text)
        else:
            self.raised += text

    def start(self, space: str, name: str, values: Mapping[str, str]) -> None:
        if self.skipped or name in SKIPPED:
            if WORD in space and self.skipped:
                # Keep a property of the paragraph or of the run.
                value = values.get("val", "")
                if self.skipped[0] == "rPr" and len(self.skipped) == 1:
                    self.run[name] = value
                elif self.skipped == ["pPr"] or self.skipped == ["pPr", "numPr"]:
                    self.paragraph[name] = value
            self.skipped.append(name)
            return
        self.counts[COUNTED.get(name, "")] += 1
        self.inside_text = name == "t"  # of Word, and of an equation in it
        if WORD not in space:
            if name in FORMULAS:
                self.add("")  # ends a script before the part
                self.part = FORMULAS[name]
            return
        if name in SIGNS:
            self._add_text(SIGNS[name])
        elif name == "p":
            self.paragraph = {}
        elif name == "r":
            self.run = {}
        elif name == "tr":
            self.rows.append([])
        elif name == "tc":
            self.cells.append(Lines())

    def end(self, space: str, name: str) -> None:
        self.inside_text = False
        if self.skipped:
            self.skipped.pop()
            if name == "pPr" and not self.skipped and WORD in space:
                style = self.styles.numbering(self.paragraph.get("pStyle", ""))
                self.add(
                    self.numbering.label({**style, **self.paragraph}) if "numPr" in {**style, **self.paragraph} else ""
                )
            return
        if WORD not in space:
            if name in FORMULAS:
                self.add("")
                self.part = None
            return
        if name == "r":
            self.run = {}
        elif name == "p":
            self.add("\n")
            self.in_hidden = False
        elif name == "tc" and self.cells and self.rows:
            self.add("")
            self.rows[-1].append(" ".join(self.cells.pop().text.split()))
        elif name == "tr" and self.rows:
            self.add(" | ".join(self.rows.pop()) + "\n")

    def _add_text(self, text: str) -> None:
        """Append text of a run in its look, or count it as hidden."""
        styles = self.styles.look(self.paragraph.get("pStyle", "")) | self.styles.look(self.run.get("rStyle", ""))
        look = styles | self.run
        hidden = "vanish" in look and look["vanish"] not in OFF
        self.counts[HIDDEN] += hidden and not self.in_hidden
        self.in_hidden = hidden
        if not hidden:
            self.add(text, SCRIPTS.get(look.get("vertAlign", ""), self.part))
