"""Slide contents that are not charts: tables, shaded texts, head histories, and diffed passages.

Each is small data, JSON in a slide, to be shown as HTML, a picture, or office content. Colours are (light, dark) pairs.
"""

import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import pandas as pd
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from kvlab.core.errors import UserError
from kvlab.trace.stories import Kind, View
from kvlab.views.base import STATE_COLOURS, STATE_NAMES, number
from kvlab.views.frames.lineage import NEVER, Lineage
from kvlab.views.frames.textdiff import Segment
from kvlab.views.timeline import VECTORS, encode_never

Cue = Literal["fill", "under", "dashed", "strike", "faint", "none"]
STATE_CUES: tuple[Cue, ...] = ("faint", "fill", "fill", "fill", "under", "dashed", "strike")  # in the order of states
MOST_CELLS = 4000
DIGITS = 4
Colour = tuple[str, str]


class Shown(BaseModel):
    """Base class of slide contents."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Table(Shown):
    """Cells as text; `left_out` rows were omitted."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    left_out: int = 0


class TokenClass(Shown):
    """Meaning of a shading: legend name, colours, and a second cue besides colour."""

    name: str
    colour: Colour
    cue: Cue


class Text(Shown):
    """Token i is `texts[i]`, shaded as `classes[codes[i]]`; `chosen` is the first and last selected token."""

    texts: tuple[str, ...]
    codes: tuple[int, ...]
    classes: tuple[TokenClass, ...]
    chosen: tuple[int, int] | None = None


class History(Shown):
    """Fate of every token of a head: per token the steps of `Lineage` (-1: never), and the current selection."""

    texts: tuple[str, ...]
    birth: tuple[int, ...]
    leave: tuple[int, ...]
    death: tuple[int, ...]
    absorb: tuple[int, ...]
    parent: tuple[int, ...]
    steps: tuple[int, ...] = Field(min_length=1)
    step: int
    selected: int | None = None
    phases: tuple[str, ...] | None = None

    def lineage(self) -> Lineage:
        """The original lineage, without departure kinds."""
        vectors = {name: np.array(getattr(self, name), np.int64) for name in VECTORS}
        known = {name: np.where(vector < 0, NEVER, vector) for name, vector in vectors.items()}
        steps = np.array(self.steps, np.int64)
        parent = np.array(self.parent, np.int64)
        tokens_seen = np.array([(known["birth"] <= step).sum() for step in self.steps])
        return Lineage(
            steps=steps, tokens_seen=tokens_seen, kind=np.zeros(len(parent), np.uint8), parent=parent, **known
        )


class Passages(Shown):
    """Texts side by side, each as (label, segments of `kvlab.views.frames.textdiff`)."""

    passages: tuple[tuple[str, tuple[Segment, ...]], ...]


KINDS: dict[Kind, type[Shown]] = {"table": Table, "text": Text, "history": History, "passages": Passages}


def kind_of(shown: Shown) -> Kind:
    """Name under which a slide stores it."""
    return next(kind for kind, model in KINDS.items() if type(shown) is model)


def parse_shown(view: View) -> Shown:
    """Content of a slide that is not a chart; raises UserError if it cannot be read."""
    assert view.slide is not None
    try:
        shown = KINDS[view.slide.kind].model_validate_json(view.slide.figure)
        # Parts that are inconsistent are refused, because a browser would silently draw nothing.
        if isinstance(shown, Table) and any(len(row) != len(shown.columns) for row in shown.rows):
            raise ValueError("a row is longer or shorter than the columns")
        if isinstance(shown, Text):
            last = len(shown.classes) - 1
            if len(shown.codes) != len(shown.texts) or not all(0 <= code <= last for code in shown.codes):
                raise ValueError("a token has no class")
        if isinstance(shown, History):
            lists = (shown.birth, shown.leave, shown.death, shown.absorb, shown.parent)
            if any(len(one) != len(shown.texts) for one in lists) or any(at >= len(shown.texts) for at in shown.parent):
                raise ValueError("a token has no history")
            # a cycle of parents, found by pointer doubling
            parent = np.array(shown.parent, np.int64)
            root = np.where(parent >= 0, parent, np.arange(len(parent)))
            for _ in range(len(parent).bit_length()):
                root = root[root]
            if (parent[root] >= 0).any():
                raise ValueError("slots went into each other in a circle")
    except (ValidationError, ValueError) as error:
        raise UserError(f"The content of the slide {view.title[:60]!r} is damaged: add it again.") from error
    return shown


def table_of(frame: pd.DataFrame, most: int = MOST_CELLS) -> Table:
    """A table as text: at most `most` cells, few digits, empty cells for missing values."""
    rows = max(1, most // max(1, len(frame.columns)))
    cells = frame.head(rows).astype(object).to_numpy().tolist()
    return Table(
        columns=tuple(map(str, frame.columns)),
        rows=tuple(tuple(map(_cell, row)) for row in cells),
        left_out=max(0, len(frame) - rows),
    )


def history_of(
    lineage: Lineage, texts: Sequence[str], step: int, selected: int | None = None, phases: Sequence[str] | None = None
) -> History:
    """The history of a head as slide content."""
    return History(
        texts=tuple(texts),
        steps=tuple(lineage.steps.tolist()),
        parent=tuple(lineage.parent.tolist()),
        step=step,
        selected=selected,
        phases=None if phases is None else tuple(phases),
        **{name: tuple(encode_never(getattr(lineage, name)).tolist()) for name in VECTORS},
    )


def state_classes() -> tuple[TokenClass, ...]:
    """The classes of `kvlab.views.frames.lineage.State`, in its order."""
    looks = zip(STATE_COLOURS, STATE_CUES, strict=True)
    return tuple(TokenClass(name=STATE_NAMES[state], colour=STATE_COLOURS[state], cue=cue) for state, cue in looks)


def _cell(value: Any) -> str:
    if value is None or value is pd.NA or (isinstance(value, float) and not math.isfinite(value)):
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return number(value, DIGITS) if isinstance(value, float) else str(value)
