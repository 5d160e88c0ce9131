"""Panel of text under an exported image: both sentences of the caption, and in small print the run and versions."""

from __future__ import annotations

import html
import io
import re
import textwrap
import unicodedata

import plotly.graph_objects as go
from PIL import Image

from kvlab.views.base.caption import simple_of
from kvlab.views.base.palette import SURFACES, Theme
from kvlab.views.base.template import FONT, INK, QUIET

EDGE = 24
LEADING = 1.45
SIMPLE_SIZE = 15
CAPTION_SIZE = 13
SOURCE_SIZE = 11
# Mean character widths per font size, so that wrapping does not depend on the installed fonts.
NARROW = 0.6
WIDE = 1.05
SIZE_OF_SVG = re.compile(rb'<svg[^>]*?\swidth="([\d.]+)"[^>]*?\sheight="([\d.]+)"')


def text_panel(caption: str, source: str, theme: Theme = "light", width: int = 1100) -> go.Figure:
    """A figure that holds only these texts, wrapped to `width` pixels."""
    figure = go.Figure()
    down = 6.0
    texts = (
        (simple_of(caption), SIMPLE_SIZE, INK[theme]),
        (caption, CAPTION_SIZE, INK[theme]),
        (source, SOURCE_SIZE, QUIET[theme]),
    )
    for text, size, ink in texts:
        lines = wrap_text(text, size, width - 2 * EDGE)
        if not lines:
            continue
        figure.add_annotation(
            text="<br>".join(_literal(line) for line in lines),
            font={"size": size, "color": ink, "family": FONT},
            align="left",
            showarrow=False,
            borderpad=0,
            x=0,
            xref="paper",
            xanchor="left",
            xshift=EDGE,
            y=1,
            yref="paper",
            yanchor="top",
            yshift=-down,
        )
        down += len(lines) * size * LEADING + 6
    figure.update_xaxes(visible=False).update_yaxes(visible=False)
    nothing = {"l": 0, "r": 0, "t": 0, "b": 0, "pad": 0}
    ground = {"paper_bgcolor": SURFACES[theme], "plot_bgcolor": SURFACES[theme]}
    return figure.update_layout(template="none", width=width, height=round(down) + 10, margin=nothing, **ground)


def wrap_text(text: str, size: float, width: float) -> list[str]:
    """Wrap the text to `width` pixels at this font size; East Asian text gets fewer characters per line."""
    square = any(unicodedata.east_asian_width(character) in "WF" for character in text)
    return textwrap.wrap(" ".join(text.split()), max(1, int(width / (size * (WIDE if square else NARROW)))))


def below_svg(picture: bytes, text: bytes) -> bytes:
    """One SVG with `text` (SVG) under `picture` (SVG)."""
    (width, height), (_, more) = svg_size(picture), svg_size(text)
    size = f'width="{width:g}" height="{height + more:g}" viewBox="0 0 {width:g} {height + more:g}"'
    opening = f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" {size}>'
    return opening.encode() + picture + f'<g transform="translate(0,{height:g})">'.encode() + text + b"</g></svg>"


def below_png(picture: bytes, text: bytes) -> bytes:
    """One PNG with `text` under `picture`, which are equally wide."""
    parts = [Image.open(io.BytesIO(part)).convert("RGB") for part in (picture, text)]
    whole = Image.new("RGB", (parts[0].width, sum(part.height for part in parts)))
    whole.paste(parts[0], (0, 0))
    whole.paste(parts[1], (0, parts[0].height))
    file = io.BytesIO()
    whole.save(file, "png", optimize=True)
    return file.getvalue()


def svg_size(picture: bytes) -> tuple[float, float]:
    """Width and height in pixels."""
    found = SIZE_OF_SVG.match(picture.lstrip())
    if found is None:
        raise ValueError("an SVG must begin with its width and height")
    return float(found[1]), float(found[2])


def _literal(text: str) -> str:
    """Escape text for plotly (tags and formulas)."""
    return html.escape(text, quote=False).replace("$", "&#36;")
