"""Fates of all tokens in all heads at every step, as a first picture and a list of changes: the data of the cache wall.

`Lineage` holds the history of one head; here all heads of a run are folded together and reduced to four fates of two
bits, so that a run of 1,024 heads and 32,768 tokens fits into a page.
"""

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import pandas as pd

from kvlab.core.errors import UserError
from kvlab.trace.reader import Run
from kvlab.views.frames.lineage import NEVER, resolve_roots

COLUMNS = ("step", "layer", "head", "source", "target", "value_weight")


class Fate(IntEnum):
    """What has become of a token in a head. `KEPT`: it has a slot of its own; `HOLDS`: its slot has absorbed others;
    `ABSORBED`: it is part of another token's slot; `DROPPED`: in no slot.
    """

    KEPT = 0
    HOLDS = 1
    ABSORBED = 2
    DROPPED = 3


@dataclass(frozen=True)
class Wall:
    """Fates of every token in every recorded head. A cell is head_index * tokens + position.

    Attributes:
        layers: recorded layers; head index i is KV head i % heads of layer `layers[i // heads]`.
        heads: KV heads of a layer.
        steps: (steps,) recorded steps, increasing.
        birth: (tokens,) int32 index into `steps` at which the token was read.
        first: (len(layers) * heads, tokens) uint8 `Fate` at that step.
        change_step: (changes,) int32 index into `steps`, increasing.
        change_cell: (changes,) uint32 the cell whose fate changes.
        change_fate: (changes,) uint8 its fate from then on.
    """

    layers: tuple[int, ...]
    heads: int
    steps: np.ndarray
    birth: np.ndarray
    first: np.ndarray
    change_step: np.ndarray
    change_cell: np.ndarray
    change_fate: np.ndarray

    @property
    def tokens(self) -> int:
        """Tokens read by the last step."""
        return len(self.birth)

    def fates(self, step: int) -> np.ndarray:
        """(heads of all layers, tokens read by then) uint8 `Fate` after `step`."""
        index = int(np.searchsorted(self.steps, step, side="right")) - 1
        fates = self.first.copy()
        until = int(np.searchsorted(self.change_step, index, side="right"))
        fates.reshape(-1)[self.change_cell[:until]] = self.change_fate[:until]  # of equal cells the last one counts
        return fates[:, : int((self.birth <= index).sum())]


def wall_of(run: Run) -> Wall:
    """The wall of a run of level full.

    If a slot was merged into several targets, the one with the largest value weight counts.

    Raises:
        UserError: the run recorded no events or no steps.
    """
    record = run.record
    if record.level != "full":
        raise UserError(f"{record.label} was recorded at level {record.level}, without events.")
    model = record.model
    layers = tuple(layer for layer in range(model.num_hidden_layers) if layer not in record.sliding_layers)
    heads = model.num_key_value_heads
    read = run.select("steps", layers[0], 0, columns=["step", "tokens_seen"]) if layers else pd.DataFrame()
    if read.empty:
        raise UserError(f"{record.label} has recorded no steps.")
    steps = read["step"].to_numpy(np.int32)
    tokens_seen = read["tokens_seen"].to_numpy(np.int64)
    tokens = int(tokens_seen.max())
    birth = np.searchsorted(tokens_seen, np.arange(tokens), side="right").astype(np.int32)
    events = run.select("events", columns=COLUMNS, ordered=False)
    # Steps at which each cell's slot first absorbed another, left, and lost its last slot.
    step, layer, head, source, target = (events[name].to_numpy() for name in COLUMNS[:5])
    row_of = np.full(max(layers) + 1, -1, np.int64)
    row_of[list(layers)] = np.arange(len(layers))
    known = (source >= 0) & (source < tokens) & (target < tokens) & (layer <= max(layers))
    known &= row_of[np.minimum(layer, max(layers))] >= 0
    if not known.all():
        step, layer, head, source, target = (column[known] for column in (step, layer, head, source, target))
    start = (row_of[layer] * heads + head) * tokens
    absorb, leave = (np.full(len(layers) * heads * tokens, NEVER, np.int32) for _ in range(2))
    leave[start + source] = step
    death = leave
    merged = np.flatnonzero(target >= 0)
    if len(merged):
        weight = events["value_weight"].to_numpy()[known][merged]
        merged = merged[np.argsort(weight, kind="stable")]  # the last write per source wins
        np.minimum.at(absorb, start[merged] + target[merged], step[merged])
        parent = np.arange(len(leave))
        parent[start[merged] + source[merged]] = start[merged] + target[merged]
        death = leave[resolve_roots(parent)]
    # First fates, and later ones in order of their steps.
    born = steps[birth]
    first = np.zeros(len(leave), np.uint8)
    shape = len(layers) * heads, tokens
    changed: list[tuple[np.ndarray, np.ndarray, int]] = []
    for fate, since in ((Fate.HOLDS, absorb), (Fate.ABSORBED, leave), (Fate.DROPPED, death)):
        at_first = since.reshape(shape) <= born
        first[at_first.reshape(-1)] = fate
        later = np.flatnonzero((since != NEVER) & ~at_first.reshape(-1))
        changed.append((since[later], later.astype(np.uint32), int(fate)))
    when, cell = (np.concatenate([part[place] for part in changed]) for place in (0, 1))
    fates = np.repeat(np.array([part[2] for part in changed], np.uint8), [len(part[0]) for part in changed])
    order = np.argsort(when, kind="stable")  # within a step a later fate overwrites an earlier one
    index = np.searchsorted(steps, when[order]).astype(np.int32)
    return Wall(layers, heads, steps, birth, first.reshape(shape), index, cell[order], fates[order])


def difference_codes(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """uint8 codes of two runs' fates: a slot of its own in both (0), only in `a` (1), only in `b` (2), in neither."""
    return ((a > Fate.HOLDS) * 2 + (b > Fate.HOLDS)).astype(np.uint8)
