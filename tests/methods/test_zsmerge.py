"""ZSMerge's residual slots against Algorithm 1 and the authors' chunks, written token by token."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kvlab.core.errors import UserError
from kvlab.core.methods import make_method
from tests.cache.layers import DIM, draw
from tests.methods.merging import Layer, prompt

DECAY = 0.9


def decayed(query: Tensor, key: Tensor) -> list[float]:
    """Equation 5 over a prompt of one head: the score of each token after its last query."""
    score = [0.0] * len(key)
    for row in range(len(query)):
        mass = torch.softmax(key[: row + 1] @ query[row] * DIM**-0.5, 0).tolist()
        score = [DECAY * old + new for old, new in zip(score, mass + [0.0] * (len(key) - row - 1), strict=True)]
    return score


def test_without_residual_slots_it_is_eviction() -> None:
    """B_r = 0: the lowest score leaves, at the prompt and at every step, and no slot stands for more than itself."""
    budget, tokens, sinks = 14, 40, 2
    recent = int(budget * 0.4)
    layer = Layer(make_method("zsmerge", residual=0, sinks=sinks, decay=DECAY), budget)
    query, key, value = prompt(3, tokens, heads=1)
    layer.feed(query, key, value)
    score = dict(enumerate(decayed(query[0, 0], key[0, 0])))
    keys = dict(enumerate(key[0, 0]))

    def leave(count: int) -> None:
        free = sorted(p for p in score if sinks <= p < tokens - recent)
        for position in sorted(free, key=lambda p: score[p])[:count]:
            del score[position]

    leave(tokens - budget)
    for _ in range(20):
        assert sorted(layer.table()) == sorted(score)
        assert all(slot["votes"] == 1 and slot["log_mass"] == 0 for slot in layer.table().values())
        query, key, value = prompt(500 + tokens, 1, heads=1)
        layer.feed(query, key, value)
        keys[tokens], score[tokens] = key[0, 0, 0], 0.0
        held = sorted(score)
        mass = torch.softmax(torch.stack([keys[p] for p in held]) @ query[0, 0, 0] * DIM**-0.5, 0).tolist()
        score |= {p: DECAY * score[p] + new for p, new in zip(held, mass, strict=True)}
        tokens += 1
        leave(1)
    assert layer.layer.evicted_votes is not None
    assert (layer.layer.evicted_votes == tokens - budget).all()


@pytest.mark.parametrize(("slots", "tokens"), [(3, 31), (3, 32), (4, 24), (5, 17), (5, 18), (2, 12)])
def test_the_longer_chunks_of_the_prompt_come_first(slots: int, tokens: int) -> None:
    """As the authors cut it: divmod of what leaves by the residual slots, one more in each of the first."""
    budget = 10
    layer = Layer(make_method("zsmerge", residual=slots, sinks=0, recent=0.2), budget)
    query, key, _ = prompt(1, tokens, heads=1)
    value = torch.arange(float(tokens))[None, None, :, None].expand(1, 1, tokens, DIM).contiguous()
    layer.feed(query, key, value)
    table = sorted(layer.table().items())
    kept = {position for position, slot in table if slot["residual"] == 0}
    gone = [position for position in range(tokens) if position not in kept]
    assert len(gone) == tokens - budget + slots
    size, longer = divmod(len(gone), slots)
    chunks = [size + 1] * longer + [size] * (slots - longer)
    residual = [slot for _, slot in table if slot["residual"] > 0]
    assert [int(slot["votes"]) for slot in residual] == chunks
    for slot, count in zip(residual, chunks, strict=True):
        members, gone = gone[:count], gone[count:]
        assert float(slot["value"][0]) == pytest.approx(sum(members) / count)


def algorithm_1(key: Tensor, score: list[float], split: tuple[int, int, int], kind: str) -> list[list[int]]:
    """The residual slots as lists of tokens: lines 6 to 17, with the scores that the prompt ends with."""
    proximity, context, residual = split
    near: list[int] = []
    middle: list[int] = []
    slots: list[list[int]] = []
    for token in range(len(key)):
        near.append(token)
        if len(near) <= proximity:
            continue
        middle.append(near.pop(0))
        if len(middle) <= context:
            continue
        lowest = min(middle, key=lambda t: score[t])
        middle.remove(lowest)
        if len(slots) + 1 <= residual:
            slots.append([lowest])
            continue
        means = [torch.stack([key[t] for t in members]).mean(0) for members in slots]
        alike = {
            "dot": lambda mean: float(mean @ key[lowest]),  # noqa: B023
            "l2": lambda mean: -float((mean - key[lowest]).norm()),  # noqa: B023
        }[kind]
        slots[max(range(len(slots)), key=lambda r: alike(means[r]))].append(lowest)
    return slots


@pytest.mark.parametrize(("budget", "residual", "tokens"), [(12, 3, 60), (20, 5, 33), (9, 1, 40), (30, 6, 36)])
@pytest.mark.parametrize("kind", ["dot", "l2"])
def test_sequential_filling_is_algorithm_1(budget: int, residual: int, tokens: int, kind: str) -> None:
    options = {"residual": residual, "sinks": 0, "recent": 0.4, "similarity": kind, "prefill": "sequential"}
    layer = Layer(make_method("zsmerge", decay=DECAY, alpha=0.7, **options), budget)
    query, key, value = prompt(8, tokens, heads=2)
    layer.feed(query, key, value)
    proximity = int((budget - residual) * 0.4)
    for head in range(2):
        score = decayed(query[0, head], key[0, head])
        expected = algorithm_1(key[0, head], score, (proximity, budget - residual - proximity, residual), kind)
        given = {p: slot for p, slot in layer.table(head).items() if slot["residual"] > 0}
        assert given.keys() == {members[0] for members in expected}
        for members in expected:
            slot = given[members[0]]
            assert slot["votes"] == len(members)
            assert slot["log_mass"] == pytest.approx(0.7 * torch.tensor(float(len(members))).log())
            for name, states in (("key", key), ("value", value)):
                mean = torch.stack([states[0, head, t] for t in members]).mean(0)
                torch.testing.assert_close(slot[name], mean, rtol=1e-4, atol=1e-5)
    layer.check_votes(tokens)


@pytest.mark.parametrize("prefill", ["chunk", "sequential", "similarity"])
@pytest.mark.parametrize("start", [3, 30])
def test_rows_with_padding_fill_the_same_slots(prefill: str, start: int) -> None:
    """A shorter prompt beside a longer one ends with what it has alone, also where it starts in decoding."""
    budget, long = 10, 34
    states = prompt(4, start, heads=2)
    padded = [torch.cat([draw(9, 1, 2, long - start, DIM), own], 2) for own in states]
    beside = prompt(6, long, heads=2)
    together = Layer(make_method("zsmerge", residual=3, sinks=1, prefill=prefill), budget)
    padding = torch.ones(2, long, dtype=torch.bool)
    padding[0, : long - start] = False
    together.feed(*(torch.cat([own, other]) for own, other in zip(padded, beside, strict=True)), padding)
    alone = Layer(make_method("zsmerge", residual=3, sinks=1, prefill=prefill), budget)
    alone.feed(*states)
    for step in range(12):
        more = prompt(100 + step, 1, heads=2, batch=2)
        together.feed(*more)
        alone.feed(*(part[:1] for part in more))
        for head in range(2):
            ours, theirs = together.table(head), alone.table(head)
            assert ours.keys() == theirs.keys()
            for position, slot in theirs.items():
                torch.testing.assert_close(ours[position]["key"], slot["key"], rtol=1e-4, atol=1e-5)
                assert ours[position]["votes"] == slot["votes"]


def test_residual_is_a_share_or_a_number() -> None:
    with pytest.raises(UserError, match="integer number of slots"):
        make_method("zsmerge", residual=1.5)
    layer = Layer(make_method("zsmerge", residual=4), 12)
    layer.feed(*prompt(0, 30))
    assert (layer.slots.extra["residual"].sum(-1) == 4).all()
