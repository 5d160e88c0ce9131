"""Held and not read: the tokens whose slots a step with a reading left out, and the attention that it missed."""

from __future__ import annotations

import numpy as np
import pandas as pd

from kvlab.trace.reader import Run
from kvlab.views.frames.autopsy import FATES, UNREAD, read_events, token_links
from kvlab.views.frames.float16 import block_edges
from kvlab.views.frames.lineage import Lineage

MOST_BLOCKS = 128
MOST_STEPS = 512
BLOCK = 16
Unread = np.ndarray  # (steps, tokens) bool: held and not read


def unread_tokens(run: Run, table: pd.DataFrame) -> Unread | None:
    """(steps, rows of `table`) bool: the slot that held the token was not read by the step.

    `table` has columns layer, head and token, as from `autopsy.autopsy`. Heads and layers whose choices were not
    recorded count as read. None for a run that recorded none. A step reads before it decides.
    """
    layers = run.reading_layers
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
            owner = links.owner(*place, token, step - 1)
            unread[number, rows] = (owner >= 0) & ~read[number, owner]
    return unread


def with_unread(table: pd.DataFrame, unread: np.ndarray) -> pd.DataFrame:
    """`table` of `autopsy.autopsy` with the fate `UNREAD` where the slot holding a token was not read (rows,)."""
    held = table["fate"] != FATES[2]
    return table.assign(fate=np.where(held & unread, UNREAD, table["fate"]))


def reading_map(run: Run, lineage: Lineage, layer: int, head: int) -> pd.DataFrame:
    """One row per recorded step and block of tokens: what one head read of it, and the attention that it missed.

    Columns step, first, last (tokens of the block), held and read (slots named by its tokens), true (the full cache's
    attention to its tokens) and missed (that to tokens whose slot was held and not read). Blocks are of `BLOCK` tokens,
    or as many as leave `MOST_BLOCKS`; steps are thinned to `MOST_STEPS`. The prompt's step, which reads everything, is
    left out.

    Raises:
        UserError: the run recorded no choices or no attention rows of this head.
    """
    columns = ["step", "first", "last", "held", "read", "true", "missed"]
    read, (true, _) = run.slots_read(layer, head), run.attention(layer, head, thinned=True)
    rows = np.arange(1, min(len(lineage.steps), len(true) * run.attention_every))
    rows = rows[rows % run.attention_every == 0]
    if len(rows) > MOST_STEPS:
        rows = rows[np.unique(np.linspace(0, len(rows) - 1, MOST_STEPS).round().astype(int))]
    edges = block_edges(0, lineage.tokens, min(MOST_BLOCKS, -(-lineage.tokens // BLOCK)))
    parts = [
        _of_step(lineage, int(lineage.steps[row]), read[row], true[row // run.attention_every], edges) for row in rows
    ]
    return pd.concat(parts, ignore_index=True)[columns] if parts else pd.DataFrame(columns=columns)


def _of_step(lineage: Lineage, step: int, read: np.ndarray, true: np.ndarray, edges: np.ndarray) -> pd.DataFrame:
    """Rows of `reading_map` of one step; the slots are those before its decision, with the step's own token."""
    tokens = lineage.tokens
    born = lineage.birth == step
    owner = np.where(born, np.arange(tokens), lineage.owners(step - 1))
    there = owner >= 0
    own = lineage.alive(step - 1) | born
    read = read[:tokens]
    true = true[:tokens].astype(np.float64)
    missed = true * (there & ~read[owner.clip(0)])
    sums = {"held": own, "read": own & read, "true": true, "missed": missed}
    table = {name: np.add.reduceat(values.astype(np.float64), edges[:-1]) for name, values in sums.items()}
    return pd.DataFrame({"step": step, "first": edges[:-1], "last": edges[1:] - 1, **table})
