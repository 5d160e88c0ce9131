"""Minimal SVG drawing: boxes, lines and text, in colours and fonts that every viewer has."""

from __future__ import annotations

import html
import re
import unicodedata

from kvlab.views.base.template import FONT

MONO = "'DejaVu Sans Mono', Menlo, Consolas, 'Liberation Mono', monospace"
ADVANCE = 0.605  # character width of a monospaced font, relative to the font size
NOT_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
SANS = FONT.replace('"', "'")


class Drawing:
    """SVG elements in drawing order."""

    def __init__(self, width: float, height: float, ground: str) -> None:
        self.width = width
        self.height = height
        self.ground = ground
        self._parts: list[str] = []

    def box(
        self, x: float, y: float, width: float, height: float, fill: str, edge: str = "", dash: bool = False
    ) -> None:
        """A filled box; `edge` is the colour of its border."""
        line = f' stroke="{edge}" stroke-width="2"{DASHED if dash else ""}' if edge else ""
        self._parts.append(
            f'<rect x="{x:.4g}" y="{y:.4g}" width="{width:.4g}" height="{height:.4g}" fill="{fill}"{line}/>'
        )

    def line(
        self, x: float, y: float, to_x: float, to_y: float, colour: str, width: float = 1.5, dash: bool = False
    ) -> None:
        """A straight line."""
        self._parts.append(
            f'<line x1="{x:.4g}" y1="{y:.4g}" x2="{to_x:.4g}" y2="{to_y:.4g}" stroke="{colour}" stroke-width="{width}"'
            f"{DASHED if dash else ''}/>"
        )

    def write_text(
        self,
        x: float,
        y: float,
        text: str,
        size: float,
        colour: str,
        mono: bool = False,
        bold: bool = False,
        middle: bool = False,
        opacity: float = 1.0,
    ) -> None:
        """A line of text; `y` is its baseline."""
        look = "".join(
            (
                f' font-family="{html.escape(MONO if mono else SANS)}"',
                ' font-weight="600"' if bold else "",
                ' text-anchor="middle"' if middle else "",
                f' opacity="{opacity:g}"' if opacity < 1 else "",
            )
        )
        shown = html.escape(NOT_XML.sub("\ufffd", text), quote=False)
        self._parts.append(
            f'<text x="{x:.4g}" y="{y:.4g}" font-size="{size:g}" fill="{colour}"{look} xml:space="preserve">'
            f"{shown}</text>"
        )

    def svg(self) -> bytes:
        """The drawing (UTF-8)."""
        size = f'width="{self.width:g}" height="{self.height:g}"'
        head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} viewBox="0 0 {self.width:g} {self.height:g}">'
        ground = f'<rect width="100%" height="100%" fill="{self.ground}"/>'
        return "".join((head, ground, *self._parts, "</svg>")).encode()


DASHED = ' stroke-dasharray="4 3"'


def columns(text: str) -> int:
    """Width of a text in monospaced characters; East Asian characters and emoji take two."""
    return sum(
        0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text
    )


def sans_width(text: str, size: float) -> float:
    """Approximate width of a text in the proportional font."""
    return 0.56 * size * columns(text)
