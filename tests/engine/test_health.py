"""Numerical health is recorded: what is not finite, what grew, and which scales were clipped."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from kvlab.core.choice import MethodChoice
from kvlab.core.methods import make_method
from kvlab.engine import compare
from kvlab.engine.recording.events import growth, lengths, non_finite
from kvlab.requests.compare import CompareRequest
from kvlab.trace import open_run
from tests.methods.merging import Layer, prompt

TOKENS, BUDGET = 30, 12


def last_decision(method: str, **options: object) -> dict[str, torch.Tensor]:
    layer = Layer(make_method(method, **options), BUDGET)
    layer.feed(*prompt(0, TOKENS))
    _, plan, before, after = layer.notes.decisions[-1]
    return growth(lengths(before), plan, lengths(after))


def test_evicting_and_averaging_make_nothing_longer() -> None:
    for method, options in (("h2o", {}), ("zsmerge", {"residual": 0.3}), ("kvmerger", {"loosest": -1.0})):
        found = last_decision(method, **options)
        torch.testing.assert_close(found["key_growth"], torch.ones(2))
        torch.testing.assert_close(found["value_growth"], torch.ones(2))


def test_keys_that_a_rule_rescales_grow_by_what_it_says() -> None:
    options = {"rule": "min-norm", "threshold": -1.0, "sinks": 1, "recent": 0.3}
    layer = Layer(make_method("keepkv", **options), BUDGET)
    layer.feed(*prompt(0, TOKENS))
    _, plan, before, after = layer.notes.decisions[-1]
    edges = plan.edges
    assert edges is not None
    for head in range(2):
        worst = 1.0
        for target in edges.target[0, head][edges.active[0, head]].unique().tolist():
            parts = edges.source[0, head][edges.active[0, head] & (edges.target[0, head] == target)]
            longest = before.keys[0, head, [target, *parts.tolist()]].norm(dim=-1).max()
            worst = max(worst, float(after.keys[0, head, target].norm() / longest))
        assert float(growth(lengths(before), plan, lengths(after))["key_growth"][head]) == pytest.approx(
            worst, rel=1e-5
        )


def test_values_that_are_added_grow() -> None:
    key, value = torch.ones(1, 1, TOKENS, 8), torch.ones(1, 1, TOKENS, 8)
    layer = Layer(make_method("cam", sinks=1, merge=4, draw="expected"), BUDGET)
    layer.feed(torch.ones(1, 1, TOKENS, 8), key, value)
    _, plan, before, after = layer.notes.decisions[-1]
    found = growth(lengths(before), plan, lengths(after))
    assert found["key_growth"].item() == 1
    expected = (after.values.norm(dim=-1) / before.values.norm(dim=-1))[plan.keep].max()
    assert found["value_growth"].item() == pytest.approx(float(expected))
    assert expected > 1.2


def test_infinities_are_counted_where_a_slot_is_valid() -> None:
    layer = Layer(make_method("h2o"), BUDGET)
    layer.feed(*prompt(0, TOKENS))
    slots = layer.slots
    assert non_finite(slots).sum(-1).tolist() == [0, 0]
    first = slots.valid[0, 1].nonzero()[:2, 0]
    slots.keys[0, 1, first[0], 3] = torch.inf
    slots.values[0, 1, first[1], 0] = torch.nan
    slots.keys[0, 0, (~slots.valid[0, 0]).nonzero()[:1, 0]] = torch.nan  # of a slot that is not there
    assert non_finite(slots).sum(-1).tolist() == [0, 2]
    assert non_finite(slots, lengths(slots)).sum(-1).tolist() == [0, 2]


def test_runs_tell(tiny_model_folder: Path, tmp_path: Path) -> None:
    paper = {"rule": "paper", "threshold": -1.0, "guard": 0.001}
    choices = (
        MethodChoice(method="h2o", budget=0.3),
        MethodChoice(method="keepkv", budget=0.3, hyper_parameters=paper),
        MethodChoice(method="cam", budget=0.3, hyper_parameters={"draw": "expected"}),
    )
    request = CompareRequest(
        prompt="Down the rabbit hole. " * 5, model=str(tiny_model_folder), choices=choices, max_new_tokens=4
    )
    runs = {run.record.method: run.steps for run in map(open_run, compare(request, tmp_path))}
    for steps in runs.values():
        assert (steps["non_finite"] == 0).all()
        assert (steps["key_growth"] >= 1).all()
    assert (runs["h2o"][["key_growth", "value_growth"]] == 1).all(axis=None)
    assert runs["keepkv"]["guard_activations"].sum() > 0, "clipped scales"
    assert runs["keepkv"]["key_growth"].max() > 1
    assert runs["cam"]["value_growth"].max() > 1.01
