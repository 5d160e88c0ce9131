"""The cache wall: all heads of a run at once, drawn, zoomed and scrubbed by the browser."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from app.base.component import component
from app.components.payload import SentTexts, SharedData, pack_payload, share
from kvlab.browser import read_static
from kvlab.views.base.palette import HUES, SURFACES, Theme, pick
from kvlab.views.base.template import INK, QUIET
from kvlab.views.frames.wall import Wall

Looks = tuple[list[str], list[str], list[str]]  # colours, names and meanings by code
Reads = tuple[np.ndarray, np.ndarray]  # `kvlab.views.wall.most_read`

_component = component("wall", read_static("wall.html"), "step-bar.css", "wall.css")


def wall_data(wall: Wall) -> SharedData:
    """The wall as sent to the browser, once for all steps: fates in two bits, changes as lists."""
    steps = np.arange(len(wall.steps))
    return SharedData(
        {
            "first": packed_fates(wall.first),
            "readBy": np.searchsorted(wall.birth, steps, side="right").astype(np.uint32),
            "changesBy": np.searchsorted(wall.change_step, steps, side="right").astype(np.uint32),
            "changeCells": wall.change_cell,
            "changeFates": wall.change_fate,
        }
    )


def packed_fates(fates: np.ndarray) -> np.ndarray:
    """Four fates to a byte, lowest bits first; the last byte is filled with zeros."""
    flat = fates.reshape(-1)
    fours = np.pad(flat, (0, -len(flat) % 4)).reshape(-1, 4)
    return fours[:, 0] | fours[:, 1] << 2 | fours[:, 2] << 4 | fours[:, 3] << 6


def cache_wall(
    wall: Wall,
    data: SharedData,
    other: SharedData | None,
    texts: SentTexts,
    *,
    identity: str,
    step: int,
    why: str,
    focus: tuple[int, int],
    token: int | None,
    facts: Sequence[tuple[int, int]],
    reads: Reads | None,
    looks: Looks,
    theme: Theme,
    key: str,
    on_step: Callable[[], None],
    on_place: Callable[[], None],
) -> Any:
    """Mount the wall; with `other` it shows the difference of two runs.

    The result's `step` is where the user stopped and `place` the [layer, head, position] just clicked, position -1
    beside the text. `facts` are first and last positions. `reads` are the most read slots at `step`.
    """
    shared: dict[str, SharedData | SentTexts] = {"wall": data, "texts": texts}
    if other is not None:
        shared["other"] = other
    positions, masses = (np.zeros((0, 1), np.int32), np.zeros((0, 1), np.float32)) if reads is None else reads
    colours, names, meanings = looks
    content = share(key, **shared) | {
        "identity": identity,
        "layers": list(wall.layers),
        "heads": wall.heads,
        "steps": wall.steps.tolist(),
        "eventSteps": np.unique(wall.steps[wall.change_step]).tolist(),
        "step": step,
        "why": why,
        "focus": list(focus),
        "token": token,
        "facts": [list(span) for span in facts],
        "readsStep": None if reads is None else step,
        "readsPerHead": positions.shape[1],
        "readPositions": positions,
        "readMasses": masses,
        "colours": colours,
        "labels": names,
        "meanings": meanings,
        "ink": INK[theme],
        "quiet": QUIET[theme],
        "paper": SURFACES[theme],
        "factColour": pick(HUES["gold"], theme),
        "focusColour": pick(HUES["red"], theme),
    }
    return _component(key=key, data=pack_payload(content), on_step_change=on_step, on_place_change=on_place)
