"""A random but consistent life of one layer's slots: who leaves when, into whom, with what attention."""

from __future__ import annotations

import math

import numpy as np

MERGING = {"keepkv": "merge", "zsmerge": "merge", "pool": "pool"}
SINK, RECENT = 4, 8
DROPPED = -1


def budget_slots(budget: int | float, prompt_tokens: int) -> int:
    """Slots per head: an int is taken as it is, a float is a share of the prompt."""
    return budget if isinstance(budget, int) else max(1, math.ceil(budget * prompt_tokens))


def attention_rows(random: np.random.Generator, steps: int, heads: int, prompt_tokens: int) -> np.ndarray:
    """True masses (steps + 1, heads, tokens) float32: a sink, a recent bump, some heavy tokens; a row sees its past."""
    tokens = prompt_tokens + steps
    heavy = random.gumbel(0, 1.5, (1, heads, tokens)).astype(np.float32)
    logits = heavy + random.normal(0, 0.7, (steps + 1, heads, tokens)).astype(np.float32)
    last = prompt_tokens - 1 + np.arange(steps + 1)[:, None]
    age = last - np.arange(tokens)
    logits += 3 * np.exp(-np.maximum(age, 0) / 6).astype(np.float32)[:, None, :]
    logits[:, :, 0] += 6
    logits = np.where((age >= 0)[:, None, :], logits, -np.inf)
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


class SyntheticLayer:
    """Slots of all KV heads of one layer; every array has one row a head and one column a token position.

    `owner[h, t]` is the position of the slot token t lives in, or -1 once it was dropped.
    """

    def __init__(
        self, method: str, heads: int, prompt_tokens: int, tokens: int, slots: int, random: np.random.Generator
    ) -> None:
        self.kind = MERGING.get(method, "evict")
        self.guarded = method == "keepkv"
        self.slots, self.prompt_tokens, self.random = slots, prompt_tokens, random
        self.heads, self.tokens = heads, tokens
        self.alive = np.zeros((heads, tokens), bool)
        self.votes = np.zeros((heads, tokens), np.float32)
        self.owner = np.full((heads, tokens), DROPPED, np.int64)
        self.slot_mass = np.zeros((heads, tokens), np.float32)
        self.seen = 0
        self.left = np.zeros(heads, int)
        self.score = self.slot_mass  # what the last decision went by, beside place

    def advance(self, step: int, true_mass: np.ndarray) -> dict[str, np.ndarray]:
        """Take in the step's new tokens, shrink every head to its budget; the step's event columns."""
        new = slice(self.seen, self.prompt_tokens + step)
        self.seen = new.stop
        self.alive[:, new], self.votes[:, new] = True, 1
        self.owner[:, new] = np.arange(new.start, new.stop)
        before, votes_before = self._slot_mass(true_mass), self.votes.copy()
        head, source = self._leaving(before)
        self.left = np.bincount(head, minlength=self.heads)
        target = self._targets(head, source)
        self._apply(head, source, target)
        self.slot_mass = self._slot_mass(true_mass)
        return self._events(head, source, target, before, votes_before)

    def counts(self) -> dict[str, np.ndarray]:
        """The columns of `steps` that need no shadow, one value a head."""
        nobody = np.zeros(self.heads, int)
        return {
            "live_slots": self.alive.sum(1),
            "tokens_seen": np.full(self.heads, self.seen),
            "budget_slots": np.full(self.heads, min(self.slots, self.seen)),
            "evicted": self.left if self.kind == "evict" else nobody,
            "merged": nobody if self.kind == "evict" else self.left,
            "max_votes": self.votes.max(1),
            "guard_activations": self.random.binomial(self.left, 0.1) if self.guarded else nobody,
        }

    def measure(self, true_mass: np.ndarray) -> dict[str, np.ndarray]:
        """The columns of `steps` that compare with the shadow; kept + merged + regret = 1."""
        merged = self.alive & (self.votes > 1)
        member_mass = self._member_mass(true_mass)
        merged_true = (member_mass * merged).sum(1)
        merged_mass = (self.slot_mass * merged).sum(1)
        kept = (true_mass * (self.alive & ~merged)).sum(1)
        regret = (true_mass * (self.owner == DROPPED)).sum(1)
        sag = merged_true - merged_mass
        whole = np.ones(self.heads)
        measured = {
            "non_finite": np.zeros(self.heads, int), "key_growth": whole, "value_growth": whole,
            "kept_mass": kept, "merged_true_mass": merged_true, "merged_mass": merged_mass, "sag": sag,
            "regret": regret, "output_error": 0.8 * regret + 0.5 * np.abs(sag),
        }  # fmt: skip
        if self.guarded:
            measured["score_error"] = self.random.gamma(2, 0.1, self.heads)
        return measured

    def _leaving(self, slot_mass: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Head and position of each slot over budget: mostly light ones, sparing sinks and the most recent."""
        excess = np.maximum(self.alive.sum(1) - self.slots, 0)
        order = self.random.random((self.heads, self.tokens)) * slot_mass
        self.score = order.copy()
        spared = max(0, min(SINK, self.slots // 4))
        recent = min(RECENT, self.slots // 2)
        order[:, :spared] += 1
        order[:, self.seen - recent : self.seen] += 2
        order[~self.alive] = np.inf
        chosen = np.zeros_like(self.alive)
        for row in np.flatnonzero(excess):
            lowest = np.argpartition(order[row], excess[row] - 1)[: excess[row]]
            chosen[row, lowest] = True
        head, source = np.nonzero(chosen)
        return head, source

    def _targets(self, head: np.ndarray, source: np.ndarray) -> np.ndarray:
        """A staying slot near each leaving one: the next staying one after it, or the last before it."""
        if self.kind == "evict":
            return np.full(len(source), DROPPED)
        stays = self.alive.copy()
        stays[head, source] = False
        positions = np.where(stays, np.arange(self.tokens), self.tokens)
        after = np.minimum.accumulate(positions[:, ::-1], axis=1)[:, ::-1]
        last = np.where(stays, np.arange(self.tokens), -1).max(1)
        return np.minimum(after, last[:, None])[head, source]

    def _apply(self, head: np.ndarray, source: np.ndarray, target: np.ndarray) -> None:
        moved_to = np.tile(np.arange(self.tokens), (self.heads, 1))
        moved_to[head, source] = target
        held = self.owner != DROPPED
        rows = np.broadcast_to(np.arange(self.heads)[:, None], held.shape)
        self.owner[held] = moved_to[rows[held], self.owner[held]]
        if self.kind != "evict":
            np.add.at(self.votes, (head, target), self.votes[head, source])
        self.alive[head, source], self.votes[head, source] = False, 0

    def _member_mass(self, true_mass: np.ndarray) -> np.ndarray:
        """True mass of the tokens that live in each slot."""
        held = self.owner != DROPPED
        rows = np.broadcast_to(np.arange(self.heads)[:, None] * self.tokens, held.shape)
        flat = np.bincount((rows + self.owner)[held], true_mass[held], minlength=self.heads * self.tokens)
        return flat.reshape(self.heads, self.tokens).astype(np.float32)

    def _slot_mass(self, true_mass: np.ndarray) -> np.ndarray:
        """Attention of each slot; a merged slot gets a little less than its members had, and rows sum to one."""
        kept_share = np.where(self.votes > 1, 1 - 0.3 * np.log2(np.maximum(self.votes, 1)) / 8, 1)
        mass = self._member_mass(true_mass) * kept_share
        return (mass / mass.sum(1, keepdims=True)).astype(np.float32)

    def _events(
        self, head: np.ndarray, source: np.ndarray, target: np.ndarray, before: np.ndarray, votes_before: np.ndarray
    ) -> dict[str, np.ndarray]:
        events = {
            "head": head, "kind": np.full(len(source), self.kind), "source": source, "target": target,
            "votes_source": votes_before[head, source], "mass_source": before[head, source],
            "perturbation": self.random.gamma(2, 0.02, self.heads)[head],
        }  # fmt: skip
        if self.kind == "evict":
            nothing = np.zeros(len(source), np.float32)
            return events | {"key_weight": nothing, "value_weight": nothing}
        group = before * self.alive
        np.add.at(group, (head, target), before[head, source])
        share = votes_before[head, source] / self.votes[head, target]
        return events | {
            "similarity": 1 - self.random.beta(2, 12, len(source)), "key_weight": share, "value_weight": share,
            "votes_target": votes_before[head, target], "votes_after": self.votes[head, target],
            "mass_target": before[head, target], "mass_after": self.slot_mass[head, target],
            "sag": (group - self.slot_mass)[head, target],
        }  # fmt: skip
