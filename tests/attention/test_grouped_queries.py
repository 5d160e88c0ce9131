"""Merging under grouped queries: exact where a rule says so, least squares where no slot can be, each head's mass kept.

Expected values are written token by token in float64 from the formulas of docs/grouped-queries.md.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kvlab.core.contract.plan import Edges
from kvlab.core.methods import make_method
from tests.cache.layers import DIM, draw
from tests.methods.merging import Layer

GROUPS = [1, 2, 4, 7, 8]
HEADS, TOKENS, BUDGET = 3, 20, 8
SETTINGS = {"predict": "current", "threshold": -1.0, "sinks": 1, "recent": 0.3}


def merged(size: int, seed: int, heads: int = HEADS, steps: int = 0, **options: Any) -> tuple[Layer, Tensor, Tensor]:
    """A layer after its prompt and some steps, the last queries (1, Hq, 1, d), and what they got before the merge."""
    layer = Layer(make_method("keepkv", **SETTINGS | options), BUDGET)
    layer.layer.settings.group = size
    query, key, value = (draw(seed + n, 1, h, TOKENS, DIM) for n, h in enumerate((heads * size, heads, heads)))
    attended = layer.feed(query, key, value)[:, :, -1:]
    for step in range(steps):
        query, key, value = (
            draw(seed + 50 * step + n, 1, h, 1, DIM) for n, h in enumerate((heads * size, heads, heads), 10)
        )
        attended = layer.feed(query, key, value)
    return layer, query[:, :, -1:].double(), attended.double()


def ask(layer: Layer, query: Tensor) -> tuple[Tensor, Tensor]:
    """(output (Hq, d), attention (Hq, S)) of a query over the table as it is now, each head with its own log mass."""
    slots = layer.slots
    group = query.shape[1] // slots.keys.shape[1]
    outputs, masses = [], []
    for index in range(query.shape[1]):
        head = index // group
        log_mass = slots.log_mass[0, head].double()
        if "head_mass" in slots.extra:
            log_mass = log_mass + slots.extra["head_mass"][0, head, :, index % group].double()
        logits = slots.keys[0, head].double() @ query[0, index, 0] * DIM**-0.5 + log_mass
        masses.append(torch.softmax(logits.masked_fill(~slots.valid[0, head], -torch.inf), 0))
        outputs.append(masses[-1] @ slots.values[0, head].double())
    return torch.stack(outputs), torch.stack(masses)


def group_error(layer: Layer, query: Tensor, attended: Tensor) -> float:
    """Summed squared error of the group's outputs over that of nothing."""
    output, _ = ask(layer, query)
    return float((output - attended[0, :, 0]).square().sum() / attended.square().sum())


@pytest.mark.parametrize("steps", [0, 3])
@pytest.mark.parametrize("group", GROUPS)
def test_the_mean_logit_is_exact_at_the_mean_of_the_groups_queries(group: int, steps: int) -> None:
    """The sentence in NearestMerge's docstring; as log of the mean exp logit it was off by .13 at a group of four."""
    layer, query, _ = merged(group, 5, steps=steps, group="mean-logit")
    mean = query.unflatten(1, (HEADS, group)).mean(2)  # (1, H, 1, d)
    _, _, before, _ = layer.notes.decisions[-1]
    for head in range(HEADS):
        valid = before.valid[0, head]
        logits = before.keys[0, head].double() @ mean[0, head, 0] * DIM**-0.5 + before.log_mass[0, head].double()
        true = torch.softmax(logits.masked_fill(~valid, -torch.inf), 0) @ before.values[0, head].double()
        given_output = ask(layer, mean)[0][head]
        assert float((given_output - true).norm() / true.norm()) < 1e-5


@pytest.mark.parametrize("rule", ["paper", "min-norm"])
@pytest.mark.parametrize("group", GROUPS)
def test_rules_that_change_the_key_are_exact_at_the_mean_query_too(group: int, rule: str) -> None:
    layer, query, _ = merged(group, 5, rule=rule)
    mean = query.unflatten(1, (HEADS, group)).mean(2)
    _, _, before, _ = layer.notes.decisions[-1]
    for head in range(HEADS):
        logits = before.keys[0, head].double() @ mean[0, head, 0] * DIM**-0.5 + before.log_mass[0, head].double()
        true = torch.softmax(logits, 0) @ before.values[0, head].double()
        assert float((ask(layer, mean)[0][head] - true).norm() / true.norm()) < 2e-5


@pytest.mark.parametrize("options", [{}, {"per_head_mass": True}, {"group": "mean-exp"}])
def test_a_group_of_one_is_served_exactly(options: dict[str, Any]) -> None:
    layer, query, attended = merged(1, 9, steps=3, **options)
    assert group_error(layer, query, attended) < 1e-10


@pytest.mark.parametrize("group", GROUPS)
def test_each_heads_mass_is_kept_with_a_log_mass_of_its_own(group: int) -> None:
    """Every query head gives a merged slot what it gave its parts, and kept slots what it gave them."""
    layer, query, _ = merged(group, 3, per_head_mass=True)
    _, plan, before, _ = layer.notes.decisions[-1]
    assert plan.edges is not None
    _, masses = ask(layer, query)
    positions = layer.slots.position[0]
    for index in range(HEADS * group):
        head = index // group
        logits = before.keys[0, head].double() @ query[0, index, 0] * DIM**-0.5
        true = torch.softmax(logits, 0)
        expected = {int(before.position[0, head, slot]): float(true[slot]) for slot in plan.keep[0, head].nonzero()}
        for source, target in pairs(plan.edges, head):
            expected[int(before.position[0, head, target])] += float(true[source])
        for slot in layer.slots.valid[0, head].nonzero()[:, 0]:
            assert float(masses[index, slot]) == pytest.approx(expected[int(positions[head, slot])], rel=1e-4)


def pairs(edges: Edges, head: int) -> list[tuple[int, int]]:
    """(source, target) of a head's merges."""
    columns = (getattr(edges, name)[0, head].tolist() for name in ("source", "target", "active"))
    return [(source, target) for source, target, active in zip(*columns, strict=True) if active]


@pytest.mark.parametrize("group", GROUPS)
def test_the_fit_equals_the_least_squares_written_out(group: int) -> None:
    """Value: heads' exact values by squared mass. Log mass: least squares of the masses. No step away is better."""
    layer, query, _ = merged(group, 21)
    _, plan, before, _ = layer.notes.decisions[-1]
    assert plan.edges is not None
    for head in range(HEADS):
        key, value = before.keys[0, head].double(), before.values[0, head].double()
        queries = query[0, head * group : (head + 1) * group, 0]
        attention = torch.softmax(queries @ key.T * DIM**-0.5, -1)
        table = layer.table(head)
        for target in {target for _, target in pairs(plan.edges, head)}:
            parts = [target, *(source for source, to in pairs(plan.edges, head) if to == target)]
            mass = attention[:, parts].sum(1)
            exact = torch.stack([attention[g, parts] @ value[parts] / mass[g] for g in range(group)])
            wanted = (mass[:, None].square() * exact).sum(0) / mass.square().sum()
            slot = table[int(before.position[0, head, target])]
            torch.testing.assert_close(slot["value"].double(), wanted, rtol=1e-4, atol=1e-5)
            free = torch.stack(
                [torch.exp(queries[g] @ slot["key"].double() * DIM**-0.5) for g in range(group)]
            ) / torch.exp(queries @ key.T * DIM**-0.5).sum(1)

            def loss(log_mass: float, free: Tensor = free, mass: Tensor = mass) -> float:
                return float((free * torch.tensor(log_mass).double().exp() - mass).square().sum())

            best = float(slot["log_mass"])
            assert all(loss(best) <= loss(best + step) * (1 + 1e-6) for step in (-0.3, -0.01, 0.01, 0.3))


@pytest.mark.parametrize("group", [2, 4, 7, 8])
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10_000), scale=st.sampled_from([0.5, 1.0, 2.0]))
def test_least_squares_loses_no_more_than_the_mean_rules(group: int, seed: int, scale: float) -> None:
    """The group's error over a layer of 16 KV heads, a dozen merges each."""
    errors = {}
    for name, options in {"ours": {}, "logit": {"group": "mean-logit"}, "exp": {"group": "mean-exp"}}.items():
        layer = Layer(make_method("keepkv", **SETTINGS | options), BUDGET)
        layer.layer.settings.group = group
        query = scale * draw(seed, 1, 16 * group, TOKENS, DIM)
        attended = layer.feed(query, draw(seed + 1, 1, 16, TOKENS, DIM), draw(seed + 2, 1, 16, TOKENS, DIM))
        errors[name] = group_error(layer, query[:, :, -1:].double(), attended[:, :, -1:].double())
    assert errors["ours"] <= min(errors["logit"], errors["exp"])


def test_the_fit_over_a_window_is_the_weighted_one() -> None:
    """With `ema` a prompt's last queries count by alpha to the power of their age."""
    options = {"predict": "ema", "group": "least-squares", "window": 4, "alpha": 0.7, "recent": 0.6}
    layer, _, _ = merged(2, 33, heads=1, **options)
    _, plan, before, _ = layer.notes.decisions[-1]
    assert plan.edges is not None
    query, key, value = draw(33, 1, 2, TOKENS, DIM).double(), before.keys[0, 0].double(), before.values[0, 0].double()
    target = next(target for _, target in pairs(plan.edges, 0) if target < TOKENS - 4)
    parts = [target, *(source for source, to in pairs(plan.edges, 0) if to == target)]
    top, bottom = torch.zeros(DIM).double(), 0.0
    for age in range(4):
        for head in range(2):
            row = TOKENS - 1 - age
            attention = torch.softmax(key[: row + 1] @ query[0, head, row] * DIM**-0.5, 0)
            mass = attention[parts].sum()
            top += 0.7**age * mass * (attention[parts] @ value[parts])
            bottom += 0.7**age * float(mass**2)
    slot = layer.table()[int(before.position[0, 0, target])]
    torch.testing.assert_close(slot["value"].double(), top / bottom, rtol=1e-4, atol=1e-5)


def test_the_log_masses_of_heads_are_in_the_bytes() -> None:
    plain, own = (merged(4, 1, **options)[0] for options in ({}, {"per_head_mass": True}))
    assert own.layer.tables[0].slot_bytes() - plain.layer.tables[0].slot_bytes() == 4 * 4


def test_predicted_averages_are_exact_for_no_query() -> None:
    layer, query, attended = merged(1, 5, predict="ema")
    assert group_error(layer, query, attended) > 1e-4
