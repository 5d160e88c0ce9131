"""Fold the events of one layer and KV head into a forest: every token, the slot it was merged into, and when.

A slot is named by the position of its pivot and leaves at most once, so a head's whole history is one parent vector and
a few vectors of steps. The cache at any step follows by comparisons, without replaying events.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

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
    seen: np.ndarray
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
        return self.seen - ended


def fold(events: pd.DataFrame, steps: pd.DataFrame) -> Lineage:
    """Build the lineage of one layer and KV head from its rows of `events` and `steps`.

    If a slot was merged into several targets, the one with the largest value weight counts.
    """
    steps = steps.sort_values("step")
    numbers = steps["step"].to_numpy(np.int64)
    seen = steps["tokens_seen"].to_numpy(np.int64)
    tokens = int(seen.max(initial=0))
    birth = numbers[np.searchsorted(seen, np.arange(tokens), side="right")] if tokens else np.zeros(0, np.int64)
    events = events[(events["source"] >= 0) & (events["source"] < tokens) & (events["target"] < tokens)]
    leave, kind, parent = _departures(events, tokens)
    absorb = np.full(tokens, NEVER)
    absorbing = events[events["target"] >= 0]
    np.minimum.at(absorb, absorbing["target"].to_numpy(np.int64), absorbing["step"].to_numpy(np.int64))
    roots = resolve_roots(np.where(parent >= 0, parent, np.arange(tokens)))
    return Lineage(numbers, seen, birth, leave, kind, parent, absorb, leave[roots])


def _departures(events: pd.DataFrame, tokens: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Step, kind and target of each token's own departure."""
    leave = np.full(tokens, NEVER)
    kind = np.zeros(tokens, np.uint8)
    parent = np.full(tokens, -1)
    order = np.argsort(events["value_weight"].to_numpy(), kind="stable")  # the last write per source wins
    source = events["source"].to_numpy(np.int64)[order]
    leave[source] = events["step"].to_numpy()[order]
    kind[source] = pd.Index(KINDS).get_indexer(pd.Index(events["kind"])).clip(0)[order]
    parent[source] = events["target"].to_numpy()[order]
    return leave, kind, parent


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
