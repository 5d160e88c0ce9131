"""Visible text of a web page, without running scripts or fetching anything."""

import codecs
import re
from collections import Counter
from dataclasses import dataclass
from html.parser import HTMLParser
from typing import TypeVar

from kvlab.common.formatting import left_out
from kvlab.core import BYTE_ORDER_MARKS, UserError, decode_text, plain_text
from kvlab.tasks.documents.document import HIDDEN, Document, Lines, number_as, raise_script

CHARSET = re.compile(rb"<meta[^>]{0,200}?charset\s*=\s*[\"']?([\w.:-]{2,40})", re.IGNORECASE)
# Elements whose content is not text; `left_out` counts them by noun, "" is omitted silently.
CLOSED = {
    "script": "", "style": "", "template": "", "noscript": "noscript part", "select": "form field",
    "textarea": "form field", "datalist": "", "annotation": "", "annotation-xml": "",
    "svg": "drawing", "canvas": "drawing", "iframe": "embedded page", "object": "embedded object", "video": "video",
    "audio": "sound",
}  # fmt: skip
VOID = {"img": "image", "embed": "embedded object", "input": "form field", "frame": "embedded page"}
UNSEEN_INPUTS = {"hidden", "submit", "button", "reset", "image"}  # not fields to fill in
NOUNS = (*dict.fromkeys(filter(None, (*VOID.values(), *CLOSED.values()))), HIDDEN)
WITHOUT_END = {*VOID, "area", "base", "br", "col", "hr", "link", "meta", "source", "track", "wbr"}
SAME_LEVEL = {"p", "li", "dt", "dd", "td", "th", "tr", "option"}  # the next of these ends one whose end tag is missing
NOT_SHOWN = re.compile(r"(?:^|;)\s*(?:display\s*:\s*none|visibility\s*:\s*(?:hidden|collapse))\b", re.IGNORECASE)
RAISED = re.compile(r"(?:^|;)\s*vertical-align\s*:\s*(super|sub)\b", re.IGNORECASE)
SIGNS = {"sup": "^", "super": "^", "sub": "_"}
# In a formula, the sign before each child of an element; "" groups a child, None leaves it as it is.
FORMULAS: dict[str, tuple[str | None, ...]] = {
    "msup": (None, "^"),
    "msub": (None, "_"),
    "msubsup": (None, "_", "^"),
    "mover": (None, "^"),
    "munder": (None, "_"),
    "munderover": (None, "_", "^"),
    "mfrac": ("", "/"),
}
BLOCKS = {
    "address", "article", "aside", "blockquote", "body", "dd", "details", "div", "dl", "dt", "fieldset", "figcaption",
    "figure", "footer", "form", "h1", "h2", "h3", "h4", "h5", "h6", "header", "hr", "li", "main", "nav", "ol", "p",
    "pre", "section", "summary", "table", "title", "tr", "ul", "br",
}  # fmt: skip


def read_html(content: bytes) -> Document:
    """Title and text, one line per block, table rows with ` | ` between cells, list items after `- ` or their number.

    Superscripts are written `10^6` and subscripts `x_1`. Text that browsers do not show is left out.

    Raises:
        UserError: its bytes are not text.
    """
    # As in browsers, a byte order mark takes precedence over the declared encoding.
    named = CHARSET.search(content[:4096])
    encoding = named[1].decode("ascii", "replace") if named else "utf-8"
    marked = content.startswith((codecs.BOM_UTF8, *(mark for mark, _ in BYTE_ORDER_MARKS)))
    try:
        is_utf8 = marked or encoding.lower() in ("utf-8", "utf8")
        text = decode_text(content, "The page") if is_utf8 else plain_text(content.decode(encoding))
    except (UnicodeDecodeError, LookupError) as error:
        raise UserError("Its declared encoding is wrong: save it as UTF-8 and try again.") from error
    page = _Page()
    page.feed(text)
    page.close()
    return Document(page.lines.text, left_out({noun: page.counts[noun] for noun in NOUNS}))


Default = TypeVar("Default", int, None)


@dataclass
class _List:
    """An open list: the number of its next item and its style, or bullets."""

    number: int | None = None
    style: str = "1"
    step: int = 1

    def label(self, value: str | None) -> str:
        """The label of the next item; `value` is the number that the item names."""
        if self.number is None:
            return "- "
        number = _whole(value, self.number)
        self.number = number + self.step
        return f"{number_as(self.style, number)}. "


@dataclass
class _Script:
    """An open superscript, subscript or part of a formula: its tag, its sign, and what is inside."""

    tag: str
    sign: str
    nested: int = 1
    inside: str = ""


class _Page(HTMLParser):
    """Parser of the page's tags; `unread` are the open elements from one whose text is left out on."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.lines, self.counts = Lines(), Counter[str]()
        self.unread: list[str] = []
        self.hides_text = False  # whether what is left out is counted once it has text
        self.lists: list[_List] = []
        self.scripts: list[_Script] = []
        self.formula: list[tuple[str, int]] = []  # open elements of a formula, with the number of their children so far
        self.kept_spaces = 0  # how many `pre` are open
        self.row_begun = self.in_cell = False
        self.after_space = True

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if self.unread:
            # A missing end tag may end here what is left out.
            last = self.unread[-1]
            if (last == "p" and tag in BLOCKS) or (last == tag and tag in SAME_LEVEL):
                self.unread.pop()
            if self.unread and tag not in WITHOUT_END:
                self.unread.append(tag)
            if self.unread:
                return
        named = dict(attrs)
        style = named.get("style") or ""
        hidden = "hidden" in named or bool(NOT_SHOWN.search(style)) or (tag == "dialog" and "open" not in named)
        if hidden and tag in WITHOUT_END:
            return
        if hidden or tag in CLOSED:
            self.unread = [tag]
            self.hides_text = hidden and tag not in CLOSED
            self.counts["" if hidden else CLOSED[tag]] += 1
            return
        # Begin a superscript or subscript where the tag, its style or its place in a formula says so.
        raised = RAISED.search(style)
        sign = SIGNS[raised[1].lower()] if raised else SIGNS.get(tag)
        if (tag == "math" or self.formula) and tag not in WITHOUT_END:
            if self.formula:
                around, children = self.formula[-1]
                signs = FORMULAS.get(around, ())
                sign = signs[children] if children < len(signs) else None
                self.formula[-1] = (around, children + 1)
            self.formula.append((tag, 0))
        if sign is not None and tag not in WITHOUT_END:
            self.scripts.append(_Script(tag, sign))
        elif self.scripts:
            self.scripts[-1].nested += tag == self.scripts[-1].tag
        if tag in VOID:
            field = tag != "input" or (named.get("type") or "text").lower() not in UNSEEN_INPUTS
            self.counts[VOID[tag]] += field
        elif tag in ("td", "th"):
            self._add(" | " if self.row_begun else "")
            self.row_begun = self.in_cell = True
        elif tag in BLOCKS:
            self._break(tag)
            self.kept_spaces += tag == "pre"
            if tag == "ol":
                backwards = "reversed" in named
                start = _whole(named.get("start"), None) if backwards else _whole(named.get("start"), 1)
                self.lists.append(_List(start, named.get("type") or "1", -1 if backwards else 1))
            elif tag == "ul":
                self.lists.append(_List())
            elif tag == "li":
                label = self.lists[-1].label(named.get("value")) if self.lists else "- "
                self._add("  " * (len(self.lists) - 1) + label)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if self.unread == [tag] or (self.formula and self.formula[-1][0] == tag):  # `<svg/>` has no end tag
            self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in self.unread:
            while self.unread.pop() != tag:
                pass
            return
        if self.unread and tag in WITHOUT_END:
            return
        self.unread = []  # an element around it ends
        if any(tag == one for one, _ in self.formula):
            while self.formula.pop()[0] != tag:
                pass
        if self.scripts and self.scripts[-1].tag == tag:
            self.scripts[-1].nested -= 1
            if not self.scripts[-1].nested:
                script = self.scripts.pop()
                self._add(raise_script(script.inside, script.sign))
        if tag in ("td", "th"):
            self.in_cell = False
        elif tag in BLOCKS:
            self.kept_spaces = max(0, self.kept_spaces - (tag == "pre"))
            if tag in ("ol", "ul") and self.lists:
                self.lists.pop()
            self._break(tag)

    def close(self) -> None:
        """Write what an element without an end holds."""
        super().close()
        self._end_scripts()

    def _end_scripts(self) -> None:
        while self.scripts:
            script = self.scripts.pop()
            self._add(raise_script(script.inside, script.sign))

    def handle_data(self, data: str) -> None:
        if self.unread:
            if self.hides_text and data.strip() and not CLOSED.keys() & set(self.unread):
                self.counts[HIDDEN] += 1
                self.hides_text = False
            return
        if self.kept_spaces:
            self._add(data)
            return
        words = re.sub(r"\s+", " ", data)
        self._add(words.lstrip() if self.after_space else words)

    def _add(self, text: str) -> None:
        if text and self.scripts:
            self.scripts[-1].inside += text
        elif text:
            self.lines.add(text)
        self.after_space = text[-1].isspace() if text else self.after_space

    def _break(self, tag: str) -> None:
        self._end_scripts()
        if tag in ("tr", "table"):
            self.row_begun = self.in_cell = False
        self.lines.add(" " if self.in_cell else "\n")  # a row of a table is one line
        self.after_space = True


def _whole(value: str | None, default: Default) -> int | Default:
    """The whole number of an attribute, else the default."""
    found = re.match(r"\s*([+-]?\d{1,9})", value or "")
    return int(found[1]) if found else default
