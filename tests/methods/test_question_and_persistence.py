"""Finch and Scissorhands: kept positions from their formulas, and where Finch's keys stand afterwards."""

from __future__ import annotations

import pytest
import torch

from kvlab.core.cache import make_cache
from kvlab.core.errors import UserError
from kvlab.core.methods import make_method
from kvlab.models.load import prepare
from tests.cache.layers import DIM, HandLayer, draw
from tests.families import tiny_model
from tests.methods.test_selection import BUDGET, TOKENS, kept, mass_of, prompt, top

WINDOW = 6


def test_finch_weighs_queries_by_what_they_saw() -> None:
    hand, (query, key, value) = HandLayer("finch", BUDGET, window=WINDOW), prompt()
    hand.feed(query, key, value)
    mass, score = mass_of(query, key), torch.zeros(2, TOKENS)
    for row in range(TOKENS - WINDOW, TOKENS):
        score += (row + 1) * mass[:, row]
    question = list(range(TOKENS - WINDOW, TOKENS))
    for head in range(2):
        best = top(score[head], range(TOKENS - WINDOW), BUDGET - WINDOW)
        assert kept(hand)[head] == sorted([*best, *question])


def test_finch_at_cache_positions_answers_as_a_cache_of_the_kept_keys_from_zero_on() -> None:
    """Keys before rotation, turned to 0, 1, 2, ... by hand: the next query's logits are equal."""
    model, ids = prepare(tiny_model("llama", num_hidden_layers=1)), torch.arange(3, 63)[None]
    tables = {}
    for positions in ("original", "cache"):
        cache = make_cache(model, make_method("finch", window=WINDOW, positions=positions), 20)
        with torch.inference_mode():
            model(ids, past_key_values=cache)
        slots = cache.compressed_layers()[0].slots
        assert slots is not None
        order = slots.in_text()[..., :20]
        tables[positions] = [t.gather(2, order[..., None].expand(*order.shape, 16))[0] for t in (slots.keys,)]
        tables[positions].append(slots.position.gather(2, order)[0])
    (keys, place), (turned, same) = tables["original"], tables["cache"]
    assert torch.equal(place, same)
    query = draw(5, 16)
    for head in range(keys.shape[0]):
        for slot in range(20):
            plain = rotated(keys[head, slot], -int(place[head, slot]))
            expected = rotated(query, 20) @ rotated(plain, slot)  # inside the cache: slot of 20, the query next
            assert float(rotated(query, 60) @ turned[head, slot].double()) == pytest.approx(float(expected), abs=2e-4)


def rotated(state: torch.Tensor, by: int) -> torch.Tensor:
    """Llama's rotation of one vector of 16 numbers."""
    angle = by * 10_000.0 ** (-torch.arange(8, dtype=torch.float64) / 8)
    x, y = state[:8].double(), state[8:].double()
    return torch.cat([x * angle.cos() - y * angle.sin(), y * angle.cos() + x * angle.sin()])


def test_finch_refuses_cache_positions_without_rotation() -> None:
    hand = HandLayer("finch", BUDGET, window=WINDOW, positions="cache")
    with pytest.raises(UserError, match=r"no rotary positions .* use positions 'original'"):
        hand.feed(*prompt())


def unimportant(mass: torch.Tensor, places: list[int], times: list[int]) -> list[int]:
    """How many queries (rows of `mass`) at `times` gave each of `places` less than 1 / slots they saw."""
    counts = [0] * len(places)
    for row, time in zip(mass, times, strict=True):
        saw = [at for at, place in enumerate(places) if place <= time]
        for at in saw:
            counts[at] += float(row[at]) < 1 / len(saw)
    return counts


def test_scissorhands_counts_queries_below_an_equal_share() -> None:
    """After the prompt, and again with the newest queries when a buffer has gathered."""
    window, recent, buffer = 8, 3, 4
    options = {"window": window, "recent": recent, "buffer": buffer, "decode": "budget"}
    hand, (query, key, value) = HandLayer("scissorhands", BUDGET, **options), prompt()
    hand.feed(query, key, value)
    times = list(range(TOKENS - window, TOKENS))
    held = []
    for mass in mass_of(query, key):
        counts = unimportant(mass[times], list(range(TOKENS)), times)
        rest = sorted(range(TOKENS - recent), key=lambda t, counts=counts: (counts[t], -t))
        held.append(sorted([*rest[: BUDGET - recent], *range(TOKENS - recent, TOKENS)]))
    assert kept(hand) == held
    for step in range(buffer):
        new = draw(50 + step, 1, 4, 1, DIM) * 2, draw(60 + step, 1, 2, 1, DIM), draw(70 + step, 1, 2, 1, DIM)
        hand.feed(*new)
        query, key = torch.cat([query, new[0]], 2), torch.cat([key, new[1]], 2)
    end = TOKENS + buffer
    times = list(range(end - window, end))
    for head in range(2):
        places = [*held[head], *range(TOKENS, end)]
        logits = query[0, 2 * head : 2 * head + 2, times] @ key[0, head, places].T * DIM**-0.5
        hidden = torch.tensor([[place > time for place in places] for time in times])
        mass = torch.softmax(logits.masked_fill(hidden, -torch.inf), -1).mean(0)
        counts = dict(zip(places, unimportant(mass, places, times), strict=True))
        rest = sorted(places[:-recent], key=lambda t, counts=counts: (counts[t], -t))
        assert kept(hand)[head] == sorted([*rest[: BUDGET - recent], *places[-recent:]])
