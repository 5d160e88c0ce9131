"""What became of a few chosen tokens (a needle) in every layer and head: kept, merged or dropped, and when."""

from __future__ import annotations

import numpy as np
import pandas as pd

from kvlab.common.errors import UserError
from kvlab.trace.reader import Run

FATES = ("kept", "merged", "dropped")
EVENTS = ["step", "layer", "head", "source", "target", "value_weight"]


def find_span(texts: list[str], words: str) -> list[tuple[int, int]]:
    """(first, last) positions of every place where the joined token texts hold `words`, whatever their case.

    Raises:
        UserError: the text has no such words.
    """
    starts = np.concatenate([[0], np.cumsum([len(text) for text in texts])])
    text, wanted = "".join(texts).casefold(), words.strip().casefold()
    if len(text) != starts[-1]:  # case folding may lengthen a text, and then positions would be wrong
        text, wanted = "".join(texts).lower(), words.strip().lower()
    if len(text) != starts[-1] or not wanted:
        text, wanted = "".join(texts), words.strip()
    found, at = [], text.find(wanted) if wanted else -1
    while at >= 0:
        first = int(np.searchsorted(starts, at, side="right")) - 1
        last = int(np.searchsorted(starts, at + len(wanted) - 1, side="right")) - 1
        found.append((first, last))
        at = text.find(wanted, at + len(wanted))
    if not found:
        raise UserError(f"The text has no “{words.strip()}”: write words as they stand in it.")
    return found


def autopsy(run: Run, span: tuple[int, int], step: int | None = None) -> pd.DataFrame:
    """One row a layer, head and token of `span` (first and last position).

    Columns: layer, head, token, fate (of `FATES`, see `Links.fates`, after `step`; the last one where that is None),
    left (step its own slot ended, NA if it lives), into (the slot it first went into, -1), slot (the slot it lives in
    after the last step, -1), lost (step at which the slot holding it was dropped, NA), shared (first step after which
    its slot held another token too, or it went into another's; NA).

    Raises:
        UserError: the run did not record its events.
    """
    events = events_of(run)
    links, layer, head, token = followed(run, events, np.arange(span[0], span[1] + 1))
    left, into = links.next(layer, head, token)
    slot, lost = links.end(layer, head, token)
    at = links if step is None else followed(run, events[events["step"] <= step], np.arange(span[0], span[1] + 1))[0]
    table = pd.DataFrame(
        {"layer": layer, "head": head, "token": token, "fate": at.fates(layer, head, token), "into": into, "slot": slot}
    )
    for name, steps in (("left", left), ("lost", lost), ("shared", links.shared(layer, head, token))):
        table[name] = pd.array(np.where(steps >= 0, steps, 0), "Int32")
        table.loc[steps < 0, name] = pd.NA
    return table[["layer", "head", "token", "fate", "left", "into", "slot", "lost", "shared"]]


def events_of(run: Run) -> pd.DataFrame:
    """The columns `EVENTS` of everything that left a slot; raises UserError where the run did not record them."""
    if run.record.level != "full":
        raise UserError(f"{run.record.label} was recorded at level {run.record.level}, without events.")
    return run.select("events", columns=EVENTS, ordered=False)


def followed(run: Run, events: pd.DataFrame, positions: np.ndarray) -> tuple[Links, np.ndarray, np.ndarray, np.ndarray]:
    """The ways that `events` say, and layer, head and token of every one of `positions` in every compressed head."""
    model = run.record.model
    links = Links(events, model.num_key_value_heads, run.record.prompt_tokens + run.record.max_new_tokens)
    layers = [layer for layer in range(model.num_hidden_layers) if layer not in run.record.sliding_layers]
    grids = np.meshgrid(layers, np.arange(model.num_key_value_heads), positions, indexing="ij")
    layer, head, token = (grid.ravel().astype(np.int64) for grid in grids)
    return links, layer, head, token


class Links:
    """The way of every slot that left, of all heads, looked up by (layer, head, position)."""

    def __init__(self, events: pd.DataFrame, heads: int, tokens: int) -> None:
        self.heads, self.tokens = heads, tokens
        taken = events[events["target"] >= 0]
        self.taken = (
            pd.Series(taken["step"].to_numpy(np.int64))
            .groupby(self._key(taken["layer"].to_numpy(), taken["head"].to_numpy(), taken["target"].to_numpy()))
            .min()
        )
        # A slot spread over several targets is followed into the one that took the most of it.
        events = events.sort_values("value_weight", kind="stable")
        keys = self._key(events["layer"].to_numpy(), events["head"].to_numpy(), events["source"].to_numpy())
        order = np.argsort(keys, kind="stable")
        last = np.append(keys[order][1:] != keys[order][:-1], True) if len(order) else np.zeros(0, bool)
        order = order[last]
        self.keys = keys[order]
        self.step = events["step"].to_numpy(np.int64)[order]
        self.target = events["target"].to_numpy(np.int64)[order]

    def next(self, layer: np.ndarray, head: np.ndarray, position: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Step at which each slot left (-1: it did not) and the slot it went into (-1: none)."""
        if not len(self.keys):
            return np.full(len(layer), -1), np.full(len(layer), -1)
        wanted = self._key(layer, head, position)
        at = np.searchsorted(self.keys, wanted).clip(max=len(self.keys) - 1)
        there = self.keys[at] == wanted
        return np.where(there, self.step[at], -1), np.where(there, self.target[at], -1)

    def end(self, layer: np.ndarray, head: np.ndarray, position: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The slot each token ends in (-1: dropped), and the step at which it was dropped (-1: it was not)."""
        here, lost = position.copy(), np.full(len(position), -1)
        open_ = np.ones(len(position), bool)
        while open_.any():
            step, target = self.next(layer[open_], head[open_], here[open_])
            where = np.flatnonzero(open_)
            dropped = (step >= 0) & (target < 0)
            lost[where[dropped]], here[where[dropped]] = step[dropped], -1
            moves = target >= 0
            here[where[moves]] = target[moves]
            open_[where[~moves]] = False
        return here, lost

    def shared(self, layer: np.ndarray, head: np.ndarray, position: np.ndarray) -> np.ndarray:
        """First step at which each slot took in another one or went into another one (-1: neither)."""
        never = np.iinfo(np.int64).max
        took = self.taken.reindex(self._key(layer, head, position), fill_value=never).to_numpy(np.int64)
        step, target = self.next(layer, head, position)
        first = np.minimum(took, np.where((step >= 0) & (target >= 0), step, never))
        return np.where(first == never, -1, first)

    def fates(self, layer: np.ndarray, head: np.ndarray, position: np.ndarray) -> np.ndarray:
        """What became of each token, one of `FATES`.

        `kept` is a slot of its own that took in no other; `merged` a slot shared with others, whether it went into
        theirs or they into its own; `dropped` neither.
        """
        held = self.end(layer, head, position)[0] >= 0
        return np.select([~held, self.shared(layer, head, position) >= 0], [FATES[2], FATES[1]], FATES[0])

    def _key(self, layer: np.ndarray, head: np.ndarray, position: np.ndarray) -> np.ndarray:
        return (layer.astype(np.int64) * self.heads + head) * self.tokens + position


def token_rows(table: pd.DataFrame, texts: list[str], layer: int, head: int) -> pd.DataFrame:
    """The rows of one head as a person reads them: token, text, fate, when it left, into what, when that was lost."""
    own = table[(table["layer"] == layer) & (table["head"] == head)]
    named = own.assign(
        text=[texts[token] for token in own["token"]],
        into=[f"{slot} “{texts[slot].strip()}”" if slot >= 0 else "" for slot in own["into"]],
        slot=[f"{slot} “{texts[slot].strip()}”" if slot >= 0 else "" for slot in own["slot"]],
    )
    names = {"left": "left at step", "into": "went into", "slot": "now in slot", "lost": "dropped at step"}
    return named[["token", "text", "fate", "left", "into", "slot", "lost"]].rename(columns=names)


def survival(table: pd.DataFrame) -> pd.DataFrame:
    """One row a layer and head: share of the chosen tokens in each of `FATES`, and the first step one was dropped."""
    shares = table.groupby(["layer", "head"])["fate"].value_counts(normalize=True).unstack(fill_value=0.0)
    shares = shares.reindex(columns=list(FATES), fill_value=0.0)
    return shares.assign(first_lost=table.groupby(["layer", "head"])["lost"].min()).reset_index()


def fates_over_steps(table: pd.DataFrame, last_step: int) -> pd.DataFrame:
    """Share of all (layer, head, token) in each of `FATES` after every step: columns step, then `FATES`."""
    steps = np.arange(last_step + 1)
    lost = table["lost"].fillna(last_step + 1).to_numpy(np.int64)
    changed = np.minimum(table["shared"].fillna(last_step + 1).to_numpy(np.int64), lost)
    gone, dropped = (np.searchsorted(np.sort(values), steps, side="right") / len(table) for values in (changed, lost))
    return pd.DataFrame({"step": steps, FATES[0]: 1 - gone, FATES[1]: gone - dropped, FATES[2]: dropped})


def needle_mass(run: Run, table: pd.DataFrame, layer: int, head: int) -> pd.DataFrame:
    """Attention on the chosen tokens of one head at every step: columns step, true (full cache), received.

    `received` is what the slots that hold one of them get; a merged slot's attention counts whole, as nothing says
    which of its tokens it is for. `table` is that of `autopsy`. A slot that was itself merged on counts no more.

    Raises:
        UserError: the run did not record attention rows.
    """
    true_mass, slot_mass = run.attention(layer, head, thinned=True)
    steps = run.select("steps", layer, head, ["step"])["step"].to_numpy()[:: run.attention_every]
    own = table[(table["layer"] == layer) & (table["head"] == head)]
    positions = own["token"].to_numpy(np.int64)
    rows = min(len(steps), len(true_mass))
    received = [_received(slot_mass[row], own, int(steps[row])) for row in range(rows)]
    true = true_mass[:rows, positions].astype(np.float32).sum(1)
    return pd.DataFrame({"step": steps[:rows], "true": true, "received": received})


def _received(slot_mass: np.ndarray, own: pd.DataFrame, step: int) -> float:
    alone = own.loc[own["left"].isna() | (own["left"] > step).fillna(False), "token"]
    inside = own.loc[(own["left"] <= step).fillna(False) & (own["lost"].isna() | (own["lost"] > step).fillna(False))]
    slots = np.unique(np.concatenate([alone, inside["into"], inside.loc[inside["slot"] >= 0, "slot"]]).astype(np.int64))
    return float(slot_mass[slots].astype(np.float32).sum())
