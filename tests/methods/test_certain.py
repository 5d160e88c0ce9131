"""Where the host knows that every head is over its budget, decisions take fewer operations and give the same table."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from kvlab.core.cache import CompressedCache, make_cache
from kvlab.core.cache.layers import decisions
from kvlab.core.contract.pipeline import Pipeline
from kvlab.core.contract.plan import Plan
from kvlab.core.contract.view import View
from kvlab.core.methods import registered
from kvlab.models.load import prepare
from tests.families import ON_ANY_MODEL, tiny_model

METHODS = [name for name, method in registered().items() if method.needs_budget and method().pipeline().decode]
VARIANTS: list[tuple[str, dict]] = [
    *((name, ON_ANY_MODEL.get(name, {})) for name in METHODS),
    ("keepkv", {"rule": "votes", "threshold": 0.0}),
    ("keepkv", {"rule": "paper"}),
    ("keepkv", {"predict": "current", "threshold": -1.0}),
    ("keepkv", {"space": "unrotated", "mass": "exact"}),
    ("d2o", {"space": "unrotated"}),
    ("d2o", {"variant": "code", "mass": "votes"}),
    ("zsmerge", {"similarity": "cosine", "combine_score": "sum", "space": "unrotated"}),
    ("zsmerge", {"residual": 3, "mass": "bounded"}),
    ("cam", {"draw": "expected", "merge": 4}),
    ("cam", {"variant": "simulation"}),
    ("compose", {"score": "snapkv", "settle": "keepkv", "settle_threshold": -1.0}),
]
# Decisions at every step, for each; decisions about three tokens at once, which the cache brings about, for a third.
CASES = [(*variant, every) for place, variant in enumerate(VARIANTS) for every in ((1, 3) if place % 3 == 0 else (1,))]
PROMPT, STEPS = 40, 4


@cache
def lab_model() -> PreTrainedModel:
    return prepare(tiny_model("llama", num_hidden_layers=2))


def _watched(plans: list[tuple[View, Plan]], certain: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = Pipeline.plan

    def kept(pipeline: Pipeline, view: View) -> Plan:
        over = (view.slots.valid.sum(-1) - view.budget).clamp_min(0)
        made = plan(pipeline, view)
        plans.append((view, made))
        if view.certain:
            assert (over == view.most_excess).all()
            assert (view.slots.valid.sum(-1) - made.keep.sum(-1) == view.most_excess).all()
        return made

    monkeypatch.setattr(Pipeline, "plan", kept)
    monkeypatch.setattr(decisions, "decision_kernel", lambda device: None)  # which makes no plans
    if not certain:
        monkeypatch.setattr(Pipeline, "fills_budget", False)


def _decoded(compressed: CompressedCache) -> Tensor:
    """Logits of a padded batch: a prompt, decode steps, a second turn, decode steps."""
    model = lab_model()
    mask, seen = torch.ones(2, PROMPT, dtype=torch.int64), []
    mask[1, :7] = 0
    ids = torch.arange(2 * PROMPT).view(2, -1) % 90 + 3
    with torch.inference_mode():
        model(ids, attention_mask=mask, past_key_values=compressed)
        for step in range(2 * STEPS):
            width = 5 if step == STEPS else 1
            token = (torch.arange(2 * width).view(2, -1) * 7 + 3 * step) % 90 + 3
            mask = torch.cat([mask, torch.ones(2, width, dtype=torch.int64)], 1)
            seen.append(model(token, attention_mask=mask, past_key_values=compressed).logits[:, -1])
    return torch.stack(seen)


@pytest.mark.parametrize(("method", "options", "every"), CASES)
def test_the_table_is_the_same(method: str, options: dict, every: int, monkeypatch: pytest.MonkeyPatch) -> None:
    plans, tables = [], []
    for certain in (True, False):
        with monkeypatch.context() as patch:
            made: list[tuple[View, Plan]] = []
            _watched(made, certain, patch)
            compressed = make_cache(lab_model(), method, 0.4, compress_every=every, **options)
            tables.append((_decoded(compressed), compressed))
            plans.append(made)
    assert not any(view.certain for view, _ in plans[1])
    torch.testing.assert_close(tables[0][0], tables[1][0], rtol=1e-4, atol=3e-5)
    for ours, theirs in zip(*(compressed.compressed_layers() for _, compressed in tables), strict=True):
        assert ours.slots is not None and theirs.slots is not None
        there = ours.slots.valid
        assert (there == theirs.slots.valid).all()
        for name, column in {**ours.slots.metadata(), "keys": ours.slots.keys, "values": ours.slots.values}.items():
            other = getattr(theirs.slots, name) if name in vars(theirs.slots) else theirs.slots.extra[name]
            torch.testing.assert_close(column[there], other[there], rtol=1e-4, atol=1e-5, msg=name)
        torch.testing.assert_close(ours.evicted_votes, theirs.evicted_votes)


@pytest.mark.parametrize("method", ["h2o", "zsmerge", "keepkv", "cam", "d2o"])
def test_it_comes_to_pass(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Merges and evictions both happen on the short way, or the comparison above would show nothing."""
    plans: list[tuple[View, Plan]] = []
    _watched(plans, True, monkeypatch)
    options = {"merge": 4} if method == "cam" else {}  # the window holds that many at so small a budget
    _decoded(make_cache(lab_model(), method, 0.4, **options))
    short = [plan for view, plan in plans if view.certain and view.most_excess == 1]
    assert len(short) > 2 * STEPS
    assert all(plan.lost is not None for plan in short)
    if method != "h2o":
        active = torch.cat([plan.edges.active.flatten() for plan in short if plan.edges is not None])
        assert active.any()
        assert method == "zsmerge" or not active.all()
