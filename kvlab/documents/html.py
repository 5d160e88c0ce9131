"""Visible text of a web page, without running scripts or fetching anything."""

from __future__ import annotations

import codecs
import re
from collections import Counter
from html.parser import HTMLParser

from kvlab.common.formatting import left_out
from kvlab.core.errors import UserError
from kvlab.core.validation import BYTE_ORDER_MARKS, decode_text, plain_text
from kvlab.documents.document import Document, Lines

CHARSET = re.compile(rb"<meta[^>]{0,200}?charset\s*=\s*[\"']?([\w.:-]{2,40})", re.IGNORECASE)
# Elements whose content is not text; `left_out` counts them by noun, "" is omitted silently.
CLOSED = {
    "script": "", "style": "", "template": "", "noscript": "noscript part", "select": "form field",
    "textarea": "form field",
    "svg": "drawing", "canvas": "drawing", "iframe": "embedded page", "object": "embedded object", "video": "video",
    "audio": "sound",
}  # fmt: skip
VOID = {"img": "image", "embed": "embedded object", "input": "form field", "frame": "embedded page"}
UNSEEN_INPUTS = {"hidden", "submit", "button", "reset", "image"}  # not fields to fill in
NOUNS = tuple(dict.fromkeys(filter(None, (*VOID.values(), *CLOSED.values()))))
BLOCKS = {
    "address", "article", "aside", "blockquote", "body", "dd", "details", "div", "dl", "dt", "fieldset", "figcaption",
    "figure", "footer", "form", "h1", "h2", "h3", "h4", "h5", "h6", "header", "hr", "li", "main", "nav", "ol", "p",
    "pre", "section", "summary", "table", "title", "tr", "ul", "br",
}  # fmt: skip


def read_html(content: bytes) -> Document:
    """Title and text, one line per block, table rows with ` | ` between cells, list items after `- `.

    Raises:
        UserError: its bytes are not text.
    """
    page = _Page()
    page.feed(_decoded(content))
    page.close()
    return Document(page.lines.text, left_out({noun: page.counts[noun] for noun in NOUNS}))


def _decoded(content: bytes) -> str:
    """The page's text; as in browsers, a byte order mark takes precedence over the declared encoding."""
    named = CHARSET.search(content[:4096])
    encoding = named[1].decode("ascii", "replace") if named else "utf-8"
    marked = content.startswith((codecs.BOM_UTF8, *(mark for mark, _ in BYTE_ORDER_MARKS)))
    if marked or encoding.lower() in ("utf-8", "utf8"):
        return decode_text(content, "The page")
    try:
        return plain_text(content.decode(encoding))
    except (UnicodeDecodeError, LookupError) as error:
        raise UserError("Its declared encoding is wrong: save it as UTF-8 and try again.") from error


class _Page(HTMLParser):
    """Parser of the page's tags; `closed` is the enclosing element without text, with its nesting depth."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.lines, self.counts = Lines(), Counter[str]()
        self.closed, self.depth = "", 0
        self.kept_spaces = 0  # how many `pre` are open
        self.row_begun = self.in_cell = False
        self.after_space = True

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if self.closed:
            self.depth += tag == self.closed
            return
        if tag in CLOSED:
            self.closed, self.depth = tag, 1
            self.counts[CLOSED[tag]] += 1
        elif tag in VOID:
            field = tag != "input" or (dict(attrs).get("type") or "text").lower() not in UNSEEN_INPUTS
            self.counts[VOID[tag]] += field
        elif tag in ("td", "th"):
            self._add(" | " if self.row_begun else "")
            self.row_begun = self.in_cell = True
        elif tag in BLOCKS:
            self._break(tag)
            self.kept_spaces += tag == "pre"
            self._add("- " if tag == "li" else "")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if self.closed == tag:  # `<svg/>` has no end tag
            self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        if self.closed:
            self.depth -= tag == self.closed
            self.closed = self.closed if self.depth else ""
        elif tag in ("td", "th"):
            self.in_cell = False
        elif tag in BLOCKS:
            self.kept_spaces = max(0, self.kept_spaces - (tag == "pre"))
            self._break(tag)

    def handle_data(self, data: str) -> None:
        if self.closed:
            return
        if self.kept_spaces:
            self._add(data)
            return
        words = re.sub(r"\s+", " ", data)
        self._add(words.lstrip() if self.after_space else words)

    def _add(self, text: str) -> None:
        if text:
            self.lines.add(text)
            self.after_space = text[-1].isspace()

    def _break(self, tag: str) -> None:
        if tag in ("tr", "table"):
            self.row_begun = self.in_cell = False
        self.lines.add(" " if self.in_cell else "\n")  # a row of a table is one line
        self.after_space = True
