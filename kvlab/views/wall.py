"""The cache wall as a picture: layers across, KV heads down, each tile the text with what has become of its tokens."""

import base64
import io
import math
from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from PIL import Image

from kvlab.core.errors import UserError
from kvlab.trace.reader import Run
from kvlab.views.base.head_map import channels
from kvlab.views.base.palette import HUES, MASS_COLOURS, STATE_COLOURS, SURFACES, WALL_FATES, Theme, pick
from kvlab.views.base.template import INK, QUIET, along_text, finish, round_distance
from kvlab.views.base.view import view
from kvlab.views.base.words import part, sentence, visible
from kvlab.views.frames.facts import facts_in
from kvlab.views.frames.lineage import head_history, keep_by_run, token_texts
from kvlab.views.frames.wall import Fate, Wall, wall_of
from kvlab.views.timeline import masses_at

Looks = tuple[list[str], list[str], list[str]]  # colours, names and meanings by code
Reads = tuple[np.ndarray, np.ndarray]  # of `reads_at`
MOST_READ = 8  # slots of each head
# pixels of all tiles: width, and bounds of the height
WIDTH = 1_080
LEAST = 300
MOST = 560
CELL_ASPECT = 2.5  # as in `kvlab/browser/src/wall/geometry.js`
HELD = 3  # codes below this one are held; they are drawn by the square root of their share, as in the browser
# pixels between labels
LABEL_WIDTH = 24
LABEL_HEIGHT = 14


@view("wall", title="The cache: every layer and head", needs="full", page="cache")
def wall(run: Run, step: int | None = None) -> pd.DataFrame:
    """One row per layer and head: share of the tokens read by the step (default: the last) in each fate, 1 in all."""
    held = open_wall(run)
    step = int(held.steps[-1]) if step is None else step
    fates = held.fates(step)
    layer = np.repeat(held.layers, held.heads)
    head = np.tile(np.arange(held.heads), len(held.layers))
    shares = {fate.name.lower(): (fates == fate).mean(1) for fate in Fate}
    return pd.DataFrame({"layer": layer, "head": head, "step": step, **shares})


@wall.figure
def draw_wall(frame: pd.DataFrame, theme: Theme, run: Run, step: int | None = None) -> go.Figure:
    """The fate of every token in every head."""
    fates = open_wall(run)
    step = int(fates.steps[-1]) if step is None else step
    colours, names, _ = fate_looks(theme)
    title = f"{run.record.label}: the cache after {'the prompt' if step == 0 else f'step {step}'}"
    return wall_picture(fates.fates(step), list(fates.layers), fates.heads, colours, names, title, theme)


@wall.caption
def describe_wall(frame: pd.DataFrame) -> str:
    held = 1 - float(frame["dropped"].mean())
    together = ", some of it merged" if float(frame["absorbed"].mean()) > 0 and held > 0 else ""
    step = int(frame["step"].iloc[0])
    when = "the prompt" if step == 0 else f"step {step}"
    return f"After {when}, over all heads, {part(held)} of the text is still held{together}."


@wall.live("wall")
def live_wall(run: Run, theme: Theme, step: int | None = None) -> dict[str, Any]:
    """The wall of the browser, for all steps."""
    fates = open_wall(run)
    step = int(fates.steps[-1]) if step is None else step
    facts = facts_in(run)
    content = wall_content(fates, step, str(run.path), fate_looks(theme), theme, facts=facts, reads=reads_at(run, step))
    return {**content, "shared": {"texts": token_texts(run.tokens, fates.tokens), "wall": wall_vectors(fates)}}


open_wall = keep_by_run(1)(wall_of)


def fate_looks(theme: Theme) -> Looks:
    """(colours, names, meanings) of the codes of a wall: fates, then not yet read."""
    texts = [text.split(": ") for _, text in WALL_FATES.values()]
    colours = [pick(STATE_COLOURS[state], theme) for state, _ in WALL_FATES.values()]
    return colours, [parts[0] for parts in texts], [parts[-1] for parts in texts]


def wall_vectors(wall: Wall) -> dict[str, np.ndarray]:
    """The wall as the browser gets it, once for all steps: fates in two bits, changes as lists."""
    steps = np.arange(len(wall.steps))
    return {
        "first": packed_fates(wall.first),
        "readBy": np.searchsorted(wall.birth, steps, side="right").astype(np.uint32),
        "changesBy": np.searchsorted(wall.change_step, steps, side="right").astype(np.uint32),
        "changeCells": wall.change_cell,
        "changeFates": wall.change_fate,
    }


def packed_fates(fates: np.ndarray) -> np.ndarray:
    """Four fates to a byte, lowest bits first; the last byte is filled with zeros."""
    flat = fates.reshape(-1)
    fours = np.pad(flat, (0, -len(flat) % 4)).reshape(-1, 4)
    return fours[:, 0] | fours[:, 1] << 2 | fours[:, 2] << 4 | fours[:, 3] << 6


def wall_content(
    wall: Wall,
    step: int,
    identity: str,
    looks: Looks,
    theme: Theme,
    *,
    why: str = "",
    focus: tuple[int, int] | None = None,
    token: int | None = None,
    facts: Sequence[tuple[int, int]] = (),
    reads: Reads | None = None,
) -> dict[str, Any]:
    """What the browser's wall shows at a step, beside `wall_vectors` and the tokens' texts.

    `why` is the reason for a default step, `focus` a layer and KV head, `facts` are first and last positions, `reads`
    the slots read most at `step`.
    """
    positions, masses = (np.zeros((0, 1), np.int32), np.zeros((0, 1), np.float32)) if reads is None else reads
    colours, names, meanings = looks
    return {
        "identity": identity,
        "layers": list(wall.layers),
        "heads": wall.heads,
        "steps": wall.steps.tolist(),
        "eventSteps": np.unique(wall.steps[wall.change_step]).tolist(),
        "step": step,
        "why": why,
        "focus": None if focus is None else list(focus),
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


def wall_picture(
    codes: np.ndarray, layers: list[int], heads: int, colours: list[str], names: list[str], title: str, theme: Theme
) -> go.Figure:
    """Draw `codes` (layers * heads, tokens) uint8, indices into `colours` and `names`.

    A pixel that covers several tokens mixes their colours.
    """
    width = max(2, WIDTH // len(layers))
    height = max(2, max(LEAST, min(MOST, heads * width)) // heads)
    gap = 2 if min(width, height) > 12 else 1
    tiles = _tiles(codes, colours, height - gap, width - gap, theme)
    image = np.empty((heads * height, len(layers) * width, 3), np.uint8)
    image[:] = channels(SURFACES[theme])
    for index, tile in enumerate(tiles):
        layer, head = divmod(index, heads)
        image[head * height : head * height + height - gap, layer * width : layer * width + width - gap] = tile
    # As a PNG it takes a tenth of the size of its numbers.
    file = io.BytesIO()
    Image.fromarray(image).save(file, "PNG", optimize=True)
    source = f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
    figure = go.Figure(go.Image(source=source, hovertemplate="<extra></extra>"))
    for code, name in enumerate(names):
        if (codes == code).any():
            square = {"color": colours[code], "size": 12, "symbol": "square"}
            figure.add_trace(go.Scatter(x=[None], y=[None], mode="markers", marker=square, name=name, hoverinfo="skip"))
    finish(figure, title=title, x="layer", y="KV head", theme=theme, height=heads * height + 150)
    across = round_distance(LABEL_WIDTH / width)
    down = round_distance(LABEL_HEIGHT / height)
    places = np.arange(len(layers))[::across]
    figure.update_xaxes(
        tickvals=places * width + width / 2,
        ticktext=[str(layers[place]) for place in places],
        showgrid=False,
        zeroline=False,
        constrain="domain",
        range=[0, image.shape[1]],
    )
    rows = np.arange(heads)[::down]
    return figure.update_yaxes(
        tickvals=rows * height + height / 2,
        ticktext=[str(row) for row in rows],
        showgrid=False,
        zeroline=False,
        constrain="domain",
        scaleanchor="x",
        range=[image.shape[0], 0],
    )


def _tiles(codes: np.ndarray, colours: list[str], height: int, width: int, theme: Theme) -> np.ndarray:
    """(heads, height, width, 3) uint8: the tokens of each head in lines, resized to the tile."""
    heads, tokens = codes.shape
    per_line = max(1, round(math.sqrt(tokens * width / (height * CELL_ASPECT))))
    lines = -(-tokens // per_line)
    empty = len(colours)
    cells = np.full((heads, lines * per_line), empty, np.uint8)
    cells[:, :tokens] = codes
    cells = cells.reshape(heads, lines, per_line)
    # The cells of each code under every pixel, at least one cell a pixel: (heads, height, width, codes).
    of_codes = []
    for code in range(empty):
        mask = cells == code
        for axis, size in ((1, height), (2, width)):
            starts = np.arange(size) * mask.shape[axis] // size
            if size >= mask.shape[axis]:
                mask = np.take(mask, starts, axis)
            else:
                mask = np.add.reduceat(mask, starts, axis, dtype=np.int32)
        of_codes.append(mask.astype(np.float32))
    counts = np.stack(of_codes, -1)
    every = counts.sum(-1)
    held = counts[..., :HELD].sum(-1)
    strength = np.sqrt(held / np.maximum(every, 1))
    palette = np.array([channels(colour) for colour in colours], np.float32)
    of_held = counts[..., :HELD] @ palette[:HELD] / np.maximum(held, 1)[..., None]
    of_rest = counts[..., HELD:] @ palette[HELD:] / np.maximum(every - held, 1)[..., None]
    image = strength[..., None] * of_held + (1 - strength)[..., None] * of_rest
    return np.where(every[..., None] > 0, image, channels(SURFACES[theme])).round().astype(np.uint8)


@keep_by_run(64)
def reads_at(run: Run, step: int) -> Reads | None:
    """Positions (heads, `MOST_READ`) int32 and attention (heads, `MOST_READ`) float32 of the slots read most at a step.

    Heads are those of the wall, most first; a head without a recorded row has positions -1. None if attention was not
    recorded at this step.
    """
    fates = open_wall(run)
    row, remainder = divmod(int(np.searchsorted(fates.steps, step)), run.attention_every)
    if remainder:
        return None
    positions = np.full((len(fates.layers) * fates.heads, MOST_READ), -1, np.int32)
    masses = np.zeros(positions.shape, np.float32)
    for index, (layer, head) in enumerate(product(fates.layers, range(fates.heads))):
        try:
            found = run.attention_row(layer, head, row)
        except UserError:  # this layer or head was not recorded
            continue
        if found is None:
            break
        mass = found[1].astype(np.float32)
        most = np.argsort(mass)[::-1][:MOST_READ]
        most = most[mass[most] > 0]
        positions[index, : len(most)] = most
        masses[index, : len(most)] = mass[most]
    return None if (positions < 0).all() else (positions, masses)


FLOOR = 1e-6
LOOKS = {"true": ("with nothing dropped", "regret"), "slot": ("with this cache", "kept")}


@view("attention_along_text", title="Attention of this head along the text", needs="full", page="cache")
def attention_at_step(run: Run, layer: int, head: int, step: int = 0) -> pd.DataFrame:
    """Columns position, text, true (mass with nothing dropped) and slot (mass of this cache's slot), of tokens read.

    Raises:
        UserError: the attention of this step was not recorded.
    """
    lineage, _, texts = head_history(run, layer, head)
    masses = masses_at(run, lineage, layer, head, step)
    if masses is None:
        raise UserError(f"The attention of step {step} was not recorded: choose a step of the recorded ones.")
    read = int((lineage.birth <= step).sum())
    true, slot = (np.asarray(mass[:read], np.float32) for mass in masses)
    return pd.DataFrame({"position": np.arange(read), "text": texts[:read], "true": true, "slot": slot})


@attention_at_step.figure
def attention_along_text(frame: pd.DataFrame, theme: Theme, layer: int, head: int) -> go.Figure:
    """Attention on each token with nothing dropped, and on each slot of this cache."""
    figure = go.Figure()
    words = [visible(text) for text in frame["text"]]
    for column, (name, look) in LOOKS.items():
        drawn = frame[column].where(frame[column] > 0).clip(lower=FLOOR)
        figure.add_scatter(
            x=frame["position"],
            y=drawn,
            name=name,
            mode="markers",
            customdata=words,
            marker={
                "color": pick(MASS_COLOURS[look], theme),
                "size": 5 if column == "true" else 7,
                "symbol": "circle" if column == "true" else "diamond-open",
            },
            hovertemplate=f"token %{{x}} %{{customdata}}: %{{y:.3%}} {name}<extra></extra>",
        )
    title = "Attention of this head along the text"
    finish(figure, title=title, x="token (position)", y="share of attention (log)", theme=theme, height=340)
    figure.update_yaxes(type="log", tickformat=".6~%").update_layout(showlegend=True)
    return along_text(figure, place=f"{layer}/{head}")


@attention_at_step.caption
def caption_attention_along_text(frame: pd.DataFrame) -> str:
    """What the cache still holds of the attention with nothing dropped, and of the token that would be read most."""
    here = frame["slot"] > 0
    held = float(frame["true"].where(here, 0).sum())
    true = frame["true"]
    whole = float(true.sum())
    if whole <= 0:
        return "The attention with nothing dropped was not recorded here."
    among = "" if here[true.idxmax()] else "; the token that would get most is not among them"
    return sentence(
        f"with nothing dropped, {part(held / whole)} of the attention is on tokens that are read here{among}"
    )
