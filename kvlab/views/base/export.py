"""Export figures: PNG and SVG through a Chromium, with captions below, CSV of the frame, self-contained HTML."""

import base64
import html
import io
import re
import textwrap
import unicodedata
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as TooSlow
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from PIL import Image

from kvlab.core.errors import UserError
from kvlab.views.base.palette import SURFACES, Theme
from kvlab.views.base.template import FONT, INK, PLOTLY_CONFIG, QUIET, for_export, without_controls

EDGE = 24
LEADING = 1.45
CAPTION_SIZE = 15
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
        (caption, CAPTION_SIZE, INK[theme]),
        (source, SOURCE_SIZE, QUIET[theme]),
    )
    for text, size, ink in texts:
        # East Asian text gets fewer characters per line.
        square = any(unicodedata.east_asian_width(character) in "WF" for character in text)
        in_a_line = max(1, int((width - 2 * EDGE) / (size * (WIDE if square else NARROW))))
        lines = textwrap.wrap(" ".join(text.split()), in_a_line)
        if not lines:
            continue
        figure.add_annotation(
            # plotly reads tags, and formulas between dollars
            text="<br>".join(html.escape(line, quote=False).replace("$", "&#36;") for line in lines),
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


def svg_size(picture: bytes) -> tuple[float, float]:
    """Width and height in pixels."""
    found = SIZE_OF_SVG.match(picture.lstrip())
    if found is None:
        raise ValueError("an SVG must begin with its width and height")
    return float(found[1]), float(found[2])


def decode_arrays(value: object) -> object:
    """A figure's JSON with its packed arrays (`bdata`, `dtype`, `shape`) as arrays; the rest is unchanged."""
    if isinstance(value, list):
        return [decode_arrays(one) for one in value]
    if not isinstance(value, dict):
        return value
    if {"bdata", "dtype"} <= set(value):
        flat = np.frombuffer(base64.b64decode(value["bdata"]), dtype=value["dtype"])
        shape = [int(size) for size in str(value.get("shape", len(flat))).split(",")]
        return flat.reshape(shape)
    return {name: decode_arrays(one) for name, one in value.items()}


ImageFormat = Literal["png", "svg"]
NO_BROWSER = (
    "PNG and SVG need Chromium, which was not found: install it (Debian: apt install chromium) or Chrome, "
    "or export HTML instead."
)
SECONDS = 60


def find_browser() -> str | None:
    """The Chromium or Chrome that kaleido would use; None if there is none."""
    from choreographer.browsers.chromium import Chromium

    return Chromium.find_browser(skip_local=False)


class ImageWriter:
    """Renders figures in one Chromium, started at the first image and kept open (ten times faster per image)."""

    def __init__(self) -> None:
        # One thread: the browser renders one figure at a time, and a hanging browser must not block the caller.
        self._worker = ThreadPoolExecutor(1, "kvlab-images")
        self._started = False

    def image(
        self, figure: go.Figure, kind: ImageFormat, caption: str = "", source: str = "", theme: Theme = "light"
    ) -> bytes:
        """The figure as PNG (at scale 2) or SVG on an opaque background, with its caption and source below.

        Raises:
            UserError: there is no Chromium, or it does not respond.
        """
        if find_browser() is None:
            raise UserError(NO_BROWSER)
        return self._answer(for_export(without_controls(figure), theme), None, kind, caption, source, theme, 2)

    def picture(
        self, svg: bytes, kind: ImageFormat, caption: str = "", source: str = "", theme: Theme = "light", scale: int = 2
    ) -> bytes:
        """Convert an SVG to PNG (at `scale`) or SVG with the same caption; raises as `image` does."""
        if kind == "svg" and not (caption or source):
            return svg
        if find_browser() is None:
            raise UserError(NO_BROWSER)
        # The caption is rendered at scale 2, so only a picture without one may use another scale.
        scale = 2 if caption or source else scale
        # In a figure of its size, so that the same browser renders it.
        width, height = svg_size(svg)
        figure = go.Figure().update_xaxes(visible=False).update_yaxes(visible=False)
        data = f"data:image/svg+xml;base64,{base64.b64encode(svg).decode()}"
        everywhere = {"xref": "paper", "yref": "paper", "x": 0, "y": 1, "sizex": 1, "sizey": 1, "sizing": "stretch"}
        figure.add_layout_image(source=data, **everywhere)
        nothing = {"l": 0, "r": 0, "t": 0, "b": 0, "pad": 0}
        figure.update_layout(template="none", width=width, height=height, margin=nothing)
        return self._answer(figure, svg, kind, caption, source, theme, scale)

    def close(self) -> None:
        """Stop the browser."""
        import kaleido

        if self._started:
            kaleido.stop_sync_server(silence_warnings=True)
        self._worker.shutdown(wait=False, cancel_futures=True)

    def _answer(self, *args: Any) -> bytes:
        try:
            return self._worker.submit(self._captioned, *args).result(SECONDS)
        except TooSlow as error:
            raise UserError("Chromium did not render the figure within a minute: export HTML instead.") from error

    def _captioned(
        self,
        figure: go.Figure,
        svg: bytes | None,
        kind: ImageFormat,
        caption: str,
        source: str,
        theme: Theme,
        scale: int,
    ) -> bytes:
        """The figure, or as SVG the one that it was made of, with the texts below, which are equally wide."""
        picture = svg if svg is not None and kind == "svg" else self._draw(figure, kind, scale)
        if not (caption or source):
            return picture
        text = self._draw(text_panel(caption, source, theme, figure.layout.width), kind)
        if kind == "svg":
            (width, height), (_, more) = svg_size(picture), svg_size(text)
            size = f'width="{width:g}" height="{height + more:g}" viewBox="0 0 {width:g} {height + more:g}"'
            opening = f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" {size}>'
            moved = f'<g transform="translate(0,{height:g})">'
            return opening.encode() + picture + moved.encode() + text + b"</g></svg>"
        parts = [Image.open(io.BytesIO(part)).convert("RGB") for part in (picture, text)]
        whole = Image.new("RGB", (parts[0].width, sum(part.height for part in parts)))
        whole.paste(parts[0], (0, 0))
        whole.paste(parts[1], (0, parts[0].height))
        file = io.BytesIO()
        whole.save(file, "png", optimize=True)
        return file.getvalue()

    def _draw(self, figure: go.Figure, kind: ImageFormat, scale: int = 2) -> bytes:
        import kaleido

        if not self._started:
            kaleido.start_sync_server(silence_warnings=True)
            self._started = True
        size = {"width": figure.layout.width, "height": figure.layout.height or 400}
        return kaleido.calc_fig_sync(
            figure.to_dict(), opts={"format": kind, "scale": scale if kind == "png" else 1, **size}
        )


def csv(frame: pd.DataFrame) -> bytes:
    """The frame as CSV (UTF-8), with the index if it is meaningful."""
    plain = isinstance(frame.index, pd.RangeIndex) and frame.index.name is None
    return frame.to_csv(index=not plain).encode("utf-8")


@dataclass(frozen=True)
class Section:
    """A figure of an HTML document with its caption, source, and further lines of text."""

    figure: go.Figure
    caption: str
    source: str
    lines: tuple[str, ...] = ()


def page(figure: go.Figure, caption: str, source: str, theme: Theme = "light") -> bytes:
    """One self-contained HTML file: the figure, its caption, and its source."""
    return document(str(figure.layout.title.text or "kvlab"), "", [Section(figure, caption, source)], theme)


def document(title: str, introduction: str, sections: Sequence[Section], theme: Theme = "light") -> bytes:
    """One self-contained HTML file of several figures, with plotly.js included once."""
    style = (
        f"body{{font-family:{FONT};background:{SURFACES[theme]};color:{INK[theme]};max-width:1120px;margin:24px auto;"
        "padding:0 12px;line-height:1.5}section{margin-bottom:36px;overflow-x:auto}"
    )
    head = f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{html.escape(title)}</title>'
    opening = f"<h1>{html.escape(title)}</h1><p>{html.escape(introduction)}</p>" if introduction else ""
    body = ""
    for section in sections:
        chart = figure_html(section.figure, theme, 1100, with_plotly=not body)
        lines = "".join(f"<p>{html.escape(line)}</p>" for line in section.lines)
        source = f"<p><small>{html.escape(section.source)}</small></p>"
        body += f"<section>{chart}<p>{html.escape(section.caption)}</p>{lines}{source}</section>"
    return f"{head}<style>{style}</style>{opening}{body}".encode()


def figure_html(figure: go.Figure, theme: Theme, width: int, with_plotly: bool) -> str:
    """The chart as part of an HTML page; the first one of a page brings plotly.js (`with_plotly`)."""
    sized = for_export(figure, theme, width)
    return sized.to_html(full_html=False, include_plotlyjs=with_plotly, config=PLOTLY_CONFIG)
