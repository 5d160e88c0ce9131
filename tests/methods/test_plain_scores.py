"""TOVA, KeyDiff, key norm and LagKV against their formulas, one token at a time."""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import fmean, stdev

import pytest
import torch
from torch import Tensor

from tests.cache.layers import DIM, HandLayer, draw
from tests.methods.test_selection import BUDGET, TOKENS, kept, mass_of, prompt


def new_token(step: int) -> tuple[Tensor, Tensor, Tensor]:
    return draw(90 + step, 1, 4, 1, DIM), draw(190 + step, 1, 2, 1, DIM), draw(290 + step, 1, 2, 1, DIM)


def test_tova_keeps_what_the_newest_query_looks_at() -> None:
    hand, (query, key, value) = HandLayer("tova", BUDGET), prompt()
    hand.feed(query, key, value)
    alive = list(range(TOKENS))
    for step in range(6):
        mass = mass_of(query[:, :, -1:], key[:, :, alive])[:, -1].mean(0)  # over both KV heads, and their groups
        score = dict(zip(alive, mass.tolist(), strict=True))
        newest = TOKENS + step - 1
        while len(alive) > BUDGET:
            alive.remove(min((token for token in alive if token != newest), key=score.__getitem__))
        assert kept(hand) == [alive, alive], step
        query, more, _ = new = new_token(step)
        key = torch.cat([key, more], 2)
        alive = [*alive, TOKENS + step]
        hand.feed(*new)


def length(vector: list[float]) -> float:
    return math.sqrt(sum(x * x for x in vector))


def unusual(keys: dict[int, list[float]]) -> dict[int, float]:
    units = {token: [x / length(key) for x in key] for token, key in keys.items()}
    mean = [fmean(column) for column in zip(*units.values(), strict=True)]
    return {t: -sum(a * b for a, b in zip(unit, mean, strict=True)) / length(mean) for t, unit in units.items()}


def follow(hand: HandLayer, score_of: Callable[[dict[int, list[float]]], dict[int, float]], sinks: int) -> None:
    """A prompt and new tokens, one by one: each head keeps sinks, the newest and the highest scores."""
    query, key, value = prompt()
    hand.feed(query, key, value)
    alive = [list(range(TOKENS)) for _ in range(2)]
    for step in range(6):
        safe = {*range(sinks), TOKENS + step - 1}
        for head in range(2):
            score = score_of({token: key[0, head, token].tolist() for token in alive[head]})
            others = sorted((token for token in alive[head] if token not in safe), key=score.__getitem__)
            alive[head] = sorted(set(alive[head]) - set(others[: len(alive[head]) - BUDGET]))
        assert kept(hand) == alive, step
        query, more, _ = new = new_token(step)
        key = torch.cat([key, more], 2)
        alive = [[*tokens, TOKENS + step] for tokens in alive]
        hand.feed(*new)


def test_keydiff_token_by_token() -> None:
    follow(HandLayer("keydiff", BUDGET), unusual, sinks=0)


def test_key_norm_token_by_token() -> None:
    shortness = lambda keys: {token: -length(key) for token, key in keys.items()}  # noqa: E731
    follow(HandLayer("key-norm", BUDGET, sinks=2), shortness, sinks=2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_where_all_keys_are_of_one_length_the_newest_stay(dtype: torch.dtype) -> None:
    """In the first head: lengths there differ by rounding alone. The second head's do not, and are compared."""
    hand, (query, key, value) = HandLayer("key-norm", BUDGET), prompt()
    key[:, 0] /= torch.tensor([length(one.tolist()) for one in key[0, 0]])[:, None]
    hand.feed(query.to(dtype), key.to(dtype), value.to(dtype))
    assert kept(hand)[0] == list(range(TOKENS - BUDGET, TOKENS))
    rounded = key[0, 1].to(dtype).float().tolist()
    shortest = sorted(range(TOKENS - 1), key=lambda token: length(rounded[token]))[: BUDGET - 1]
    assert kept(hand)[1] == sorted([*shortest, TOKENS - 1])


def test_a_word_that_comes_again_is_no_longer_than_before() -> None:
    """Every third token is one word: its keys, turned by positions, are of one length but for rounding."""
    tokens, budget, steps = 601, 10, 5
    hand, key = HandLayer("key-norm", budget), draw(1, 1, 2, tokens + steps, DIM) * 9
    word = torch.arange(tokens + steps) % 3 == 0
    word[tokens:] = True
    key[:, :, word] = draw(2, 1, 2, 1, DIM) / 9 * (1 + 5e-6 * draw(7, 1, 2, int(word.sum()), 1))
    query, value = draw(3, 1, 4, tokens + steps, DIM), draw(4, 1, 2, tokens + steps, DIM)
    hand.feed(query[:, :, :tokens], key[:, :, :tokens], value[:, :, :tokens])
    for end in range(tokens, tokens + steps):
        newest = torch.arange(end)[word[:end]][-budget:].tolist()
        assert kept(hand) == [newest, newest], end
        hand.feed(query[:, :, end : end + 1], key[:, :, end : end + 1], value[:, :, end : end + 1])


@pytest.mark.parametrize("pads", [0, 3])
def test_keydiff_in_blocks_cuts_back_after_each(pads: int) -> None:
    """Two rows, the second behind padding: what each head holds after the last block, block by block by hand."""
    hand, block = HandLayer("keydiff", 0.5, block=5), 5
    query, key, value = (torch.cat([one, one.flip(2)]) for one in prompt())
    real = torch.ones(2, TOKENS, dtype=torch.int64)
    real[1, :pads] = 0
    output = hand.feed(query, key, value, real)
    for row in range(2):
        own = [int(token) for token in real[row].nonzero()[:, 0]]
        budget, shift = math.floor(0.5 * len(own)), own[0]
        for head in range(2):
            held: list[int] = []
            for first in range(0, len(own), block):  # from the row's own first token on, as if it were alone
                held += own[first : first + block]
                last = held[-1]
                seen = torch.softmax(query[row, 2 * head, last] @ key[row, head, held].mT * DIM**-0.5, 0)
                torch.testing.assert_close(output[row, 2 * head, last], seen @ value[row, head, held])
                score = unusual({token: key[row, head, token].tolist() for token in held})
                others = sorted((token for token in held if token != held[-1]), key=score.__getitem__)
                held = sorted(set(held) - set(others[: max(len(held) - budget, 0)]))
            assert kept(hand, row)[head] == [token - shift for token in held]


def lag_ranks(states: list[tuple[Tensor, Tensor]], sinks: int, lag: int) -> dict[int, float]:
    """Rank over `lag` of every token that has a whole partition after its own; `states` are (key, value) a token."""
    ranks: dict[int, float] = {}
    begin = sinks
    while begin + 2 * lag <= len(states):
        own, after = states[begin : begin + lag], states[begin + lag : begin + 2 * lag]
        scores = [0.0] * lag
        for which in (0, 1):
            deviations = []
            for token in own:
                scaled = []
                for channel in range(DIM):
                    reach = [float(other[which][channel]) for other in after]
                    scaled.append((float(token[which][channel]) - min(reach)) / (max(reach) - min(reach)))
                deviations.append(stdev(scaled))
            whole = sum(math.exp(d) for d in deviations)
            scores = [score + math.exp(d) / whole / 2 for score, d in zip(scores, deviations, strict=True)]
        order = sorted(range(lag), key=scores.__getitem__)
        ranks |= {begin + token: order.index(token) / lag for token in range(lag)}
        begin += lag
    return ranks


@pytest.mark.parametrize(("sinks", "lag", "budget"), [(4, 8, 20), (0, 5, 14), (4, 8, 9), (4, 50, 14), (1, 13, 30)])
def test_lagkv_partition_by_partition(sinks: int, lag: int, budget: int) -> None:
    hand, (query, key, value) = HandLayer("lagkv", budget, sinks=sinks, lag=lag), prompt()
    hand.feed(query, key, value)
    for head, found in enumerate(kept(hand)):
        ranks = lag_ranks([(key[0, head, t], value[0, head, t]) for t in range(TOKENS)], sinks, lag)
        # What has no range stays longest, its oldest going first; of equal ranks the earlier partition's goes first.
        order = sorted(range(sinks, TOKENS - 1), key=lambda token: (ranks.get(token, 1.0), token))
        assert found == sorted(set(range(TOKENS)) - set(order[: TOKENS - budget]))


def test_lagkv_of_a_padded_row_is_its_own() -> None:
    query, key, value = (torch.cat([first, second]) for first, second in zip(prompt(), prompt(40), strict=True))
    padding = torch.ones(2, TOKENS, dtype=torch.bool)
    padding[1, :11] = False
    both = HandLayer("lagkv", 14, lag=6)
    both.feed(query, key, value, padding)
    alone = HandLayer("lagkv", 14, lag=6)
    alone.feed(query[1:, :, 11:], key[1:, :, 11:], value[1:, :, 11:])
    slots = both.layer.slots
    assert [sorted(p[v].tolist()) for p, v in zip(slots.position[1], slots.valid[1], strict=True)] == kept(alone)


def test_random_keeps_a_uniform_sample_of_the_text() -> None:
    """Each token has its own number for good, so what stays after each step is the best of all tokens so far."""
    hand = HandLayer("random", BUDGET)
    hand.feed(*prompt())
    number = [dict(drawn(hand, head)) for head in range(2)]
    for step in range(12):
        hand.feed(*new_token(step))
        newest = TOKENS + step
        for head in range(2):
            number[head] |= drawn(hand, head)
            rest = sorted((t for t in number[head] if t != newest), key=lambda t: -number[head][t])
            assert kept(hand)[head] == sorted([*rest[: BUDGET - 1], newest])
    assert number[0] != number[1]
    # Over many heads every token is kept equally often, as far as chance allows: four standard deviations.
    many = HandLayer("random", 10)
    many.feed(*(draw(seed, 1, 2000, 20, 1) for seed in range(3)))
    assert many.layer.slots is not None
    position = many.layer.slots.position[many.layer.slots.valid].long()
    times = torch.bincount(position, minlength=20)[:-1]
    expected = 2000 * 9 / 19
    assert (times - expected).abs().max() < 4 * math.sqrt(expected * (1 - 9 / 19))


@pytest.mark.parametrize(
    ("budget", "recent", "buffer", "cuts"), [(12, 1, 2, 3), (16, 4, 4, 2), (9, 2, 1, 5), (30, 8, 8, 4)]
)
def test_fresh_draws_survive_by_their_closed_form(budget: int, recent: int, buffer: int, cuts: int) -> None:
    """Of K drawn slots and W newer ones in a head an old token survives E cuts with (K / (K + W))^E."""
    heads, prompted = 1500, 3
    many = HandLayer("random", budget, prompt="keep", draws="anew", recent=recent, buffer=buffer)
    many.feed(*(draw(seed, 1, heads, prompted, 1) for seed in range(3)))
    kept_slots = budget - prompted - recent
    first = next(cut for cut in range(1, 99) if prompted + cut * buffer > budget)  # the decision that has to evict
    cut_down = prompted + first * buffer - budget  # that many only, then `buffer` at a time
    for step in range((first + cuts) * buffer):
        many.feed(*(draw(9 * step + seed, 1, heads, 1, 1) for seed in range(3, 6)))
    slots = many.layer.slots
    assert slots is not None
    assert (slots.valid.sum(-1) == budget).all()
    there = torch.zeros(heads, prompted + (first + cuts) * buffer)
    there.scatter_add_(1, slots.position[0].long().masked_fill(~slots.valid[0], 0), slots.valid[0].float())
    assert there[:, :prompted].all() and there[:, -recent:].all()
    at_first = kept_slots / (kept_slots + cut_down)
    expected = at_first * (kept_slots / (kept_slots + buffer)) ** cuts
    first_faced = prompted + kept_slots + cut_down  # tokens before it faced every cut
    share = there[:, prompted:first_faced].mean(0)
    assert (share - expected).abs().max() < 4.5 * math.sqrt(expected * (1 - expected) / heads)


def drawn(hand: HandLayer, head: int) -> list[tuple[int, float]]:
    """(position, number) of the tokens that are there."""
    slots = hand.layer.slots
    assert slots is not None
    valid = slots.valid[0, head]
    return list(zip(slots.position[0, head][valid].tolist(), slots.score[0, head][valid].tolist(), strict=True))
