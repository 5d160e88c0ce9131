"""A zoomable similarity map: the browser shows the tile it has until the server has computed the sharp one."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from app.base.component import component
from kvlab.views.base.palette import DIVERGING, STATE_COLOURS, Theme, pick
from kvlab.views.base.template import INK, QUIET
from kvlab.views.base.words import MARKS
from kvlab.views.similarity import Tile

TEXT_LIMIT = 32
Window = tuple[int, int, int, int]
HTML = """
<div class="kv-map" data-testid="tilemap">
  <div class="bar" role="group" aria-label="Zoom">
    <button data-act="in" aria-label="Zoom in" title="Zoom in (+)">+</button>
    <button data-act="out" aria-label="Zoom out" title="Zoom out (-)">−</button>
    <button data-act="diagonal" title="Move to the diagonal">to the diagonal</button>
    <button data-act="whole" title="The whole text (0, or double-click)">whole text</button>
    <span class="scale"><span>cosine −1</span><span class="ramp"></span><span>1</span></span>
  </div>
  <div class="detail" aria-live="off"></div>
  <canvas tabindex="0" role="img" aria-label="Similarity map; plus and minus zoom, arrow keys move"></canvas>
</div>
"""

_component = component("tilemap", HTML, "tilemap.css")


def tilemap(
    tile: Tile,
    texts: Sequence[str],
    outlines: pd.DataFrame,
    *,
    identity: str,
    tokens: int,
    theme: Theme,
    key: str,
    on_window: Callable[[], None],
) -> Any:
    """Mount the map; the result's `window` is (first row, last row, first column, last column) the user moved to.

    Values are sent as 16-bit integers, so the value under the pointer is exact to 0.0001.
    """
    rows, columns = tile.values.shape
    data = {
        "identity": identity,
        "tokens": tokens,
        "window": [int(edges[at]) for edges in (tile.row_edges, tile.column_edges) for at in (0, -1)],
        "rows": rows,
        "columns": columns,
        "values": base64.b64encode(quantize_cosines(tile.values).tobytes()).decode(),
        "rowEdges": tile.row_edges.tolist(),
        "columnEdges": tile.column_edges.tolist(),
        "rowTexts": _texts(texts, tile.row_edges),
        "columnTexts": _texts(texts, tile.column_edges),
        "outlines": outlines[["start", "stop", "pivot_start", "pivot_stop"]].to_numpy().tolist(),
        "outlineColour": pick(STATE_COLOURS["pivot"], theme),
        "scale": DIVERGING[theme],
        "ink": INK[theme],
        "quiet": QUIET[theme],
    }
    return _component(key=key, data=data, on_window_change=on_window)


def quantize_cosines(values: np.ndarray) -> np.ndarray:
    """Cosines as little-endian 16-bit integers, 32767 for one."""
    return np.rint(np.clip(values, -1, 1) * 32767).astype("<i2")


def clamp(window: Sequence[int] | None, tokens: int) -> Window:
    """The window made square and inside the text; the whole text without one."""
    if window is None or len(window) != 4 or tokens == 0:
        return 0, tokens, 0, tokens
    span = max(1, min(tokens, int(window[1]) - int(window[0])))
    row, column = (max(0, min(tokens - span, int(start))) for start in (window[0], window[2]))
    return row, row + span, column, column + span


def _texts(texts: Sequence[str], edges: np.ndarray) -> list[str]:
    """The visible text of each block, shortened; the browser sets it as text, so it needs no escaping."""
    return [
        "".join(texts[start : min(stop, start + TEXT_LIMIT)]).translate(MARKS)[:TEXT_LIMIT]
        for start, stop in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)
    ]
