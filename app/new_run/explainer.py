"""The schematic on the start page: tokens that are kept, merged or evicted, and the slots of the cache."""

from __future__ import annotations

from dataclasses import dataclass

from kvlab.views.base.palette import HUES, STATE_COLOURS, Theme

CELL = 58
GAP = 6
HEIGHT = 42
TOKENS = ("The", "old", "key", "lies", "under", "the", "stone")
FATES = ("kept", "merged", "merged", "evicted", "kept", "evicted", "kept")
SLOTS = {0: (0,), 1: (1, 2), 4: (4,), 6: (6,)}  # tokens of each slot, by the first
WIDTH = len(TOKENS) * (CELL + GAP) - GAP


@dataclass(frozen=True)
class Colours:
    """The colours of the schematic in one theme."""

    ink: str
    quiet: str
    kept: str
    merged: str
    on_fill: str

    @classmethod
    def of(cls, theme: Theme) -> Colours:
        side = 0 if theme == "light" else 1
        kept = STATE_COLOURS["kept"][side]
        merged = STATE_COLOURS["pivot"][side]
        return cls(HUES["ink"][side], HUES["grey"][side], kept, merged, "#FFFFFF" if theme == "light" else "#12151C")


def drawing(theme: Theme) -> str:
    """The SVG: a row of tokens above the row of slots."""
    colours = Colours.of(theme)
    body = [_label(16, "tokens of the prompt", colours), *_tokens(colours), *_edges(colours), *_slots(colours)]
    body.append(_label(190, "slots of one head's cache", colours))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH + 2} 196" width="{WIDTH + 2}" height="196" '
        f'font-family="Inter, system-ui, sans-serif" font-size="14">{"".join(body)}</svg>'
    )


def _left(index: int) -> float:
    return 1 + index * (CELL + GAP)


def _centre(index: int) -> float:
    return _left(index) + CELL / 2


def _label(y: float, text: str, colours: Colours) -> str:
    return f'<text x="1" y="{y:g}" fill="{colours.quiet}" font-size="12.5">{text}</text>'


def _tokens(colours: Colours) -> list[str]:
    drawn = []
    for index, (text, fate) in enumerate(zip(TOKENS, FATES, strict=True)):
        fill = {"kept": colours.kept, "merged": colours.merged, "evicted": "none"}[fate]
        dash = ' stroke-dasharray="3 3"' if fate == "evicted" else ""
        stroke, ink = (colours.quiet, colours.quiet) if fate == "evicted" else (fill, colours.on_fill)
        drawn.append(_box(_left(index), 28, CELL, fill, stroke, dash) + _text(_centre(index), 54, text, ink))
    return drawn


def _edges(colours: Colours) -> list[str]:
    return [
        _line(_centre(token), 71, _slot_centre(slot), 124, colours.merged if len(members) > 1 else colours.kept)
        for slot, members in SLOTS.items()
        for token in members
    ]


def _slot_spans() -> dict[int, tuple[float, float]]:
    """Left edge and width of each slot; a merged slot is as wide as its tokens, and the row is centred."""
    widths = {slot: len(members) * (CELL + GAP) - GAP for slot, members in SLOTS.items()}
    left = (WIDTH - sum(widths.values()) - GAP * (len(widths) - 1)) / 2
    spans: dict[int, tuple[float, float]] = {}
    for slot, width in widths.items():
        spans[slot] = (left, width)
        left += width + GAP
    return spans


def _slot_centre(slot: int) -> float:
    left, width = _slot_spans()[slot]
    return left + width / 2


def _slots(colours: Colours) -> list[str]:
    drawn = []
    for slot, (left, width) in _slot_spans().items():
        fill = colours.merged if len(SLOTS[slot]) > 1 else colours.kept
        text = " + ".join(TOKENS[token] for token in SLOTS[slot])
        drawn.append(_box(left, 126, width, fill, fill, "") + _text(left + width / 2, 152, text, colours.on_fill))
    return drawn


def _box(x: float, y: float, width: float, fill: str, stroke: str, extra: str) -> str:
    shape = f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{HEIGHT}" rx="5"'
    return f'{shape} fill="{fill}" stroke="{stroke}"{extra}/>'


def _text(x: float, y: float, text: str, colour: str) -> str:
    return f'<text x="{x:g}" y="{y:g}" fill="{colour}" text-anchor="middle">{text}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, colour: str) -> str:
    middle = (y1 + y2) / 2
    path = f"M{x1:g} {y1:g}C{x1:g} {middle:g} {x2:g} {middle:g} {x2:g} {y2:g}"
    return f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="1.5" opacity="0.75"/>'
