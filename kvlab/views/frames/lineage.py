"""Fold the events of one layer and KV head into a forest: every token, the slot it was merged into, and when.

A slot is named by the position of its pivot and leaves at most once, so a head's whole history is one parent vector and
a few vectors of steps. The cache at any step follows by comparisons, without replaying events.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from functools import wraps
from itertools import pairwise
from typing import Any, Concatenate, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
import pandas as pd

from kvlab.trace.reader import Run
from kvlab.views.frames.float16 import block_edges

P = ParamSpec("P")
R = TypeVar("R")
NEVER = int(np.iinfo(np.int32).max)
KINDS = ("", "evict", "merge", "pool")


@dataclass(frozen=True)
class Lineage:
    """History of every token of one layer and KV head; vectors are indexed by position, `NEVER` means not yet.

    Attributes:
        steps: (steps,) recorded steps, increasing.
        seen: (steps,) tokens read by each step.
        birth: (tokens,) step at which the token was read.
        leave: (tokens,) step at which the slot named by the token ended.
        kind: (tokens,) how it ended, an index into `KINDS`.
        parent: (tokens,) target slot; -1 if it never left or was evicted.
        absorb: (tokens,) step at which the slot named by the token first absorbed another.
        death: (tokens,) step at which the last slot holding the token was evicted.
    """

    steps: np.ndarray
    tokens_seen: np.ndarray
    birth: np.ndarray
    leave: np.ndarray
    kind: np.ndarray
    parent: np.ndarray
    absorb: np.ndarray
    death: np.ndarray

    @property
    def tokens(self) -> int:
        """Number of tokens read by the last step."""
        return len(self.birth)

    def owners(self, step: int) -> np.ndarray:
        """(tokens,) position naming the slot that holds each token after `step`; -1 if evicted or not yet read."""
        here = np.arange(self.tokens)
        moved = (self.leave <= step) & (self.parent >= 0)
        owner = resolve_roots(np.where(moved, self.parent, here))
        return np.where((self.death <= step) | (self.birth > step), -1, owner)

    def slot_of(self, token: int, step: int) -> int | None:
        """The position naming the slot that holds `token` after `step`; None if it was evicted or not yet read."""
        slot = int(self.owners(step)[token])
        return slot if slot >= 0 else None

    def alive(self, step: int) -> np.ndarray:
        """(tokens,) whether the slot named by each token exists after `step`."""
        return (self.birth <= step) & (self.leave > step)

    def votes(self, step: int) -> np.ndarray:
        """(tokens,) number of tokens in the slot named by each position after `step`; 0 if there is none."""
        owner = self.owners(step)
        return np.bincount(owner[owner >= 0], minlength=self.tokens)

    def live_slots(self) -> np.ndarray:
        """(steps,) number of live slots after each recorded step."""
        ended = np.searchsorted(np.sort(self.leave), self.steps, side="right")
        return self.tokens_seen - ended


def fold(events: pd.DataFrame, steps: pd.DataFrame) -> Lineage:
    """Build the lineage of one layer and KV head from its rows of `events` and `steps`.

    If a slot was merged into several targets, the one with the largest value weight counts.
    """
    steps = steps.sort_values("step")
    numbers = steps["step"].to_numpy(np.int64)
    tokens_seen = steps["tokens_seen"].to_numpy(np.int64)
    tokens = int(tokens_seen.max(initial=0))
    birth = numbers[np.searchsorted(tokens_seen, np.arange(tokens), side="right")] if tokens else np.zeros(0, np.int64)
    events = events[(events["source"] >= 0) & (events["source"] < tokens) & (events["target"] < tokens)]
    # Step, kind and target of each token's own departure; the last write per source wins.
    leave = np.full(tokens, NEVER)
    kind = np.zeros(tokens, np.uint8)
    parent = np.full(tokens, -1)
    order = np.argsort(events["value_weight"].to_numpy(), kind="stable")
    source = events["source"].to_numpy(np.int64)[order]
    leave[source] = events["step"].to_numpy()[order]
    kind[source] = pd.Index(KINDS).get_indexer(pd.Index(events["kind"])).clip(0)[order]
    parent[source] = events["target"].to_numpy()[order]
    absorb = np.full(tokens, NEVER)
    absorbing = events[events["target"] >= 0]
    np.minimum.at(absorb, absorbing["target"].to_numpy(np.int64), absorbing["step"].to_numpy(np.int64))
    roots = resolve_roots(np.where(parent >= 0, parent, np.arange(tokens)))
    return Lineage(numbers, tokens_seen, birth, leave, kind, parent, absorb, leave[roots])


def keep_by_run(most: int) -> Callable[[Callable[Concatenate[Run, P], R]], Callable[Concatenate[Run, P], R]]:
    """Decorator of a function of a run: its last `most` results of each run are kept as long as the run is open."""

    def keep(function: Callable[Concatenate[Run, P], R]) -> Callable[Concatenate[Run, P], R]:
        open_runs: WeakKeyDictionary[Run, dict[Any, R]] = WeakKeyDictionary()

        @wraps(function)
        def kept(run: Run, *args: P.args, **kwargs: P.kwargs) -> R:
            results = open_runs.setdefault(run, {})
            key = (args, *sorted(kwargs.items()))
            if key not in results:
                found = function(run, *args, **kwargs)
                if len(results) >= most:
                    results.pop(next(iter(results)), None)
                results[key] = found
            return results[key]

        return kept

    return keep


@keep_by_run(24)
def head_history(run: Run, layer: int, head: int) -> tuple[Lineage, pd.DataFrame, list[str]]:
    """Lineage, events and token texts of one layer and KV head."""
    events = run.head_events(layer, head)
    lineage = fold(events, run.select("steps", layer, head))
    return lineage, events, token_texts(run.tokens, lineage.tokens)


def resolve_roots(parent: np.ndarray) -> np.ndarray:
    """The root of every token, by pointer doubling."""
    for _ in range(len(parent).bit_length()):
        further = parent[parent]
        if np.array_equal(further, parent):
            break
        parent = further
    return parent


def steps_with_events(steps: pd.DataFrame) -> tuple[list[int], list[int]]:
    """(recorded steps, steps after the prefill in which any slot left), from `steps` of any layers and heads."""
    left = steps.assign(left=steps["evicted"].fillna(0) + steps["merged"].fillna(0)).groupby("step")["left"].sum()
    return left.index.tolist(), left.index[(left > 0) & (left.index > 0)].tolist()


def step_labels(tokens: pd.DataFrame, prompt_tokens: int, steps: list[int]) -> list[str]:
    """Short description of what each step read: the prompt, or a token of the forced continuation."""
    texts = tokens[tokens["phase"] == "forced"].set_index("position")["text"]
    words = []
    for step in steps:
        text = texts.get(prompt_tokens + step - 1, "").replace("\n", "⏎").strip(" ") or "␣"
        words.append("the prompt was read" if step == 0 else f"after “{text}”")
    return words


SINKS = 4


class State(IntEnum):
    """State of a token after a step.

    `RECENT` is the contiguous run of own slots at the end of the text and `SINK` that at its beginning (at most `SINKS`
    tokens); `KEPT` are own slots in between, the heavy hitters of most methods. Until anything leaves a head, all are
    `KEPT`. `PIVOT` names a slot that absorbed others, `ABSORBED` a token held by such a slot.
    """

    UNSEEN = 0
    SINK = 1
    RECENT = 2
    KEPT = 3
    PIVOT = 4
    ABSORBED = 5
    EVICTED = 6


STATES = tuple(state.name.lower() for state in State)


def states_at(lineage: Lineage, step: int) -> np.ndarray:
    """(tokens,) uint8 `State` of every token after `step`."""
    states = np.full(lineage.tokens, State.UNSEEN, np.uint8)
    states[lineage.birth <= step] = State.KEPT
    sink_stop, recent_start = regions_at(lineage, np.array([step]))
    kept = states == State.KEPT
    position = np.arange(lineage.tokens)
    states[kept & (position >= recent_start)] = State.RECENT
    states[kept & (position < sink_stop)] = State.SINK
    states[kept & (lineage.absorb <= step)] = State.PIVOT
    states[lineage.leave <= step] = State.ABSORBED
    states[lineage.death <= step] = State.EVICTED
    return states


def regions_at(lineage: Lineage, steps: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Stop of the sinks and start of the recent window after each of the increasing `steps`, two (steps,) arrays.

    (0, tokens) before anything has left. In one pass over the tokens.
    """
    left = np.flatnonzero(lineage.leave <= steps.max(initial=-1))
    since = np.searchsorted(steps, lineage.leave[left])
    first = np.full(len(steps), lineage.tokens)
    last = np.full(len(steps), -1)
    np.minimum.at(first, since, left)
    np.maximum.at(last, since, left)
    first = np.minimum.accumulate(first)
    last = np.maximum.accumulate(last)
    none = last < 0
    return np.where(none, 0, first.clip(max=SINKS)), np.where(none, lineage.tokens, last + 1)


MAX_CELLS = 768


def mosaic(lineage: Lineage, max_cells: int = MAX_CELLS) -> pd.DataFrame:
    """uint8 states: a row per block of tokens (its first position), a column per step; at most `max_cells` each.

    A block shows its most common state, or that it holds a sink: the few sinks would never be the most common.
    Too many steps are subsampled evenly.
    """
    rows = block_edges(0, lineage.tokens, max_cells)
    count = len(lineage.steps)
    columns = lineage.steps[np.unique(np.linspace(0, count - 1, min(count, max_cells)).round().astype(int))]
    states = _counts(lineage, rows, columns).argmax(axis=0).astype(np.uint8)
    states = np.array([State.UNSEEN, State.KEPT, State.PIVOT, State.ABSORBED, State.EVICTED], np.uint8)[states]
    sink_stop, recent_start = regions_at(lineage, columns)
    kept = states == State.KEPT
    starts = rows[:-1, None]
    states[kept & (starts >= recent_start)] = State.RECENT
    states[kept & (starts < sink_stop)] = State.SINK
    first = min(SINKS, lineage.tokens)
    alone = _counts(lineage, np.array([*range(first), first, max(first, lineage.tokens)]), columns)[1, :first] > 0
    for token, is_sink in enumerate(alone & (np.arange(first)[:, None] < sink_stop)):
        states[np.searchsorted(rows, token, "right") - 1, is_sink] = State.SINK
    return pd.DataFrame(states, index=pd.Index(rows[:-1], name="position"), columns=pd.Index(columns, name="step"))


def state_counts(lineage: Lineage) -> pd.DataFrame:
    """Tokens in each state after every recorded step, one row per step; rows sum to all tokens."""
    counts = _counts(lineage, np.array([0, lineage.tokens]), lineage.steps)[:, 0, :]
    steps = pd.Index(lineage.steps, name="step")
    names = ["unseen", "own", "pivot", "absorbed", "evicted"]
    return pd.DataFrame(counts.T, index=steps, columns=names).reset_index()


def _counts(lineage: Lineage, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """(states, blocks, steps): each token adds one over the steps of its five spans, computed by cumulative sums."""
    block = np.repeat(np.arange(len(rows) - 1), np.diff(rows))
    own_stop = np.minimum(lineage.leave, np.maximum(lineage.absorb, lineage.birth))
    borders = [np.full(lineage.tokens, -1), lineage.birth, own_stop, lineage.leave, lineage.death]
    shape = len(rows) - 1, len(columns) + 1
    last = int(columns.max(initial=0)) + 1  # a lookup table is ten times as fast as searchsorted
    place = np.searchsorted(columns, np.arange(last + 1))
    begun = [
        np.bincount(block * shape[1] + place[start.clip(0, last)], minlength=shape[0] * shape[1]) for start in borders
    ]
    begun.append(np.zeros_like(begun[0]))  # eviction is final
    changes = np.stack([start - stop for start, stop in pairwise(begun)]).reshape(5, *shape)
    return changes.cumsum(axis=2)[:, :, :-1]


def token_texts(tokens: pd.DataFrame, count: int) -> list[str]:
    """Texts of positions 0 to `count` - 1 of the run's `tokens`: the prompt, then the forced continuation."""
    read = tokens[tokens["phase"] != "free"].drop_duplicates("position")
    return read.set_index("position")["text"].reindex(range(count)).fillna("").tolist()


def slot_table(
    lineage: Lineage,
    texts: list[str],
    step: int,
    masses: tuple[np.ndarray, np.ndarray] | None = None,
    most: int | None = None,
) -> pd.DataFrame:
    """One row per live slot after `step`: position, text, state, votes, tokens in it, and masses if given.

    `masses` is (true mass of each token, mass of each slot) at the step, both (tokens,). A slot's true mass is the sum
    over its tokens; `lost` is the true mass minus the slot's mass, negative if it gained. If there are more than `most`
    slots, those with the most votes (then attention) are shown, ordered by position.
    """
    owner = lineage.owners(step)
    alive = np.flatnonzero(lineage.alive(step))
    votes = np.bincount(owner[owner >= 0], minlength=lineage.tokens)
    table = pd.DataFrame({"position": alive, "votes": votes[alive], "read at step": lineage.birth[alive]})
    if masses is not None:
        true_mass, slot_mass = (mass[: lineage.tokens].astype(np.float32) for mass in masses)
        inside = np.bincount(owner[owner >= 0], weights=true_mass[owner >= 0], minlength=lineage.tokens)[alive]
        mass = slot_mass[alive]
        table = table.assign(**{"mass": mass, "true mass": inside.astype(np.float32), "lost": inside - mass})
    if most is not None and len(table) > most:
        order = [name for name in ("votes", "mass") if name in table]
        table = table.sort_values(order, ascending=False, kind="stable").head(most).sort_values("position")
    positions = table["position"].to_numpy()
    table.insert(1, "text", [texts[position] for position in positions])
    table.insert(2, "state", np.array(STATES)[states_at(lineage, step)[positions]])
    return table


def check_slots(lineage: Lineage, steps: pd.DataFrame) -> pd.DataFrame:
    """One row per step: live slots folded from the events, live slots recorded, and whether they agree."""
    steps = steps.sort_values("step")
    columns = {"step": lineage.steps, "folded": lineage.live_slots(), "recorded": steps["live_slots"].to_numpy()}
    table = pd.DataFrame(columns)
    return table.assign(agree=table["folded"] == table["recorded"])


def events_with_texts(events: pd.DataFrame, texts: list[str]) -> pd.DataFrame:
    """Events of one step of one head with the texts of source and target."""
    here = events.drop(columns=["step", "layer", "head"])
    return here.assign(
        source_text=[texts[position] if 0 <= position < len(texts) else "" for position in here["source"]],
        target_text=[texts[position] if 0 <= position < len(texts) else "" for position in here["target"]],
    )[["kind", "source", "source_text", "target", "target_text", *here.columns[3:]]]


def event_steps(lineage: Lineage) -> np.ndarray:
    """Steps after the prefill in which anything left."""
    left = np.unique(lineage.leave[lineage.leave < NEVER])
    return left[left > lineage.steps[0]] if len(lineage.steps) else left


def members(lineage: Lineage, slot: int, step: int) -> np.ndarray:
    """Increasing positions of the tokens held by `slot` after `step`; empty if the slot is not alive."""
    return np.flatnonzero(lineage.owners(step) == slot)


def merged_slots(lineage: Lineage, step: int, limit: int = 200) -> dict[int, int]:
    """Votes of the slots that hold more than one token after `step`, by position, most votes first."""
    votes = lineage.votes(step)
    order = np.argsort(-votes, kind="stable")[:limit]
    return {int(position): int(votes[position]) for position in order if votes[position] > 1}


def merged_count(lineage: Lineage, step: int) -> int:
    """Number of slots that hold more than one token after `step`."""
    return int((lineage.votes(step) > 1).sum())


def lineage_tree(lineage: Lineage, events: pd.DataFrame, texts: list[str], slot: int, step: int) -> pd.DataFrame:
    """One row per merge that led into `slot` by `step`, direct ones first, then by value weight.

    Columns: source, source_text, target, target_text, step, kind, votes (tokens carried over), similarity,
    value_weight, depth (merges between source and slot).
    """
    inside = members(lineage, slot, step)
    joined = inside[(lineage.leave[inside] <= step) & (inside != slot)]
    rows = pd.DataFrame({"source": joined, "target": lineage.parent[joined]})
    depth = np.zeros(len(joined), np.int64)
    here = joined.copy()
    while len(here) and (here != slot).any():
        moving = here != slot
        here = np.where(moving, lineage.parent[here], here)
        depth += moving
    rows = rows.assign(
        source_text=[texts[position] for position in rows["source"]],
        target_text=[texts[position] for position in rows["target"]],
        step=lineage.leave[joined],
        kind=np.array(KINDS)[lineage.kind[joined]],
        depth=depth,
    )
    weights = events[["source", "target", "similarity", "value_weight", "votes_source"]]
    weights = weights.drop_duplicates(["source", "target"])
    rows = rows.merge(weights, on=["source", "target"], how="left").rename(columns={"votes_source": "votes"})
    return rows.sort_values(["depth", "value_weight"], ascending=[True, False]).reset_index(drop=True)
