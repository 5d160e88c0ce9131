"""GRKV: values and keys against their regressions solved slot by slot, and what a regression promises."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from kvlab.core.methods import make_method
from kvlab.core.methods.settlers.global_ridge import ridge_step
from tests.cache.layers import DIM, draw
from tests.methods.merging import ROTARY, Layer
from tests.methods.test_selection import TOKENS, prompt

BUDGET, WINDOW, ROWS = 14, 3, 5


def attention(query: Tensor, keys: Tensor, sees: list[bool]) -> Tensor:
    logits = [float(query @ key) / math.sqrt(DIM) if seen else -math.inf for key, seen in zip(keys, sees, strict=True)]
    top = max(logits)
    weights = [math.exp(each - top) for each in logits]
    return torch.tensor([each / sum(weights) for each in weights], dtype=torch.float64)


def by_descent(rows: Tensor, gap: Tensor, ridge: float) -> Tensor:
    """The minimum of |rows W - gap|^2 + ridge |W|^2 from stacked least squares, not from a formula of it."""
    stacked = torch.cat([rows, math.sqrt(ridge) * torch.eye(rows.shape[1], dtype=rows.dtype)])
    return torch.linalg.lstsq(
        stacked, torch.cat([gap, gap.new_zeros(rows.shape[1], gap.shape[1])]), driver="gelsd"
    ).solution


def test_a_ridge_step_is_the_minimum() -> None:
    rows, gap = draw(1, 6, 9), draw(2, 6, 4)
    least = by_descent(rows.double(), gap.double(), 0.3)
    torch.testing.assert_close(ridge_step(rows, gap, 0.3).double(), least, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("untouched", [0.0, 0.3])
@pytest.mark.parametrize("keys", [False, True])
@pytest.mark.parametrize("ridge", [0.01, 1.0])
def test_survivors_are_refitted_slot_by_slot(untouched: float, keys: bool, ridge: float) -> None:
    options = {"window": WINDOW, "kernel": 1, "rows": ROWS, "ridge": ridge, "untouched": untouched, "refit_keys": keys}
    layer, plain = (
        Layer(make_method("grkv", **options), BUDGET, ROTARY),
        Layer(make_method("snapkv", window=WINDOW, kernel=1), BUDGET),
    )
    query, key, value = prompt()
    for each in (layer, plain):
        each.feed(query, key, value)
    for head in range(2):
        table, before = layer.table(head), plain.table(head)
        assert sorted(table) == sorted(before), "the same slots stay as without"
        kept = sorted(table)
        score = {t: float(table[t]["score"]) for t in kept}
        fixed = sorted(kept, key=lambda t: -score[t])[: int(len(kept) * untouched)]
        asked = [(g, t) for g in (2 * head, 2 * head + 1) for t in range(TOKENS - ROWS, TOKENS)]
        queries = {at: query[0, at[0], at[1]].double() for at in asked}
        k, v = (torch.stack([each[0, head, t] for t in kept]).double() for each in (key, value))
        target = torch.stack([
            attention(queries[at], key[0, head].double(), [t <= at[1] for t in range(TOKENS)]) @ value[0, head].double()
            for at in asked
        ])  # fmt: skip
        free = [t not in fixed for t in kept]
        new_key = k.clone()
        if keys:
            wanted = []
            for at, goal in zip(asked, target, strict=True):
                mass = attention(queries[at], k, [t <= at[1] for t in kept])
                now = mass @ v
                change = torch.stack(
                    [mass[i] * (v[i] - now) for i in range(len(kept))]
                )  # (E, d): of the output by a logit
                wanted.append(by_descent(change.T, (goal - now)[:, None], ridge)[:, 0])
            scaled = torch.stack([queries[at] for at in asked]) / math.sqrt(DIM)
            moved = by_descent(scaled, torch.stack(wanted), ridge).T  # (E, d)
            new_key = k + moved * torch.tensor(free)[:, None]
        mass = torch.stack([attention(queries[at], new_key, [t <= at[1] for t in kept]) for at in asked])
        shift = by_descent(mass[:, free], target - mass @ v, ridge)
        new_value = v.clone()
        new_value[free] += shift
        for place, token in enumerate(kept):
            torch.testing.assert_close(table[token]["key"].double(), new_key[place], atol=2e-4, rtol=2e-3)
            torch.testing.assert_close(table[token]["value"].double(), new_value[place], atol=2e-3, rtol=2e-3)


@pytest.mark.parametrize("keys", [False, True])
def test_the_window_gets_back_what_it_had(keys: bool) -> None:
    """Nearly all of it with hardly any ridge, and never less than by eviction alone: judged by asking again."""
    query, key, value = prompt()
    lost = {}
    for ridge in (1e-6, 0.1, 10.0, 1e6):
        layer = Layer(
            make_method("grkv", window=WINDOW, kernel=1, rows=1, ridge=ridge, untouched=0.0, refit_keys=keys), BUDGET
        )
        whole = layer.feed(query, key, value)[:, :, -1:]
        lost[ridge] = float((layer.ask(query[:, :, -1:]) - whole).norm() / whole.norm())
    assert lost[1e-6] < 1e-2 < lost[1e6]
    assert lost[1e-6] <= lost[0.1] <= lost[10.0] <= lost[1e6]


def test_nothing_changes_where_nothing_leaves() -> None:
    layer, (query, key, value) = Layer(make_method("grkv", window=WINDOW), TOKENS), prompt()
    layer.feed(query, key, value)
    torch.testing.assert_close(layer.slots.values, value)
    torch.testing.assert_close(layer.slots.keys, key)
