"""Trace the fate of chosen tokens (a needle) in every layer and head: kept, merged or dropped, and when."""

from __future__ import annotations

import numpy as np
import pandas as pd

from kvlab.core.errors import UserError
from kvlab.trace.reader import Run

FATES = ("kept", "merged", "dropped")
UNREAD = "not read"  # held, but left out by the sparse attention of a step (`views.autopsy.fates_at`)
TIED = 0.02  # steps whose attention differs by less, relative to the largest, have the most alike
EVENTS = ["step", "layer", "head", "source", "target", "value_weight"]


def find_span(texts: list[str], words: str) -> list[tuple[int, int]]:
    """(first, last) token positions of every case-insensitive occurrence of `words` in the joined token texts.

    Raises:
        UserError: the text does not contain these words.
    """
    starts = np.concatenate([[0], np.cumsum([len(text) for text in texts])])
    text = "".join(texts).casefold()
    pattern = words.strip().casefold()
    if len(text) != starts[-1]:  # case folding may lengthen a text, and then positions would be wrong
        text = "".join(texts).lower()
        pattern = words.strip().lower()
    if len(text) != starts[-1] or not pattern:
        text = "".join(texts)
        pattern = words.strip()
    spans = []
    at = text.find(pattern) if pattern else -1
    while at >= 0:
        first = int(np.searchsorted(starts, at, side="right")) - 1
        last = int(np.searchsorted(starts, at + len(pattern) - 1, side="right")) - 1
        spans.append((first, last))
        at = text.find(pattern, at + len(pattern))
    if not spans:
        raise UserError(f"The text has no “{words.strip()}”: copy the words from it.")
    return spans


def autopsy(run: Run, span: tuple[int, int], step: int | None = None) -> pd.DataFrame:
    """Return one row per layer, head and token of `span` (first and last position, inclusive).

    Columns: layer, head, token, fate (one of `FATES`, see `Links.fates`, after `step` or after the last step if None),
    left (step its own slot ended, NA if still alive), into (slot it was first merged into, or -1), slot (slot that
    holds it after the last step), lost (step at which the slot holding it was evicted, or NA), shared (first step after
    which its slot also held another token or it was merged away, or NA).

    Raises:
        UserError: the run recorded no events.
    """
    events = read_events(run)
    links, layer, head, token = token_links(run, events, np.arange(span[0], span[1] + 1))
    left, into = links.next(layer, head, token)
    slot, lost = links.end(layer, head, token)
    at = links if step is None else token_links(run, events[events["step"] <= step], np.arange(span[0], span[1] + 1))[0]
    table = pd.DataFrame(
        {"layer": layer, "head": head, "token": token, "fate": at.fates(layer, head, token), "into": into, "slot": slot}
    )
    for name, steps in (("left", left), ("lost", lost), ("shared", links.shared(layer, head, token))):
        table[name] = pd.array(np.where(steps >= 0, steps, 0), "Int32")
        table.loc[steps < 0, name] = pd.NA
    return table[["layer", "head", "token", "fate", "left", "into", "slot", "lost", "shared"]]


def read_events(run: Run) -> pd.DataFrame:
    """Read the columns `EVENTS`; raises UserError if the run recorded no events."""
    if run.record.level != "full":
        raise UserError(f"{run.record.label} was recorded at level {run.record.level}, without events.")
    return run.select("events", columns=EVENTS, ordered=False)


def token_links(
    run: Run, events: pd.DataFrame, positions: np.ndarray
) -> tuple[Links, np.ndarray, np.ndarray, np.ndarray]:
    """Return the links in `events`, and layer, head and token of each of `positions` in every compressed head."""
    model = run.record.model
    links = Links(events, model.num_key_value_heads, run.record.prompt_tokens + run.record.max_new_tokens)
    layers = [layer for layer in range(model.num_hidden_layers) if layer not in run.record.sliding_layers]
    grids = np.meshgrid(layers, np.arange(model.num_key_value_heads), positions, indexing="ij")
    layer, head, token = (grid.ravel().astype(np.int64) for grid in grids)
    return links, layer, head, token


class Links:
    """Target of each departed slot of every head, looked up by (layer, head, position)."""

    def __init__(self, events: pd.DataFrame, heads: int, tokens: int) -> None:
        self.heads = heads
        self.tokens = tokens
        taken = events[events["target"] >= 0]
        self.taken = (
            taken["step"]
            .astype(np.int64)
            .groupby(self._key(*(taken[name].to_numpy() for name in ("layer", "head", "target"))))
            .min()
        )
        # If a slot was merged into several targets, follow the one with the largest weight.
        events = events.sort_values("value_weight", kind="stable")
        keys = self._key(*(events[name].to_numpy() for name in ("layer", "head", "source")))
        order = np.argsort(keys, kind="stable")
        last = np.append(keys[order][1:] != keys[order][:-1], True) if len(order) else np.zeros(0, bool)
        order = order[last]
        self.keys = keys[order]
        self.step = events["step"].to_numpy(np.int64)[order]
        self.target = events["target"].to_numpy(np.int64)[order]

    def next(self, layer: np.ndarray, head: np.ndarray, position: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Step at which each slot left (-1: still alive) and the slot it was merged into (-1: none)."""
        if not len(self.keys):
            return np.full(len(layer), -1), np.full(len(layer), -1)
        pattern = self._key(layer, head, position)
        at = np.searchsorted(self.keys, pattern).clip(max=len(self.keys) - 1)
        there = self.keys[at] == pattern
        return np.where(there, self.step[at], -1), np.where(there, self.target[at], -1)

    def end(
        self, layer: np.ndarray, head: np.ndarray, position: np.ndarray, at: int | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """The slot that holds each token after step `at`, or after the last (-1: dropped), and the step at which it
        was dropped (-1: never)."""
        here = position.copy()
        lost = np.full(len(position), -1)
        open_ = np.ones(len(position), bool)
        while open_.any():
            where = np.flatnonzero(open_)
            step, target = self.next(layer[where], head[where], here[where])
            left = (step >= 0) if at is None else (step >= 0) & (step <= at)
            here[where[left]] = target[left]
            moves = left & (target >= 0)
            dropped = left & ~moves
            lost[where[dropped]] = step[dropped]
            open_[where] = moves
        return here, lost

    def shared(self, layer: np.ndarray, head: np.ndarray, position: np.ndarray) -> np.ndarray:
        """First step at which each slot absorbed another or was merged into one (-1: never)."""
        never = np.iinfo(np.int64).max
        took = self.taken.reindex(self._key(layer, head, position), fill_value=never).to_numpy(np.int64)
        step, target = self.next(layer, head, position)
        first = np.minimum(took, np.where((step >= 0) & (target >= 0), step, never))
        return np.where(first == never, -1, first)

    def fates(self, layer: np.ndarray, head: np.ndarray, position: np.ndarray) -> np.ndarray:
        """Fate of each token, one of `FATES`.

        `kept`: its own slot is alive and holds nothing else. `merged`: it is in a shared slot. `dropped`: neither.
        """
        held = self.end(layer, head, position)[0] >= 0
        return np.select([~held, self.shared(layer, head, position) >= 0], [FATES[2], FATES[1]], FATES[0])

    def _key(self, layer: np.ndarray, head: np.ndarray, position: np.ndarray) -> np.ndarray:
        return (layer.astype(np.int64) * self.heads + head) * self.tokens + position


def token_rows(table: pd.DataFrame, texts: list[str], layer: int, head: int) -> pd.DataFrame:
    """Display table of one head: token, text, fate, when it left, its target, and when that was dropped.

    What is lost comes first, as it would be below the end of a long table.
    """
    here = table[(table["layer"] == layer) & (table["head"] == head)]
    lost_first = here.iloc[(here["fate"] == FATES[0]).argsort(kind="stable")]
    slots = {
        name: [f"{slot} “{texts[slot].strip()}”" if slot >= 0 else "" for slot in lost_first[name]]
        for name in ("into", "slot")
    }
    named = lost_first.assign(text=[texts[token] for token in lost_first["token"]], **slots)
    names = {"left": "left at step", "into": "went into", "slot": "now in slot", "lost": "dropped at step"}
    return named[["token", "text", "fate", "left", "into", "slot", "lost"]].rename(columns=names)
