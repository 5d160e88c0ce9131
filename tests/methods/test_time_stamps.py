"""RaaS and LazyEviction: stamps and gaps of each token, one query at a time."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor

from tests.cache.layers import DIM, HandLayer, draw
from tests.methods.test_plain_scores import new_token
from tests.methods.test_selection import BUDGET, TOKENS, kept, prompt

WINDOW, THRESHOLD, RECENT = 6, 0.08, 2


@dataclass
class Head:
    """What one KV head knows of its tokens."""

    stamp: dict[int, int] = field(default_factory=dict)
    gap: dict[int, int] = field(default_factory=dict)

    def read(self, token: int) -> None:
        self.stamp[token], self.gap[token] = token, 1

    def look(self, queries: list[Tensor], keys: dict[int, Tensor], now: int) -> None:
        """One query of each of the group's heads over the `keys` up to `now`."""
        mass = dict.fromkeys((t for t in keys if t <= now), 0.0)
        for query in queries:
            logit = {t: float(query @ keys[t]) * DIM**-0.5 for t in mass}
            total = sum(math.exp(each) for each in logit.values())
            for token, each in logit.items():
                mass[token] += math.exp(each) / total / len(queries)
        for token, each in mass.items():
            if each >= THRESHOLD and token < now:
                self.gap[token] = max(self.gap[token], now - self.stamp[token])
                self.stamp[token] = now

    def evict(self, alive: list[int], now: int, recurrence: bool, safe: int, recent: int, budget: int) -> list[int]:
        """What stays: longest silence first, or its ratio to the longest gap; of equal ones the older."""

        def rank(token: int) -> tuple[float, int]:
            silence = now - self.stamp[token]
            return (-silence / self.gap[token] if recurrence else -silence), token

        protected = [t for t in alive if t > now - recent]
        rest = [t for t in alive if t <= now - recent]
        rest = sorted((t for t in rest if t >= safe), key=rank) + [t for t in rest if t < safe]
        return sorted([*rest[max(len(alive) - budget, 0) :], *protected])


def walk(method: str, steps: int, every: int, safe: int, **options: object) -> None:
    recent = int(options.get("recent", 1))
    recurrence, budget = method == "lazyeviction", BUDGET if not safe else TOKENS + 3
    hand, (query, key, value) = HandLayer(method, budget, window=WINDOW, threshold=THRESHOLD, **options), prompt()
    hand.feed(query, key, value)
    heads, alive = [Head(), Head()], [list(range(TOKENS))] * 2
    for number, head in enumerate(heads):
        for token in range(TOKENS):
            head.read(token)
        keys = {t: key[0, number, t] for t in range(TOKENS)}
        for now in range(TOKENS - WINDOW, TOKENS):
            head.look([query[0, 2 * number + g, now] for g in range(2)], keys, now)
        alive[number] = head.evict(alive[number], TOKENS - 1, recurrence, safe, recent, budget)
    assert kept(hand) == alive
    for step in range(steps):
        now, (asked, more, _) = TOKENS + step, new_token(step)
        key = torch.cat([key, more], 2)
        hand.feed(*new_token(step))
        for number, head in enumerate(heads):
            head.read(now)
            alive[number] = [*alive[number], now]
            head.look(
                [asked[0, 2 * number + g, 0] for g in range(2)], {t: key[0, number, t] for t in alive[number]}, now
            )
            if (step + 1) % every == 0:
                alive[number] = head.evict(alive[number], now, recurrence, safe, recent, budget)
        assert kept(hand) == alive, step


@pytest.mark.parametrize("safe", [0, TOKENS])
def test_raas_evicts_what_has_been_longest_without_attention(safe: int) -> None:
    walk("raas", 12, 1, safe, prompt="keep" if safe else "compete")


@pytest.mark.parametrize("safe", [0, TOKENS])
def test_lazyeviction_evicts_what_is_silent_for_longer_than_it_used_to_be(safe: int) -> None:
    walk("lazyeviction", 12, 4, safe, prompt="keep" if safe else "compete", recent=RECENT, buffer=4)


def test_several_tokens_at_once_stamp_like_one_after_the_other() -> None:
    """A second turn: the stamps and gaps of what stays are those of single steps, where nothing is dropped between."""
    stamps = []
    for lots in ((4,), (1, 1, 1, 1)):
        hand = HandLayer("lazyeviction", TOKENS + 9, window=WINDOW, threshold=THRESHOLD)
        hand.feed(*prompt())
        states, done = [draw(50 + n, 1, heads, 4, DIM) for n, heads in enumerate((4, 2, 2))], 0
        for lot in lots:
            hand.feed(*(part[:, :, done : done + lot] for part in states))
            done += lot
        slots = hand.layer.slots
        assert slots is not None
        order = slots.in_text()[..., : TOKENS + 4]
        stamps.append([slots.extra[name].gather(2, order) for name in ("stamp", "gap")])
    assert all(torch.equal(one, other) for one, other in zip(*stamps, strict=True))
