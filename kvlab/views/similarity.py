"""Cosine similarity of a head's keys or values: maps at any zoom, the diagonal band, a token's neighbours, all heads.

The mean cosine of two blocks is the dot product of their mean unit vectors, so a tile costs two block means and one
small product, without a tokens x tokens matrix. A mean hides rare similar pairs: mode `max` compares every pair of a
small window. Merge sets of consecutive similar keys, at any threshold, are outlined on the map.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from numpy.lib.stride_tricks import as_strided

from kvlab.core.errors import UserError
from kvlab.trace.reader import Run
from kvlab.views.base.head_map import Place, outline
from kvlab.views.base.palette import DIVERGING, HUES, STATE_COLOURS, SURFACES, Theme, pick
from kvlab.views.base.template import colour_bar, colour_bar_below, finish, token_ticks
from kvlab.views.base.view import view
from kvlab.views.base.words import NOT_RECORDED, alike, are_known, near, number, shown_of, token_labels, visible
from kvlab.views.frames.float16 import as_float32, block_edges, block_means
from kvlab.views.frames.head_states import recorded_layers
from kvlab.views.frames.lineage import Lineage, head_history, keep_by_run


def as_outlines(anchor: np.ndarray, window: tuple[int, int], smallest: int = 1) -> pd.DataFrame:
    """Sets of more than one token (`consecutive_sets`) as squares on the diagonal, with the columns of `outlines`.

    Only sets that overlap the window and are over at least `smallest` tokens (one map cell), the largest first.
    """
    start = np.flatnonzero(np.diff(anchor, prepend=-1))
    stop = np.append(start[1:], len(anchor))
    size = stop - start
    table = pd.DataFrame(
        {
            "slot": stop - 1,
            "start": start,
            "stop": stop,
            "pivot_start": start,
            "pivot_stop": stop,
            "votes": size,
            "reach": size,
        }
    )
    meets = (stop > window[0]) & (start < window[1]) & (size > 1) & (size >= smallest)
    return table[meets].sort_values("votes", ascending=False, kind="stable").reset_index(drop=True)


def merge_sets(lineage: Lineage, step: int) -> pd.DataFrame:
    """One row per token that shares its slot after `step`: columns slot, position, votes (of the slot)."""
    owner = lineage.owners(step)
    votes = np.bincount(owner[owner >= 0], minlength=lineage.tokens)
    shared = np.flatnonzero((owner >= 0) & (votes[owner] > 1))
    table = pd.DataFrame({"slot": owner[shared], "position": shared, "votes": votes[owner[shared]]})
    return table.sort_values(["slot", "position"]).reset_index(drop=True)


def outlines(sets: pd.DataFrame, window: tuple[int, int], smallest: int = 1) -> pd.DataFrame:
    """The merge sets as rectangles on the map: contiguous runs of a slot's tokens against the run that holds its pivot.

    Columns: slot, start, stop (the run), pivot_start, pivot_stop, votes, reach (tokens spanned); the pivot's own run is
    a square on the diagonal. Only those that overlap `window` and span `smallest` tokens (a cell), most votes first.
    """
    position, slot, votes = (sets[name].to_numpy(np.int64) for name in ("position", "slot", "votes"))
    breaks = np.flatnonzero((np.diff(position) != 1) | (np.diff(slot) != 0)) + 1
    first = np.concatenate([np.zeros(min(1, len(sets)), np.int64), breaks])
    last = np.concatenate([breaks, np.full(min(1, len(sets)), len(sets))]) - 1
    runs = pd.DataFrame(
        {"slot": slot[first], "start": position[first], "stop": position[last] + 1, "votes": votes[first]}
    )
    home = runs[(runs["start"] <= runs["slot"]) & (runs["slot"] < runs["stop"])].set_index("slot")
    table = runs.assign(
        pivot_start=runs["slot"].map(home["start"]).fillna(runs["slot"]).astype(int),
        pivot_stop=runs["slot"].map(home["stop"]).fillna(runs["slot"] + 1).astype(int),
    )
    on_diagonal = table["start"] == table["pivot_start"]
    meets = (table["stop"] > window[0]) & (table["start"] < window[1])
    meets &= (table["pivot_stop"] > window[0]) & (table["pivot_start"] < window[1])
    reach = table[["stop", "pivot_stop"]].max(axis=1) - table[["start", "pivot_start"]].min(axis=1)
    table = table.assign(reach=reach)
    shown = table[meets & (reach >= smallest) & ~(on_diagonal & (table["stop"] - table["start"] == 1))]
    return shown.sort_values("votes", ascending=False, kind="stable").reset_index(drop=True)


BAND = 16  # offsets compared for all tokens at once; longer sets are followed one by one
CHUNK = 64


def consecutive_sets(unit: np.ndarray, threshold: float) -> np.ndarray:
    """(tokens,) anchor of each token's merge set, from unit keys (tokens, head_dim); KVMerger, Algorithm 1.

    Scans from the last token to the first: a set absorbs the tokens before its anchor while their cosine with the
    anchor is above `threshold`; the first that fails becomes the next anchor.
    """
    units = unit.astype(np.float32)
    # How many of the `BAND` tokens before each token would join its set if it were an anchor.
    reach = np.zeros(len(units), np.int64)
    growing = np.arange(1, len(units))
    for offset in range(1, BAND + 1):
        growing = growing[growing >= offset]
        cosine = np.einsum("td,td->t", units[growing], units[growing - offset])
        growing = growing[cosine > threshold]
        reach[growing] = offset
    anchor = np.arange(len(units))
    place = len(units) - 1
    while place >= 0:
        length = int(reach[place])
        if length == BAND:
            # A set that fills the band is followed further, by growing chunks.
            length = 0
            size = CHUNK
            while length < place:
                start = max(0, place - length - size)
                unlike = np.flatnonzero(units[start : place - length] @ units[place] <= threshold)
                if len(unlike):
                    length = place - (start + int(unlike[-1])) - 1
                    break
                length = place - start
                size = 2 * size
        anchor[place - length : place + 1] = place
        place -= length + 1
    return anchor


def set_count(anchor: np.ndarray) -> int:
    """Number of sets, i.e. slots left after merging."""
    return int((anchor == np.arange(len(anchor))).sum())


Mode = Literal["mean", "max", "raw"]
MAX_PAIR_WINDOW = 2048
ROWS_AT_ONCE = 256
MAX_CELLS = 512
MAX_WALL_SIDE = 768
MOST_OUTLINES = 2000
# pixels
TALLEST_WALL = 900
WIDEST_WALL = 880
# pixels of a side
LARGEST_MAP = 230
SMALLEST_MAP = 28
MOST_LAYERS = 32  # with more, the maps would be smaller than `SMALLEST_MAP`
FAR = 0.02  # smaller differences of cosines count as none


def unit_vectors(run: Run, what: str, layer: int, head: int) -> np.ndarray:
    """Unit keys or values (tokens, head_dim) of one layer and KV head; raises UserError if they were not recorded."""
    return (run.keys if what == "keys" else run.values)(layer, head)[0]


@dataclass(frozen=True)
class Tile:
    """A window of a similarity map: values (rows, columns) float32 and the edges of its blocks."""

    values: np.ndarray
    row_edges: np.ndarray
    column_edges: np.ndarray

    def frame(self) -> pd.DataFrame:
        """The values as a frame, named by the first position of each block."""
        rows = pd.Index(self.row_edges[:-1], name="token")
        columns = pd.Index(self.column_edges[:-1], name="other token")
        return pd.DataFrame(self.values, index=rows, columns=columns)


def tile(unit: np.ndarray, rows: tuple[int, int], columns: tuple[int, int], size: int, mode: Mode = "mean") -> Tile:
    """Map of `unit` (tokens, head_dim) over the windows `rows` and `columns`, at most `size` cells per side.

    Raises:
        UserError: `max` or `raw` over more tokens than can be compared pair by pair.
    """
    widest = max(rows[1] - rows[0], columns[1] - columns[0])
    if mode == "max" and widest > MAX_PAIR_WINDOW:
        raise UserError(f"Mode “max” is limited to {MAX_PAIR_WINDOW} tokens: zoom in.")
    if mode == "raw" and widest > size:
        raise UserError(f"Single pairs are limited to {size} tokens: zoom in.")
    row_edges = block_edges(*rows, size)
    column_edges = block_edges(*columns, size)
    row_units = unit[slice(*rows)]
    column_units = unit[slice(*columns)]
    if mode == "mean":
        means = block_means(row_units, row_edges)
        values = means @ (means if rows == columns else block_means(column_units, column_edges)).T
        return Tile(values, row_edges, column_edges)
    # The largest cosine of any pair in each block, a few rows at a time to bound memory.
    others = as_float32(column_units).T
    by_row = np.empty((len(row_units), len(column_edges) - 1), np.float32)
    for start in range(0, len(row_units), ROWS_AT_ONCE):
        pairs = as_float32(row_units[start : start + ROWS_AT_ONCE]) @ others
        by_row[start : start + ROWS_AT_ONCE] = np.maximum.reduceat(pairs, column_edges[:-1] - columns[0], axis=1)
    return Tile(np.maximum.reduceat(by_row, row_edges[:-1] - rows[0], axis=0), row_edges, column_edges)


def allowed_modes(window: int, size: int) -> tuple[Mode, ...]:
    """Modes available for a window of this many tokens."""
    if window <= size:
        return ("raw",)
    return ("mean", "max") if window <= MAX_PAIR_WINDOW else ("mean",)


def diagonal_band(unit: np.ndarray, offsets: int = 256, blocks: int = 512) -> pd.DataFrame:
    """Mean cosine of each token with the one `offset` before it: one row per offset (1, 2, ...), one column per block.

    Columns are named by the first position of the block; cells without pairs are NaN.
    """
    tokens = len(unit)
    edges = block_edges(0, tokens, blocks)
    reach = max(0, min(offsets, tokens - 1))
    rows = np.arange(1, reach + 1)
    before = np.zeros((reach, unit.shape[1]), np.float32)  # zero padding
    units = np.concatenate([before, as_float32(unit)])
    sums = np.zeros((reach, len(edges) - 1), np.float32)
    for block, (start, stop) in enumerate(pairwise(edges)):
        # One matrix product computes twice the pairs needed and is still four times as fast as vector products.
        for first in range(start, stop, ROWS_AT_ONCE):
            last = min(first + ROWS_AT_ONCE, stop)
            pairs = units[first + reach : last + reach] @ units[first : last + reach].T
            down, right = pairs.strides
            # Row t from its own diagonal's left end: column k is the token `reach` - k before it.
            sums[:, block] += as_strided(pairs, (last - first, reach), (down + right, right)).sum(0)[::-1]
    count = edges[1:] - np.maximum(edges[:-1], rows[:, None])
    band = np.where(count > 0, sums / np.maximum(count, 1), np.nan).astype(np.float32)
    return pd.DataFrame(band, index=pd.Index(rows, name="offset"), columns=pd.Index(edges[:-1], name="position"))


def neighbour_profile(unit: np.ndarray, token: int, reach: int = 128) -> pd.DataFrame:
    """Cosine of one token with its neighbours: columns offset, position, similarity."""
    start = max(0, token - reach)
    stop = min(len(unit), token + reach + 1)
    similarity = as_float32(unit[start:stop]) @ as_float32(unit[token])
    position = np.arange(start, stop)
    return pd.DataFrame({"offset": position - token, "position": position, "similarity": similarity})


def locality(unit: np.ndarray, near: int = 8) -> dict[str, float]:
    """Mean cosine of tokens at most `near` apart, and of tokens further apart, over all pairs.

    The far sum is the sum over all pairs (from the squared norm of the total) minus the near sum.
    """
    units = as_float32(unit)
    tokens = len(unit)
    offsets = range(1, min(near, tokens - 1) + 1)
    close = sum(float(np.einsum("td,td->", units[offset:], units[:-offset])) for offset in offsets)
    total = units.sum(axis=0, dtype=np.float64)
    itself = float(np.einsum("td,td->", units, units))
    every = (float(total @ total) - itself) / 2
    pairs_near = sum(tokens - offset for offset in offsets)
    pairs_far = tokens * (tokens - 1) // 2 - pairs_near
    return {
        "near": close / pairs_near if pairs_near else float("nan"),
        "far": (every - close) / pairs_far if pairs_far else float("nan"),
    }


def thumbnail(unit: np.ndarray, size: int = 48) -> np.ndarray:
    """(size, size) float32 overview of the whole map by block means."""
    whole = (0, len(unit))
    return tile(unit, whole, whole, size, "mean").values


def similarity_map(
    frame: pd.DataFrame,
    texts: list[str],
    theme: Theme = "light",
    *,
    what: str = "keys",
    mode: str = "mean",
    sets: pd.DataFrame | None = None,
) -> go.Figure:
    """A window of the map (`Tile.frame()`), with the `outlines` of merge sets if given."""
    rows = token_labels(frame.index, texts)
    columns = token_labels(frame.columns, texts)
    heat = go.Heatmap(
        z=frame.to_numpy(np.float32),
        x=columns,
        y=rows,
        zmin=-1,
        zmax=1,
        colorscale=DIVERGING[theme],
        colorbar=colour_bar(f"cosine of {what} ({mode})", theme),
        hovertemplate="%{y}<br>%{x}<br>cosine %{z:.3f}<extra></extra>",
    )
    figure = go.Figure(heat)
    if sets is not None and len(sets):
        # Merge sets as rectangles, one path: on a category axis only shapes can lie between labels.
        colour = pick(STATE_COLOURS["pivot"], theme)
        names = ["start", "stop", "pivot_start", "pivot_stop"]
        cells = np.searchsorted(frame.index.to_numpy(), sets[names].to_numpy(), side="right").clip(1) - 1
        cells[:, 1] = np.maximum(cells[:, 1], cells[:, 0] + 1)
        cells[:, 3] = np.maximum(cells[:, 3], cells[:, 2] + 1)
        corners = {tuple(row) for row in cells.tolist()} | {(c, d, a, b) for a, b, c, d in cells.tolist()}
        path = "".join(
            f"M{a - 0.5},{c - 0.5}L{b - 0.5},{c - 0.5}L{b - 0.5},{d - 0.5}L{a - 0.5},{d - 0.5}Z"
            for a, b, c, d in sorted(corners)
        )
        figure.add_shape(type="path", path=path, line={"color": colour, "width": 1.4})
        marker = {"symbol": "square-open", "size": 12, "color": colour, "line": {"width": 1.5}}
        name = "merge set: these tokens share a slot"
        figure.add_scatter(x=[None], y=[None], mode="markers", name=name, marker=marker, hoverinfo="skip")
    title = f"Similarity of {what}" + ("" if mode == "raw" else f" ({mode} of each block)")
    finish(figure, title=title, x="token (position and text)", y="token (position and text)", theme=theme, height=620)
    # Cells stay square at any width.
    square = {"showgrid": False, "constrain": "domain"}
    figure.update_yaxes(autorange="reversed", scaleanchor="x", constraintoward="top", **square, **token_ticks(rows))
    return figure.update_xaxes(tickangle=-40, constraintoward="left", **square, **token_ticks(columns))


@view("similarity", title="Similarity of a head", needs="full", page="attention")
def similarity_of_head(run: Run, layer: int, head: int, what: str = "keys") -> pd.DataFrame:
    unit = unit_vectors(run, what, layer, head)
    whole = (0, len(unit))
    return tile(unit, whole, whole, MAX_CELLS).frame()


@similarity_of_head.figure
def draw_similarity_of_head(
    frame: pd.DataFrame, theme: Theme, run: Run, layer: int, head: int, what: str = "keys"
) -> go.Figure:
    lineage, _, texts = head_history(run, layer, head)
    cell = int(np.diff(frame.index[:2])[0]) if len(frame) > 1 else 1
    sets = merge_sets(lineage, int(lineage.steps[-1])) if len(lineage.steps) else None
    drawn = None if sets is None else outlines(sets, (0, lineage.tokens), cell).head(MOST_OUTLINES)
    return similarity_map(frame, texts, theme, what=what, mode="raw" if cell == 1 else "mean", sets=drawn)


@similarity_of_head.caption
def describe_similarity_of_head(frame: pd.DataFrame) -> str:
    return caption_similarity_map(frame)


def caption_similarity_map(frame: pd.DataFrame, sets: int = 0, every: int = 0) -> str:
    """How much alike two tokens are on average; `sets` of `every` merge sets in the window are outlined."""
    outlined = shown_of(sets, every, "merge set", "the largest; zoom in to see smaller ones")
    text = f"On average, two tokens here are {alike(float(np.nanmean(frame.to_numpy(float))))}."
    return f"{text}{outlined.replace('Showing', 'Outlined:')}"


@view("similarity_band", title="Neighbours along the text", needs="full", page="attention")
def band_of_head(run: Run, layer: int, head: int, what: str = "keys") -> pd.DataFrame:
    return diagonal_band(unit_vectors(run, what, layer, head))


@band_of_head.figure
def similarity_band(
    frame: pd.DataFrame, theme: Theme, run: Run, layer: int, head: int, what: str = "keys"
) -> go.Figure:
    """Cosine of each token with earlier ones by distance, from `diagonal_band`."""
    labels = token_labels(frame.columns, head_history(run, layer, head)[2])
    heat = go.Heatmap(
        z=frame.to_numpy(np.float32),
        x=labels,
        y=frame.index.to_numpy(),
        zmin=-1,
        zmax=1,
        colorscale=DIVERGING[theme],
        colorbar=colour_bar(f"cosine of {what}", theme),
        hovertemplate="%{x}<br>%{y} before it<br>cosine %{z:.3f}<extra></extra>",
    )
    title = f"Neighbouring {what} along the text"
    x = "token (position and text)"
    figure = finish(go.Figure(heat), title=title, x=x, y="distance (tokens)", theme=theme, legend=False)
    return figure.update_xaxes(showgrid=False, tickangle=-40, **token_ticks(labels, 6)).update_yaxes(showgrid=False)


def _neighbours(close: float, far: float) -> str:
    if not are_known(close, far):
        return NOT_RECORDED
    if abs(close - far) <= FAR:
        return "Neighbouring tokens are about as much alike as distant ones."
    return f"Neighbouring tokens are {'more' if close > far else 'less'} alike than distant ones."


@band_of_head.caption
def caption_similarity_band(frame: pd.DataFrame) -> str:
    """Whether neighbours are more alike."""
    return _neighbours(float(np.nanmean(frame.iloc[:1])), float(np.nanmean(frame.iloc[len(frame) // 2 :])))


@keep_by_run(2)
def thumbnails_of(
    run: Run, what: str = "keys", layers: tuple[int, ...] | None = None
) -> tuple[dict[Place, np.ndarray], pd.DataFrame]:
    """A thumbnail of each head's map, and a row a head: layer, head, mean, near and far cosine (`locality`)."""
    small = {}
    rows = []
    for layer in recorded_layers(run) if layers is None else layers:
        for head in range(run.record.model.num_key_value_heads):
            try:
                unit = unit_vectors(run, what, layer, head)
            except UserError:
                continue
            small[layer, head] = thumbnail(unit)
            mean = float(small[layer, head].mean())
            rows.append({"layer": layer, "head": head, "mean": mean, **locality(unit)})
    return small, pd.DataFrame(rows, columns=["layer", "head", "mean", "near", "far"])


@view("similarity_by_head", title="Similarity in each head", needs="full", page="attention")
def similarity_of_heads(run: Run, what: str = "keys", layers: tuple[int, ...] | None = None) -> pd.DataFrame:
    return thumbnails_of(run, what, layers)[1]


@similarity_of_heads.figure
def draw_similarity_of_heads(
    frame: pd.DataFrame,
    theme: Theme,
    run: Run,
    what: str = "keys",
    layers: tuple[int, ...] | None = None,
    focus: Place | None = None,
) -> go.Figure:
    small = thumbnails_of(run, what, layers)[0]
    shown = drawn_layers(frame, focus)
    drawn = {place: one for place, one in small.items() if place[0] in shown}
    return similarity_wall(drawn, theme, what, every=len(small), focus=focus)


@similarity_of_heads.caption
def describe_similarity_of_heads(frame: pd.DataFrame, focus: Place | None = None) -> str:
    return caption_similarity_wall(frame, drawn_layers(frame, focus))


def drawn_layers(frame: pd.DataFrame, focus: Place | None) -> list[int]:
    """The layers whose maps are drawn: all, or `MOST_LAYERS` spread evenly, with those of the heads most and least
    alike and that of `focus`."""
    layers = sorted(frame["layer"].unique().tolist())
    if len(layers) <= MOST_LAYERS:
        return layers
    places = np.linspace(0, len(layers) - 1, MOST_LAYERS).round().astype(int)
    mean = frame["mean"].fillna(0)
    also = {int(frame.loc[row, "layer"]) for row in (mean.idxmax(), mean.idxmin())}
    also |= set() if focus is None else {focus[0]} & set(layers)
    return sorted({layers[place] for place in places} | also)


def similarity_wall(
    thumbnails: dict[tuple[int, int], np.ndarray],
    theme: Theme = "light",
    what: str = "keys",
    *,
    every: int = 0,
    focus: Place | None = None,
) -> go.Figure:
    """Thumbnails of the whole text per layer (across) and KV head (down); the head `focus` is outlined.

    `every` is the number of heads if only some are drawn. All maps form one heat map with separating lines, as one
    plotly axis per map takes seconds for a hundred heads.
    """
    layers = sorted({layer for layer, _ in thumbnails})
    heads = sorted({head for _, head in thumbnails})
    size = min(len(next(iter(thumbnails.values()))), MAX_WALL_SIDE // max(len(heads), len(layers)))
    # Hundredths in one byte per cell keep a wall of hundreds of heads small.
    cells = np.zeros((size * len(heads), size * len(layers)), np.int8)
    for (layer, head), values in thumbnails.items():
        row = size * heads.index(head)
        column = size * layers.index(layer)
        edges = block_edges(0, len(values), size)
        pooled = block_means(block_means(values, edges).T, edges).T
        cells[row : row + size, column : column + size] = np.clip(np.rint(100 * pooled), -100, 100)
    bar = colour_bar_below("mean cosine", theme, tickvals=[-100, 0, 100], ticktext=["-1", "0", "1"])
    scale = {"zmin": -100, "zmax": 100, "colorscale": DIVERGING[theme], "colorbar": bar}
    # Maps span rank - 0.5 to rank + 0.5, so that a coordinate rounds to the rank of its layer or head.
    places = {"x0": -0.5 + 0.5 / size, "dx": 1 / size, "y0": -0.5 + 0.5 / size, "dy": 1 / size}
    figure = go.Figure(go.Heatmap(z=cells, **places, **scale, hovertemplate="mean cosine %{z} / 100<extra></extra>"))
    side = max(SMALLEST_MAP, min(LARGEST_MAP, WIDEST_WALL // len(layers), TALLEST_WALL // len(heads)))
    which = f"{len(thumbnails):,} of {every:,} heads" if every > len(thumbnails) else "each head"
    title = f"Similarity of {what} in {which} (each map is the whole text)"
    height = 200 + side * len(heads)
    finish(figure, title=title, x="layer", y="KV head", theme=theme, height=height, legend=False)
    figure.update_layout(margin_b=120, meta={**figure.layout.meta, "ranks": {"x": layers, "y": heads}})
    # Maps stay square at any page width.
    look = {"showgrid": False, "zeroline": False, "constrain": "domain"}
    figure.update_xaxes(tickvals=list(range(len(layers))), ticktext=layers, range=[-0.5, len(layers) - 0.5], **look)
    figure.update_yaxes(tickvals=list(range(len(heads))), ticktext=heads, range=[len(heads) - 0.5, -0.5], **look)
    figure.update_xaxes(constraintoward="left").update_yaxes(scaleanchor="x", constraintoward="top")
    between = "".join(f"M{place - 0.5},-0.5V{len(heads) - 0.5}" for place in range(1, len(layers)))
    between += "".join(f"M-0.5,{place - 0.5}H{len(layers) - 0.5}" for place in range(1, len(heads)))
    figure.add_shape(type="path", path=between or "M0,0", line={"color": SURFACES[theme], "width": 4})
    return outline(figure, layers, heads, focus, theme)


def caption_similarity_wall(frame: pd.DataFrame, layers: Sequence[int] | None = None, every: int = 0) -> str:
    """Whether neighbours are more alike, over heads; `layers` are those drawn (default: all).

    `every` is the number of heads if `frame` has fewer.
    """
    which = f"those of layers {', '.join(map(str, layers))}" if layers is not None else ""
    shown = len(frame) if layers is None else int(frame["layer"].isin(layers).sum())
    sentence = _neighbours(float(frame["near"].mean()), float(frame["far"].mean()))
    sampled = f" {len(frame):,} of {every:,} heads were read." if every > len(frame) else ""
    return f"{sentence}{sampled}{shown_of(shown, len(frame), 'head', which)}"


@view("neighbours", title="Similarity around a token", needs="full", page="attention")
def neighbours_of_token(run: Run, layer: int, head: int, token: int, what: str = "keys") -> pd.DataFrame:
    """`neighbour_profile` with the `text` of each token."""
    frame = neighbour_profile(unit_vectors(run, what, layer, head), token)
    texts = head_history(run, layer, head)[2]
    return frame.assign(text=[texts[place] if place < len(texts) else "" for place in frame["position"]])


@neighbours_of_token.figure
def neighbours(frame: pd.DataFrame, theme: Theme = "light", token: int = 0, what: str = "keys") -> go.Figure:
    """Cosine of one token with the tokens around it, from `neighbours_of_token`."""
    figure = go.Figure().add_scatter(
        x=frame["offset"],
        y=frame["similarity"],
        mode="lines",
        line={"color": pick(HUES["blue"], theme), "width": 1.6},
        customdata=frame["text"].map(visible),
        hovertemplate="%{customdata}, %{x:+d}<br>cosine %{y:.3f}<extra></extra>",
    )
    title = f"{what.capitalize()} around token {token}"
    return finish(figure, title=title, x="distance (tokens)", y="cosine", theme=theme, height=300, legend=False)


@neighbours_of_token.caption
def caption_neighbours(frame: pd.DataFrame) -> str:
    """How far away the most similar token is."""
    others = frame[(frame["offset"] != 0) & frame["similarity"].notna()]
    if others.empty:
        return "The text has no other token."
    values = others["similarity"]
    if len(others) > 1 and near(float(values.min()), float(values.max())):
        return "All tokens around are equally similar to it."
    away = abs(int(others.loc[values.idxmax(), "offset"]))
    return f"The token most similar to it is {'right beside it' if away == 1 else f'{away:,} tokens away'}."


def verdict(frame: pd.DataFrame, what: str, place: Place) -> str:
    """Whether neighbours of a head are alike enough to be merged, from `diagonal_band`."""
    close = float(np.nanmean(frame.iloc[:1]))
    far = float(np.nanmean(frame.iloc[len(frame) // 2 :]))
    if not are_known(close, far):
        return NOT_RECORDED
    fit = (
        "merging neighbours loses less than merging distant tokens"
        if close > far + FAR
        else "neighbours are no better to merge than distant tokens"
    )
    return (
        f"In layer {place[0]}, head {place[1]}, neighbouring {what} have a cosine of {number(close, 2)} and distant "
        f"ones of {number(far, 2)}: {fit}."
    )
