"""What styles and numbering of a Word document say about its text: hidden, raised or lowered, and numbers of lists."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from xml.etree.ElementTree import Element, TreeBuilder
from xml.parsers import expat

from kvlab.tasks.documents.document import number_as

OFF = ("0", "false", "off")
LOOKS = ("vanish", "vertAlign")
MOST_BASED = 20  # styles based on one another
KINDS = {"lowerLetter": "a", "upperLetter": "A", "lowerRoman": "i", "upperRoman": "I"}


class Styles:
    """Styles by their id: what they say about hidden and raised text, and the numbering of their paragraphs."""

    def __init__(self) -> None:
        self._styles: dict[str, Element] = {}

    def read(self, xml: bytes) -> None:
        """Take the styles of the part `styles.xml`."""
        for style in _tree(xml).iter("style"):
            self._styles[style.get("styleId", "")] = style

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

    def __init__(self) -> None:
        self._lists: dict[str, _Numbers] = {}

    def read(self, xml: bytes) -> None:
        """Take the definitions of the part `numbering.xml`."""
        tree = _tree(xml)
        shared = {one.get("abstractNumId", ""): _Numbers(_levels(one)) for one in tree.iter("abstractNum")}
        for one in tree.iter("num"):
            definition = one.find("abstractNumId")
            numbers = shared.get("" if definition is None else definition.get("val", ""), _Numbers())
            starts = {_whole(level.get("ilvl")): level.find("startOverride") for level in one.iter("lvlOverride")}
            anew = {level: _whole(start.get("val")) for level, start in starts.items() if start is not None}
            if anew:
                levels = {
                    level: _Level(anew.get(level, old.start), old.kind, old.text)
                    for level, old in numbers.levels.items()
                }
                numbers = _Numbers(levels)
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


def _levels(definition: Element) -> dict[int, _Level]:
    levels = {}
    for one in definition.iter("lvl"):
        start, kind, text = (one.find(name) for name in ("start", "numFmt", "lvlText"))
        levels[_whole(one.get("ilvl"))] = _Level(
            1 if start is None else _whole(start.get("val")),
            "decimal" if kind is None else kind.get("val", "decimal"),
            "" if text is None else text.get("val", ""),
        )
    return levels


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
        parser.StartDoctypeDeclHandler = _refuse
        parser.StartElementHandler = lambda name, attributes: builder.start(
            _local(name), {_local(one): value for one, value in attributes.items()}
        )
        parser.EndElementHandler = lambda name: builder.end(_local(name))
        parser.Parse(xml, True)
    builder.end("part")
    return builder.close()


def _local(name: str) -> str:
    return name.rpartition(" ")[2]


def _refuse(*_: object) -> None:
    raise expat.ExpatError("a document type in its styles")
