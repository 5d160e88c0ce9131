"""Plain loops that choose slots as the papers say, one head at a time; and tables of slots to choose from."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from kvlab.core.contract.sparse_attention import Chosen, Held
from kvlab.core.methods.sparse_attention import sparse_attention_of

SCALING = 0.4


def held(seed: int = 0, slots: int = 41, holes: bool = False, group: int = 2, **given) -> tuple[Tensor, Held]:
    """(queries (2, 2, G, 8), slots of which the newest is the last); with `holes` some are free, others weighted."""
    draw = torch.Generator().manual_seed(seed)
    query = torch.randn(2, 2, group, 8, generator=draw)
    keys, values = (torch.randn(2, 2, slots, 8, generator=draw) for _ in range(2))
    position = torch.arange(slots, dtype=torch.int32).expand(2, 2, -1).clone()
    bias = None
    if holes:
        position[torch.rand(2, 2, slots, generator=draw) < 0.2] = -1
        position[..., -1] = slots - 1
        bias = torch.rand(2, 2, 1, slots, generator=draw).masked_fill(position[:, :, None] < 0, -math.inf)
    newest = torch.full((2, 2, 1), slots - 1)
    common = {"tokens_seen": torch.tensor([slots, slots]), "scaling": SCALING, "dense": not holes}
    return query, Held(keys, values, position, bias, newest, **(common | given))


def logit(query: Tensor, table: Held, row: int, head: int, member: int, slot: int) -> float:
    """The logit of one query at one slot, -inf at a free one."""
    if int(table.position[row, head, slot]) < 0:
        return -math.inf
    total = sum(float(a) * float(b) for a, b in zip(query[row, head, member], table.keys[row, head, slot], strict=True))
    bias = 0.0 if table.bias is None else float(table.bias[row, head, 0, slot])
    return total * table.scaling + bias


def mean_attention(scores: list[list[float]]) -> list[float]:
    """Mean over query heads of the softmax of `scores` (one list a query head)."""
    shares = []
    for own in scores:
        total = sum(math.exp(one) for one in own)
        shares.append([math.exp(one) / total for one in own])
    return [sum(column) / len(scores) for column in zip(*shares, strict=True)]


def attention(query: Tensor, table: Held, row: int, head: int) -> list[float]:
    """Mean true attention of one head's group at each slot."""
    slots = range(table.count)
    return mean_attention([[logit(query, table, row, head, g, s) for s in slots] for g in range(query.shape[2])])


def live(table: Held, row: int, head: int) -> list[int]:
    return [slot for slot in range(table.count) if int(table.position[row, head, slot]) >= 0]


def top(score: list[float], allowed: list[int], count: int, first: list[int]) -> set[int]:
    """The `count` slots of highest score among those `allowed`, after those that come `first`."""
    ranked = sorted(allowed, key=lambda slot: (slot not in first, -score[slot]))
    return set(ranked[:count])


def heads() -> list[tuple[int, int]]:
    return [(row, head) for row in range(2) for head in range(2)]


HOLES = pytest.mark.parametrize("holes", [False, True], ids=["dense", "holes"])


def chosen(sparse_attention: str, query: Tensor, table: Held) -> Chosen:
    own = sparse_attention_of(sparse_attention)
    assert own is not None
    return own.choose(query, table, own.index(table))


def slots_read(given: Chosen, row: int, head: int, member: int = 0) -> set[int]:
    """The slots that one head reads; none twice."""
    place = (row, head, member)
    slots = given.slots[place].tolist()
    if given.log_weight is not None:
        pairs = zip(slots, given.log_weight[place].tolist(), strict=True)
        slots = [slot for slot, weight in pairs if weight > -math.inf]
    assert len(slots) == len(set(slots))
    return set(slots)


def first_slots(table: Held, count: int, newest: Tensor | None = None) -> Held:
    newest = torch.full((2, 2, 1), count - 1) if newest is None else newest
    bias = None if table.bias is None else table.bias[..., :count]
    states = table.keys[:, :, :count], table.values[:, :, :count]
    return Held(*states, table.position[:, :, :count], bias, newest, table.tokens_seen, table.scaling)
