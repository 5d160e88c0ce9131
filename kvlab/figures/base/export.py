"""Figures as files: PNG and SVG through a Chromium that stays open, CSV of the frame, and one self-contained page."""

from __future__ import annotations

import base64
import html
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as TooSlow
from dataclasses import dataclass
from typing import Any, Literal

import pandas as pd
import plotly.graph_objects as go

from kvlab.common.errors import UserError
from kvlab.figures.base.caption import below_png, below_svg, caption, size_of_svg
from kvlab.figures.base.palette import SURFACES, Theme
from kvlab.figures.base.template import FONT, INK, for_export

ImageFormat = Literal["png", "svg"]
NO_BROWSER = (
    "PNG and SVG are drawn by Chromium, which was not found: install it (Debian: apt install chromium) or Chrome, "
    "or take the HTML file."
)
SECONDS = 60


def find_browser() -> str | None:
    """The Chromium or Chrome that kaleido would use; None where there is none."""
    from choreographer.browsers.chromium import Chromium

    return Chromium.find_browser(skip_local=False)


class ImageWriter:
    """Draws figures in one Chromium that is started at the first image and kept, which makes each ten times faster."""

    def __init__(self) -> None:
        # One thread: the browser draws one figure at a time, and a browser that hangs must not hang the caller.
        self._worker = ThreadPoolExecutor(1, "kvlab-images")
        self._started = False

    def image(
        self, figure: go.Figure, kind: ImageFormat, reading: str = "", source: str = "", theme: Theme = "light"
    ) -> bytes:
        """The figure as PNG (twice the pixels) or SVG on an opaque ground, with its reading and origin under it.

        Raises:
            UserError: there is no Chromium, or it does not answer.
        """
        if find_browser() is None:
            raise UserError(NO_BROWSER)
        return self._answer(self._captioned, figure, kind, reading, source, theme)

    def picture(
        self, svg: bytes, kind: ImageFormat, reading: str = "", source: str = "", theme: Theme = "light", scale: int = 2
    ) -> bytes:
        """An SVG of kvlab's own as PNG (`scale` times the pixels) or SVG, with the same words under it; as `image`."""
        if kind == "svg" and not (reading or source):
            return svg
        if find_browser() is None:
            raise UserError(NO_BROWSER)
        # The words are drawn at twice the pixels too, so only a picture without them may be smaller.
        scale = 2 if reading or source else scale
        return self._answer(self._pictured, svg, kind, reading, source, theme, scale)

    def close(self) -> None:
        """Stop the browser."""
        import kaleido

        if self._started:
            kaleido.stop_sync_server(silence_warnings=True)
        self._worker.shutdown(wait=False, cancel_futures=True)

    def _answer(self, draw: Callable[..., bytes], *given: Any) -> bytes:
        try:
            return self._worker.submit(draw, *given).result(SECONDS)
        except TooSlow as error:
            raise UserError("Chromium did not draw the figure within a minute: take the HTML file instead.") from error

    def _pictured(self, svg: bytes, kind: ImageFormat, reading: str, source: str, theme: Theme, scale: int) -> bytes:
        figure = of_svg(svg)
        picture = svg if kind == "svg" else self._draw(figure, kind, scale)
        if not (reading or source):
            return picture
        text = self._draw(caption(reading, source, theme, figure.layout.width), kind)
        return below_svg(picture, text) if kind == "svg" else below_png(picture, text)

    def _captioned(self, figure: go.Figure, kind: ImageFormat, reading: str, source: str, theme: Theme) -> bytes:
        picture = self._draw(for_export(figure, theme), kind)
        if not (reading or source):
            return picture
        text = self._draw(caption(reading, source, theme), kind)
        return below_svg(picture, text) if kind == "svg" else below_png(picture, text)

    def _draw(self, figure: go.Figure, kind: ImageFormat, scale: int = 2) -> bytes:
        import kaleido

        if not self._started:
            kaleido.start_sync_server(silence_warnings=True)
            self._started = True
        size = {"width": figure.layout.width, "height": figure.layout.height or 400}
        return kaleido.calc_fig_sync(
            figure.to_dict(), opts={"format": kind, "scale": scale if kind == "png" else 1, **size}
        )


def of_svg(svg: bytes) -> go.Figure:
    """A figure of nothing but an SVG, as large as it, by which the browser that draws figures draws it too."""
    width, height = size_of_svg(svg)
    figure = go.Figure().update_xaxes(visible=False).update_yaxes(visible=False)
    source = f"data:image/svg+xml;base64,{base64.b64encode(svg).decode()}"
    everywhere = {"xref": "paper", "yref": "paper", "x": 0, "y": 1, "sizex": 1, "sizey": 1, "sizing": "stretch"}
    figure.add_layout_image(source=source, **everywhere)
    nothing = {"l": 0, "r": 0, "t": 0, "b": 0, "pad": 0}
    return figure.update_layout(template="none", width=width, height=height, margin=nothing)


def csv(frame: pd.DataFrame) -> bytes:
    """The frame as CSV (UTF-8); a meaningful index is kept."""
    plain = isinstance(frame.index, pd.RangeIndex) and frame.index.name is None
    return frame.to_csv(index=not plain).encode("utf-8")


@dataclass(frozen=True)
class Section:
    """One figure of a page with its one-line reading, where it came from, and further lines of text below it."""

    figure: go.Figure
    reading: str
    source: str
    lines: tuple[str, ...] = ()


def page(figure: go.Figure, reading: str, source: str, theme: Theme = "light") -> bytes:
    """One HTML file that needs nothing else: the figure, its reading, and the run and versions it was drawn from."""
    return document(str(figure.layout.title.text or "kvlab"), "", [Section(figure, reading, source)], theme)


def document(title: str, introduction: str, sections: Sequence[Section], theme: Theme = "light") -> bytes:
    """One HTML file of several figures that needs nothing else; plotly.js is in it once."""
    style = (
        f"body{{font-family:{FONT};background:{SURFACES[theme]};color:{INK[theme]};max-width:1120px;margin:24px auto;"
        "padding:0 12px;line-height:1.5}section{margin-bottom:36px;overflow-x:auto}"
    )
    head = f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{html.escape(title)}</title>'
    opening = f"<h1>{html.escape(title)}</h1><p>{html.escape(introduction)}</p>" if introduction else ""
    body = "".join(_section(section, theme, first=not place) for place, section in enumerate(sections))
    return f"{head}<style>{style}</style>{opening}{body}".encode()


def _section(section: Section, theme: Theme, first: bool) -> str:
    chart = for_export(section.figure, theme, 1100).to_html(
        full_html=False, include_plotlyjs=first, config={"displaylogo": False}
    )
    lines = "".join(f"<p>{html.escape(line)}</p>" for line in (section.reading, *section.lines))
    return f"<section>{chart}{lines}<p><small>{html.escape(section.source)}</small></p></section>"
