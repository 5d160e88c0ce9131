"""Held and not read: what the steps of one head with a sparse read left out, and the attention that they missed."""

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from kvlab.trace.reader import Run
from kvlab.views.base.palette import HUES, LOSS, SURFACES, Theme, mix, pick
from kvlab.views.base.template import along_text, colour_bar, finish, token_ticks
from kvlab.views.base.view import view
from kvlab.views.base.words import part, sentence, token_labels
from kvlab.views.frames.autopsy import read_events, token_links
from kvlab.views.frames.float16 import block_edges
from kvlab.views.frames.lineage import head_history

MOST_BLOCKS = 128
MOST_STEPS = 512
BLOCK = 16
COLUMNS = ["step", "first", "last", "held", "read", "true", "missed"]
Unread = np.ndarray  # (steps, tokens) bool: held and not read
LEAST = 2e-3  # missed attention of a block that is coloured
SHADE = 0.62  # of the background in the colour of a block that was read


def unread_tokens(run: Run, table: pd.DataFrame) -> Unread | None:
    """(steps, rows of `table`) bool: the slot that held the token was not read by the step.

    `table` has columns layer, head and token, as from `autopsy.autopsy`. Heads and layers whose choices were not
    recorded count as read. None for a run that recorded none. A step reads before it decides.
    """
    layers = run.sparse_layers
    if not layers:
        return None
    positions = np.unique(table["token"])
    links, *_ = token_links(run, read_events(run), positions)
    steps = np.unique(run.select("steps", columns=["step"])["step"])
    unread = np.zeros((len(steps), len(table)), bool)
    recorded = run.record.recording.of_heads(run.record.model.num_key_value_heads)
    for (layer, head), rows in table.groupby(["layer", "head"]).indices.items():
        if layer not in layers or head not in recorded:
            continue
        read = run.slots_read(int(layer), int(head))
        token = table["token"].to_numpy(np.int64)[rows]
        place = np.full(len(rows), layer, np.int64), np.full(len(rows), head, np.int64)
        for number, step in enumerate(steps[: len(read)].tolist()):
            owner, _ = links.end(*place, token, step - 1)
            unread[number, rows] = (owner >= 0) & ~read[number, owner]
    return unread


@view("steps_read", title="What each step read, and what it missed", needs="full", page="cache")
def steps_read(run: Run, layer: int, head: int) -> pd.DataFrame:
    """One row per recorded step and block of tokens: what one head read of it, and the attention that it missed.

    Columns step, first, last (tokens of the block), held and read (slots named by its tokens), true (attention to
    its tokens with nothing dropped) and missed (that to tokens whose slot was held and not read). Blocks are of
    `BLOCK` tokens, or as many as leave `MOST_BLOCKS`; steps are thinned to `MOST_STEPS`. The prompt's step, which reads
    everything, is left out. Empty for a run that reads everything.

    Raises:
        UserError: the run recorded no choices or no attention rows of this head.
    """
    if not run.sparse_layers:
        return pd.DataFrame(columns=COLUMNS)
    lineage = head_history(run, layer, head)[0]
    read, (true, _) = run.slots_read(layer, head), run.attention(layer, head, thinned=True)
    rows = np.arange(1, min(len(lineage.steps), len(true) * run.attention_every))
    rows = rows[rows % run.attention_every == 0]
    if len(rows) > MOST_STEPS:
        rows = rows[np.unique(np.linspace(0, len(rows) - 1, MOST_STEPS).round().astype(int))]
    edges = block_edges(0, lineage.tokens, min(MOST_BLOCKS, -(-lineage.tokens // BLOCK)))
    tokens = lineage.tokens
    parts = []
    for row in rows:
        # The slots are those before the step's decision, with the step's own token.
        step = int(lineage.steps[row])
        born = lineage.birth == step
        owner = np.where(born, np.arange(tokens), lineage.owners(step - 1))
        held = lineage.alive(step - 1) | born
        read_here = read[row, :tokens]
        true_here = true[row // run.attention_every, :tokens].astype(np.float64)
        missed = true_here * ((owner >= 0) & ~read_here[owner.clip(0)])
        sums = {"held": held, "read": held & read_here, "true": true_here, "missed": missed}
        table = {name: np.add.reduceat(values.astype(np.float64), edges[:-1]) for name, values in sums.items()}
        parts.append(pd.DataFrame({"step": step, "first": edges[:-1], "last": edges[1:] - 1, **table}))
    return pd.concat(parts, ignore_index=True)[COLUMNS] if parts else pd.DataFrame(columns=COLUMNS)


@steps_read.figure
def reading_map(frame: pd.DataFrame, theme: Theme, run: Run, layer: int, head: int) -> go.Figure:
    """Blocks of tokens (rows) by step (columns), from `steps_read`.

    Shaded by the share of a block's slots that the step read, under a colour for the attention that it missed there.
    """
    held = frame["held"].where(frame["held"] > 0)
    table = frame.assign(share=frame["read"] / held)
    share, missed = (table.pivot(index="first", columns="step", values=name) for name in ("share", "missed"))
    labels = token_labels(share.index, head_history(run, layer, head)[2])
    steps = share.columns.to_numpy()
    shade = mix(pick(HUES["blue"], theme), SURFACES[theme], SHADE)
    read = go.Heatmap(
        z=share.to_numpy(np.float32),
        x=steps,
        y=labels,
        zmin=0,
        zmax=1,
        showscale=False,
        colorscale=[(0.0, SURFACES[theme]), (1.0, shade)],
        hovertemplate="step %{x}<br>from token %{y}<br>%{z:.0%} of its slots read<extra></extra>",
    )
    lost = missed.where(missed >= LEAST).to_numpy(np.float32)
    top = float(np.nanmax(lost)) if np.isfinite(lost).any() else LEAST
    loss = go.Heatmap(
        z=lost,
        x=steps,
        y=labels,
        zmin=0,
        zmax=top,
        colorscale=LOSS[theme],
        colorbar=colour_bar("attention not read", theme, tickformat=".1~%"),
        hovertemplate="step %{x}<br>from token %{y}<br>%{z:.1%} of all attention not read<extra></extra>",
    )
    figure = go.Figure([read, loss])
    marker = {"size": 11, "symbol": "square", "color": shade}
    figure.add_scatter(x=[None], y=[None], mode="markers", name="read", marker=marker, hoverinfo="skip")
    title = "What each step read, and what it missed"
    y = "block from token"
    finish(figure, title=title, x="step", y=y, theme=theme, height=480)
    figure.update_yaxes(autorange="reversed", showgrid=False, **token_ticks(labels, 16))
    return along_text(figure.update_xaxes(showgrid=False), "y")


@steps_read.caption
def caption_reading_map(frame: pd.DataFrame) -> str:
    """How much of the slots this head's steps read, and how much of the attention they miss."""
    if frame.empty:
        return "Every step of this head reads all that it holds."
    steps = frame.groupby("step")[["held", "read", "missed"]].sum(min_count=1)
    read = min(1.0, float((steps["read"] / steps["held"].where(steps["held"] > 0)).mean()))
    missed = part(float(steps["missed"].mean()))
    return sentence(f"a step reads {part(read)} of the slots, and misses {missed} of the attention")
