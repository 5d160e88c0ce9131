"""Pictures of shaded texts and head histories, as shown on the pages: minimal SVG, and a history as a GIF."""

import html
import io
import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image

from kvlab.core.errors import UserError
from kvlab.report.views import History, Shown, Text, TokenClass, state_classes
from kvlab.views.base import FONT, GRID, INK, QUIET, STATE_COLOURS, SURFACES, Theme, byte_size, mix, pick, plural
from kvlab.views.base.export import ImageWriter
from kvlab.views.frames.lineage import STATES, Lineage, State, event_steps, mosaic, states_at

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


# pixels of a picture on a slide; standalone pictures may be higher
WIDTH = 1200
ROOM = 600
TALL = 2000
SIZES = (19, 17, 15, 14, 13, 12, 11)
EDGE = 14
LEADING = 1.7
FILLS = {"fill": 0.38, "under": 0.3, "dashed": 0.3}
PALE = {"strike": 0.66, "faint": 0.66}  # 4.5 to 1 on both grounds
LEGEND_SIZE = 15
SMALL = 13
MOSAIC = 120
GRID_WIDTH = 300
MOST_CELL = 24
PICTURED = (Text, History)
AXES = "↓ tokens, steps →. Below: slots by position (numbers: votes)"


@dataclass(frozen=True)
class Piece:
    """A token, or its part on one line: line, column and text."""

    token: int
    line: int
    column: int
    text: str


def picture(shown: Shown, theme: Theme = "light", room: float = ROOM) -> bytes:
    """The SVG of a text or history, about at most `room` pixels high.

    Raises:
        UserError: this kind of view has no picture.
    """
    if isinstance(shown, Text):
        # Legend and shaded text.
        codes = np.array(shown.codes, int)
        top = EDGE + 34
        size, pieces, said = fit_text(shown.texts, WIDTH - 2 * EDGE, room - top - EDGE, shown.chosen)
        height = (
            top + EDGE + (max((piece.line for piece in pieces), default=0) + 1) * size * LEADING + (26 if said else 0)
        )
        drawing = Drawing(WIDTH, round(height), SURFACES[theme])
        legend(drawing, shown.classes, codes, EDGE, EDGE + 16, WIDTH - EDGE, theme)
        draw_shaded_text(drawing, pieces, codes, shown.classes, size, EDGE, top, theme, shown.chosen)
        if said:
            drawing.write_text(EDGE, height - EDGE, said, SMALL, QUIET[theme])
        return drawing.svg()
    if isinstance(shown, History):
        return history_picture(shown, shown.step, theme, room)
    raise UserError("A table has no picture: export slides or CSV instead.")


def history_picture(history: History, step: int, theme: Theme = "light", room: float = ROOM) -> bytes:
    """One step of a head: history so far, slots, and the text with the fate of every token."""
    lineage = history.lineage()
    classes = state_classes()
    codes = states_at(lineage, step).astype(int)
    grid = max(3 * EDGE, EDGE + 62)
    left = EDGE + GRID_WIDTH + 2 * EDGE
    top = grid + MOSAIC + 34
    chosen = None if history.selected is None else (history.selected, history.selected)
    size, pieces, said = fit_text(history.texts, WIDTH - left - EDGE, room - top - EDGE, chosen)
    lines = max((piece.line for piece in pieces), default=0) + 1
    height = max(top + EDGE + lines * size * LEADING + (26 if said else 0), min(room, top + 200))
    drawing = Drawing(WIDTH, round(height), SURFACES[theme])
    tokens = int((codes != State.UNSEEN).sum())
    phase = "the prompt was read" if step == 0 else f"after token {tokens - 1}"
    if history.phases:
        place = history.steps.index(step) if step in history.steps else 0
        phase = history.phases[min(place, len(history.phases) - 1)]
    slots = plural(int(lineage.alive(step).sum()), "slot")
    description = f"Step {step} of {history.steps[-1]}, {phase}: {slots} for {plural(tokens, 'token')}"
    drawing.write_text(EDGE, EDGE + 14, description, 16, INK[theme], bold=True)
    legend(drawing, classes, codes, EDGE, EDGE + 42, WIDTH - EDGE, theme)
    # Tokens by steps, with one box per run of steps in the same state, and a line at this step.
    table = mosaic(lineage, 120)
    rows = table.to_numpy()
    width = WIDTH - 2 * EDGE
    down = MOSAIC / len(rows)
    across = width / rows.shape[1]
    for row, states in enumerate(rows):
        starts = np.flatnonzero(np.diff(states, prepend=states[0] + 1))
        for start, stop in zip(starts, [*starts[1:], len(states)], strict=True):
            if states[start] != State.UNSEEN:
                colour = pick(STATE_COLOURS[STATES[states[start]]], theme)
                drawing.box(EDGE + start * across, grid + row * down, (stop - start) * across, down + 0.3, colour)
    drawing.box(EDGE, grid, width, MOSAIC, "none", GRID[theme])
    at = EDGE + (np.searchsorted(table.columns.to_numpy(), step, side="right") - 0.5) * across
    drawing.line(at, grid, at, grid + MOSAIC, INK[theme], 2)
    drawing.write_text(EDGE, grid + MOSAIC + 18, AXES, SMALL, QUIET[theme])
    _slots(drawing, lineage, step, codes, EDGE, top, height - top - EDGE, theme)
    draw_shaded_text(drawing, pieces, codes, classes, size, left, top, theme, chosen)
    if said:
        drawing.write_text(left, height - EDGE, said, SMALL, QUIET[theme])
    return drawing.svg()


def fit_text(
    texts: Sequence[str], width: float, room: float, chosen: tuple[int, int] | None
) -> tuple[float, list[Piece], str]:
    """The largest font size in which the text fits, its pieces, and a note on omitted lines."""
    for size in SIZES:
        pieces = laid_out(texts, max(1, int(width / (size * ADVANCE))))
        lines = pieces[-1].line + 1 if pieces else 0
        if lines * size * LEADING <= room:
            return size, pieces, ""
    most = max(1, int((room - 26) / (SIZES[-1] * LEADING)))
    here = lines - 1 if chosen is None else next((one.line for one in pieces if one.token >= chosen[0]), lines - 1)
    first = max(0, min(here - most // 2, lines - most))
    visible = [
        Piece(one.token, one.line - first, one.column, one.text) for one in pieces if first <= one.line < first + most
    ]
    said = f"Tokens {visible[0].token:,} to {visible[-1].token:,} of {len(texts):,}; the HTML file has all."
    return SIZES[-1], visible, said


def laid_out(texts: Sequence[str], across: int) -> list[Piece]:
    """The tokens on lines of `across` characters; line breaks within tokens are made visible."""
    pieces: list[Piece] = []
    line = column = 0
    for token, text in enumerate(texts):
        parts = (text or "∅").replace("\r", "␍").replace("\t", "⇥").split("\n")
        for place, part in enumerate(parts):
            shown = part + ("⏎" if place < len(parts) - 1 else "")
            while shown:
                wide = columns(shown)
                if column and column + wide > across:
                    line = line + 1
                    column = 0
                taken = shown if wide <= across else shown[: max(1, across // 2)]
                pieces.append(Piece(token, line, column, taken))
                column += columns(taken)
                shown = shown[len(taken) :]
            if place < len(parts) - 1:
                line = line + 1
                column = 0
    return pieces


def legend(
    drawing: Drawing, classes: Sequence[TokenClass], codes: np.ndarray, x: float, y: float, right: float, theme: Theme
) -> None:
    """A chip with count for each class present, in one row."""
    counts = np.bincount(codes, minlength=len(classes))
    for kind, count in zip(classes, counts, strict=True):
        if not count:
            continue
        name = f"{kind.name} {count:,}"
        # Letters of the proportional font are about .56 of its size wide.
        wide = 34 + 0.56 * LEGEND_SIZE * columns(name) + 16
        if x + wide > right + 40:
            return
        _shade(drawing, kind, x, y - 14, 30, 19, theme)
        drawing.write_text(x + 15, y, "abc", SMALL, INK[theme], mono=True, middle=True, opacity=PALE.get(kind.cue, 1.0))
        if kind.cue == "strike":
            drawing.line(x + 3, y - 4.5, x + 27, y - 4.5, mix(INK[theme], SURFACES[theme], 0.45), 1)
        drawing.write_text(x + 37, y, name, LEGEND_SIZE, INK[theme])
        x += wide


def draw_shaded_text(
    drawing: Drawing,
    pieces: Sequence[Piece],
    codes: np.ndarray,
    classes: Sequence[TokenClass],
    size: float,
    x: float,
    y: float,
    theme: Theme,
    chosen: tuple[int, int] | None = None,
) -> None:
    """The text, shaded by class; the chosen tokens have a border."""
    letter = size * ADVANCE
    step = size * LEADING
    for piece in pieces:
        kind = classes[codes[piece.token]]
        left = x + piece.column * letter
        top = y + piece.line * step
        wide = columns(piece.text) * letter
        _shade(drawing, kind, left, top, wide, size * 1.35, theme)
        here = chosen is not None and chosen[0] <= piece.token <= chosen[1]
        text = piece.text.lstrip(" ")
        indent = (len(piece.text) - len(text)) * letter
        if text:
            pale = 1.0 if here else PALE.get(kind.cue, 1.0)
            drawing.write_text(left + indent, top + size, text, size, INK[theme], mono=True, opacity=pale)
        if kind.cue == "strike" and wide > indent:
            middle = top + size * 0.68
            drawing.line(left + indent, middle, left + wide, middle, mix(INK[theme], SURFACES[theme], 0.45), 1)
        if here:
            drawing.box(left, top, wide, size * 1.35, "none", INK[theme], dash=True)


def _shade(drawing: Drawing, kind: TokenClass, x: float, y: float, width: float, height: float, theme: Theme) -> None:
    if kind.cue not in FILLS:
        return
    colour = pick(kind.colour, theme)
    drawing.box(x, y, max(width - 1, 1), height, mix(colour, SURFACES[theme], 1 - FILLS[kind.cue]))
    if kind.cue in ("under", "dashed"):
        drawing.line(x, y + height - 1, x + width - 1, y + height - 1, colour, 2, dash=kind.cue == "dashed")


def _slots(
    drawing: Drawing, lineage: Lineage, step: int, codes: np.ndarray, x: float, y: float, room: float, theme: Theme
) -> None:
    """One box per live slot by position, with its number of tokens if more than one."""
    alive = np.flatnonzero(lineage.alive(step))
    votes = lineage.votes(step)
    cell = next((size for size in range(MOST_CELL, 1, -1) if -(-len(alive) // (GRID_WIDTH // size)) * size <= room), 2)
    across = GRID_WIDTH // cell
    for place, slot in enumerate(alive):
        left = x + place % across * cell
        top = y + place // across * cell
        if top + cell > y + room + cell:
            return
        side = cell - (2 if cell > 6 else 1 if cell > 2 else 0)
        drawing.box(left, top, side, side, pick(STATE_COLOURS[STATES[codes[slot]]], theme))
        if cell >= 14 and votes[slot] > 1:
            said = f"{votes[slot]}" if votes[slot] < 100 else "99+"
            drawing.write_text(left + side / 2, top + side / 2 + 4, said, 11, SURFACES[theme], bold=True, middle=True)


MOST_FRAMES = 64
COLOURS = 64
FRAME_MS = 250
LAST_MS = 2500
# Measured on runs of 17 steps over 80 tokens and 48 over 1,723, on two cores.
BYTES_A_PIXEL = 0.06
SECONDS_A_FRAME = 0.35


def frames_of(history: History, most: int = MOST_FRAMES) -> list[int]:
    """The steps drawn: all, or an even sample plus, if there is room, steps with departures."""
    steps = np.array(history.steps)
    if len(steps) <= most:
        return steps.tolist()
    chosen = set(steps[np.linspace(0, len(steps) - 1, most // 2).round().astype(int)].tolist())
    events = [step for step in event_steps(history.lineage()).tolist() if step not in chosen]
    room = most - len(chosen)
    chosen.update(events[:: max(1, -(-len(events) // room))])
    return sorted(chosen)


def estimate_gif(steps: int) -> str:
    """Estimated size and duration of a GIF with this many steps, as text."""
    count = min(steps, MOST_FRAMES)
    size = byte_size(round(count * WIDTH * ROOM * BYTES_A_PIXEL, -4))
    every = f" of {steps:,} steps" if steps > count else ""
    return f"{count} frames{every}, {WIDTH:,} pixels wide, about {size}, about {count * SECONDS_A_FRAME:.0f} s"


def animation(
    history: History, writer: ImageWriter, theme: Theme = "light", on_frame: Callable[[int, int], None] | None = None
) -> bytes:
    """The looping GIF; `on_frame` is called with each frame's number (from 1) and the total.

    Raises:
        UserError: the head has only one step, or there is no Chromium.
    """
    steps = frames_of(history)
    if len(steps) < 2:
        raise UserError("This head has only one step, so there is nothing to animate: export a picture instead.")
    drawn: list[Image.Image] = []
    for place, step in enumerate(steps, 1):
        picture = writer.picture(history_picture(history, step, theme), "png", scale=1)
        drawn.append(Image.open(io.BytesIO(picture)).convert("RGB"))
        if on_frame is not None:
            on_frame(place, len(steps))
    # One palette, from the last frame, which has every state, so that only differences between frames are stored.
    palette = drawn[-1].quantize(COLOURS, dither=Image.Dither.NONE)
    small = [one.quantize(palette=palette, dither=Image.Dither.NONE) for one in drawn]
    file = io.BytesIO()
    times = [*[FRAME_MS] * (len(small) - 1), LAST_MS]
    small[0].save(file, "gif", save_all=True, append_images=small[1:], duration=times, loop=0, optimize=False)
    return file.getvalue()
