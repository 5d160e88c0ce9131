"""Similarity: exact cosine maps of keys and values, at any zoom, with merged slots outlined.

The browser shows the tile it has until the server has computed the sharp one.
"""

import base64
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import streamlit as st

from app.base.component import component, flush, on_value
from app.base.text import plain
from app.base.theme import theme as page_theme
from app.base.widgets import one_of
from app.figures.export_menu import Offer, show_title
from app.figures.figure import frame_of, note, show_view
from app.navigation import page
from app.navigation.place import offer_token, pick_step
from app.session.open_runs import BY_STAMP
from app.session.url_state import in_url, set_param, url_numbers
from kvlab.core.errors import UserError
from kvlab.trace.reader import Run
from kvlab.views import similarity
from kvlab.views.base import DIVERGING, INK, MARKS, QUIET, STATE_COLOURS, Theme, of_run, percent, pick
from kvlab.views.frames.head_states import recorded_layers
from kvlab.views.similarity import Tile, as_outlines, consecutive_sets, merge_sets, outlines, set_count

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


TILE = 384
OPEN_VECTORS = 4  # 64 MB per head at 128k tokens and head_dim 128
MAP = "similarity-map"
MAX_VECTORS = 2_000_000  # tokens x layers x heads that are read without a switch
MAP_KEYS = (("+ and -", "zoom the map (click it first)"), ("arrows", "move the map"), ("0", "the whole text"))
OUTLINES = ("merged slots", "threshold", "none")
MODES: dict[similarity.Mode, str] = {"mean": "mean", "max": "largest"}


unit_vectors = st.cache_resource(max_entries=OPEN_VECTORS, show_spinner=False, hash_funcs=BY_STAMP)(
    similarity.unit_vectors
)


def similarity_of_head(run: Run, layer: int, head: int) -> None:
    step = pick_step(run)
    columns = st.columns([1.2, 1.4, 2.2], vertical_alignment="bottom")
    with columns[0]:
        what = one_of("Vectors", ["keys", "values"], key="what")
    with columns[1]:
        mode = one_of("Blocks show their", MODES, key="mode")
    with columns[2]:
        outlined = one_of(
            "Outline",
            OUTLINES,
            key="sets",
            help="Tokens that share a slot in this run, or sets of similar neighbours at a threshold.",
        )
    try:
        unit_vectors(run, what, layer, head)
    except UserError as error:
        st.info(plain(str(error)))
        return
    if run.record.state_note:
        st.caption(run.record.state_note)
    frame = frame_of("similarity_band", run, layer=layer, head=head, what=what)
    if not frame.empty:
        page.verdict(similarity.verdict(frame, what, (layer, head)))
    zoom, details = st.columns([3, 2], gap="large")
    with zoom:
        zoomable_map(run, layer, head, step, what, mode, outlined)
    flush()
    with details:
        unit = unit_vectors(run, what, layer, head)
        last = len(unit) - 1
        middle = min(len(unit) // 2, last)
        offer_token(run.record.comparison_id, last)
        chosen = st.number_input("Look around token", 0, last, middle, **in_url("token"))
        token = middle if chosen is None else int(chosen)  # the field of this name on another page may be empty
        show_view("neighbours", run, "similarity-near", layer=layer, head=head, token=token, what=what)
    if not frame.empty:
        show_view("similarity_band", run, "similarity-band", layer=layer, head=head, what=what)
    st.header("All heads")
    layers = recorded_layers(run)
    label = f"Compare all heads of {len(layers)} layers (reads all {what})"
    if not page.reads_all(run, layers, MAX_VECTORS, label, "wall"):
        return
    place: dict[str, Any] = {"what": what, "layers": tuple(layers)}
    with st.spinner("Reading the vectors of every head"):
        table = frame_of("similarity_by_head", run, **place)
    if table.empty:
        st.caption("No vectors were recorded in any layer.")
    else:
        show_view("similarity_by_head", run, "similarity-wall", focus=(layer, head), **place)


@st.fragment
def zoomable_map(run: Run, layer: int, head: int, step: int, what: str, mode: similarity.Mode, outlined: str) -> None:
    unit = unit_vectors(run, what, layer, head)
    lineage, _, texts = page.head_history(run, layer, head)
    window = clamp(url_numbers("window", 4), len(unit))
    span = window[1] - window[0]
    shown = mode if mode in similarity.allowed_modes(span, TILE) else similarity.allowed_modes(span, TILE)[0]
    tile = similarity.tile(unit, window[:2], window[2:], TILE, shown)
    sets = pd.DataFrame(columns=["slot", "start", "stop", "pivot_start", "pivot_stop", "votes", "reach"])
    if outlined == OUTLINES[0] and len(lineage.steps):
        sets = outlines(merge_sets_of(run, layer, head, step), (min(window[0], window[2]), max(window[1], window[3])))
    elif outlined == OUTLINES[1]:
        # Sets of consecutive similar vectors at the chosen threshold, computed from the stored vectors.
        threshold = st.slider("Threshold", -0.5, 0.99, 0.75, 0.01, **in_url("threshold"))
        anchor = anchors_at(run, what, layer, head, threshold)
        slots = set_count(anchor)
        st.caption(
            f"Merging sets of neighbours whose cosine with their last token is above {threshold:g} would leave "
            f"{slots:,} slots for {len(anchor):,} tokens ({percent(slots / max(1, len(anchor)))})."
        )
        sets = as_outlines(anchor, (min(window[0], window[2]), max(window[1], window[3])))
    cell = max(1, span // TILE)
    every = len(sets)
    sets = sets[sets["reach"] >= cell].head(similarity.MOST_OUTLINES)
    frame = tile.frame()
    theme = page_theme()
    caption = similarity.caption_similarity_map(frame, len(sets), every)
    name = f"{run.record.label}-{what}-layer-{layer}-head-{head}"

    draw = partial(similarity.similarity_map, frame, texts, theme, what=what, mode=shown, sets=sets)
    title = f"Similarity of the {what}"
    offer = Offer(title, draw, caption, of_run(run), has_picture=True, frame=frame, file_name=name)
    show_title(offer, "similarity-map-export")
    tilemap(
        tile,
        texts,
        sets,
        identity=f"{run.path}/{layer}/{head}/{what}",
        tokens=len(unit),
        theme=theme,
        key=MAP,
        on_window=partial(
            on_value,
            MAP,
            "window",
            lambda edges: set_param("window", "-".join(str(int(edge)) for edge in edges), force=True),
        ),
    )
    note(caption)
    if mode == "max" and shown == "mean":
        st.caption(
            f"The largest value of a block is computed for at most {similarity.MAX_PAIR_WINDOW:,} tokens: zoom in to "
            "see it."
        )


@st.cache_resource(max_entries=32, hash_funcs=BY_STAMP, show_spinner=False)
def merge_sets_of(run: Run, layer: int, head: int, step: int) -> pd.DataFrame:
    return merge_sets(page.head_history(run, layer, head)[0], step)


@st.cache_resource(max_entries=64, hash_funcs=BY_STAMP, show_spinner=False)
def anchors_at(run: Run, what: str, layer: int, head: int, threshold: float) -> Any:
    return consecutive_sets(unit_vectors(run, what, layer, head), threshold)
