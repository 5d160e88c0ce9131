"""Averaging un-rotated keys, and mass rules: the same properties for every merging method."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from kvlab.core.attention.layer_handoff import AttentionCall
from kvlab.core.contract.plan import Edges
from kvlab.core.contract.view import Slots
from kvlab.core.methods import make_method
from tests.cache.layers import DIM, draw
from tests.methods.merging import ROTARY, Layer, prompt

TOKENS, STEPS, BUDGET = 30, 5, 12
MERGING: list[tuple[str, dict[str, Any]]] = [
    ("zsmerge", {"residual": 0.3, "similarity": "cosine"}),
    ("zsmerge", {"residual": 0.3, "prefill": "similarity"}),
    ("keepkv", {"threshold": -1.0}),
    ("keepkv", {"threshold": -1.0, "rule": "votes", "predict": "current"}),
    ("kvmerger", {"longest_set": 8, "loosest": -1.0}),
    ("pyramid-pool", {"pooling": "mean"}),
    ("pyramid-pool", {"pooling": "mean", "variant": "paper", "window": 3, "repool": "literal"}),
    ("d2o", {}),
    ("d2o", {"variant": "code"}),
]


def run(method: str, options: dict[str, Any], group: int = 1, seed: int = 0, rotary: bool = True) -> Layer:
    layer = Layer(make_method(method, **options), BUDGET, ROTARY if rotary else None)
    layer.feed(*prompt(seed, TOKENS, 2, group))
    for step in range(STEPS):
        layer.feed(*prompt(seed + 100 + step, 1, 2, group))
    return layer


def log_masses(slots: Slots, query: torch.Tensor) -> torch.Tensor:
    """(B, H, G, S) float64 logit plus log mass of every slot."""
    packed = query[:, :, -1].double().unflatten(1, (slots.keys.shape[1], -1))
    return packed @ slots.keys.double().transpose(-1, -2) * DIM**-0.5 + slots.log_mass.double()[:, :, None]


def groups(edges: Edges, head: int) -> dict[int, list[int]]:
    """The sources of each target."""
    found: dict[int, list[int]] = {}
    for source, target, active in zip(
        edges.source[0, head].tolist(), edges.target[0, head].tolist(), edges.active[0, head].tolist(), strict=True
    ):
        if active:
            found.setdefault(target, []).append(source)
    return found


@pytest.mark.parametrize("space", ["rotated", "unrotated"])
@pytest.mark.parametrize(("method", "options"), MERGING)
def test_exact_mass_is_the_summed_mass_of_the_parts(method: str, options: dict, space: str) -> None:
    layer = run(method, options | {"mass": "exact", "space": space})
    merges = 0
    for view, plan, before, after in layer.notes.decisions:
        if plan.edges is None:
            continue
        was, now = log_masses(before, view.layer_pass.query), log_masses(after, view.layer_pass.query)
        for head in range(2):
            for target, sources in groups(plan.edges, head).items():
                expected = torch.logsumexp(was[0, head, 0, [target, *sources]], 0)
                torch.testing.assert_close(now[0, head, 0, target], expected, rtol=1e-5, atol=1e-5)
                merges += 1
    assert merges > 0


@pytest.mark.parametrize(("method", "options"), MERGING)
def test_without_mass_a_merged_slot_gets_less(method: str, options: dict) -> None:
    """The exactness test can fail: with no mass rule some slot differs."""
    layer = run(method, options | {"mass": "none"})
    worst = 0.0
    for view, plan, before, after in layer.notes.decisions:
        if plan.edges is not None:
            was, now = log_masses(before, view.layer_pass.query), log_masses(after, view.layer_pass.query)
            for target, sources in groups(plan.edges, 0).items():
                wanted = torch.logsumexp(was[0, 0, 0, [target, *sources]], 0)
                worst = max(worst, abs(float(now[0, 0, 0, target] - wanted)))
    assert worst > 0.1


@pytest.mark.parametrize(("method", "options"), MERGING)
def test_bounded_mass_is_exact_where_that_is_below_votes(method: str, options: dict) -> None:
    layer = run(method, options | {"mass": "bounded"})
    view, plan, before, after = layer.notes.decisions[0]
    assert plan.edges is not None
    was, now = log_masses(before, view.layer_pass.query), log_masses(after, view.layer_pass.query)
    for target, sources in groups(plan.edges, 0).items():
        gained = (
            torch.logsumexp(was[0, 0, 0, [target, *sources]], 0) - (now - after.log_mass[:, :, None])[0, 0, 0, target]
        )
        expected = gained.clamp_max(after.votes[0, 0, target].double().log())
        torch.testing.assert_close(after.log_mass[0, 0, target].double(), expected, rtol=1e-5, atol=1e-5)


def test_exact_mass_of_a_group_of_heads_keeps_their_mean_mass() -> None:
    layer = run("zsmerge", {"residual": 0.3, "mass": "exact"}, group=3)
    view, plan, before, after = layer.notes.decisions[0]
    assert plan.edges is not None
    was, now = log_masses(before, view.layer_pass.query), log_masses(after, view.layer_pass.query)
    whole = torch.logsumexp(was, -1, keepdim=True)
    for target, sources in groups(plan.edges, 0).items():
        expected = (was - whole)[0, 0][:, [target, *sources]].exp().sum()
        torch.testing.assert_close((now - whole)[0, 0, :, target].exp().sum(), expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(("method", "options"), MERGING)
def test_identical_keys_before_rotation_merge_into_the_pivots_own_key(method: str, options: dict) -> None:
    """One key at all positions: un-rotated averages give it back at the pivot's position, rotated ones do not."""
    plain = draw(7, DIM)

    def run_with(space: str) -> Layer:
        layer = Layer(make_method(method, **options, space=space), BUDGET, ROTARY)
        for start, count in [(0, TOKENS), *((TOKENS + step, 1) for step in range(STEPS))]:
            key = ROTARY.turn(plain.expand(1, 2, count, DIM), torch.arange(start, start + count).expand(1, 2, count))
            layer.feed(draw(start, 1, 2, count, DIM), key, draw(start + 50, 1, 2, count, DIM))
        assert layer.slots.votes.masked_fill(~layer.slots.valid, 0).max() > 1, "nothing was merged"
        return layer

    def error(layer: Layer) -> float:
        slots = layer.slots
        own = ROTARY.turn(plain.expand_as(slots.keys), slots.position)
        return float((slots.keys - own).norm(dim=-1)[slots.valid].max())

    if options.get("variant") != "code":  # the authors' mean for D2O divides by more than its weights
        assert error(run_with("unrotated")) < 1e-4
        assert error(run_with("rotated")) > 1e-2


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("zsmerge", {"sinks": 0, "residual": 0.1, "similarity": "cosine"}),
        ("keepkv", {"sinks": 0, "threshold": 0.99, "rule": "votes"}),
        ("kvmerger", {"heavy": 0.0}),
        ("pyramid-pool", {"pooling": "mean", "sinks": 0, "window": 2}),
        ("d2o", {"sinks": 0}),
    ],
)
def test_identical_tokens_merge_without_any_change_for_any_later_query(method: str, options: dict) -> None:
    """With log(votes) as mass; the first twelve tokens are copies of one, the last five of another."""
    copies = torch.tensor([12, 5])
    key = draw(1, 1, 2, 2, DIM).repeat_interleave(copies, 2)
    value = draw(2, 1, 2, 2, DIM).repeat_interleave(copies, 2)
    layer = Layer(make_method(method, **options, recent=0.6, mass="votes"), 10)
    layer.feed(draw(3, 1, 2, 17, DIM), key, value)
    if method == "d2o":  # compresses at the pass after the prompt; the extra token is one more of the last kind
        key, value = (torch.cat([states, states[:, :, -1:]], 2) for states in (key, value))
        layer.feed(draw(4, 1, 2, 1, DIM), key[:, :, -1:], value[:, :, -1:])
    later = draw(5, 1, 2, 1, DIM)
    logits = later.double() @ key.double().transpose(-1, -2) * DIM**-0.5
    assert layer.slots.votes.max() > 1, "nothing was merged"
    assert (layer.layer.evicted_votes == 0).all()
    torch.testing.assert_close(layer.ask(later), torch.softmax(logits, -1) @ value.double(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("mass", "expected"), [("none", 0.0), ("alpha", 0.3), ("votes", 1.0)])
def test_mass_by_votes(mass: str, expected: float) -> None:
    for method in ("zsmerge", "kvmerger", "pyramid-pool", "d2o"):
        merging = {"kvmerger": {"loosest": -1.0}, "pyramid-pool": {"pooling": "mean"}}.get(method, {})
        slots = run(method, merging | {"mass": mass, "alpha": 0.3}).slots
        assert slots.votes[slots.valid].max() > 1, "nothing was merged"
        torch.testing.assert_close(slots.log_mass[slots.valid], expected * slots.votes[slots.valid].log())


def test_keepkv_stays_exact_when_it_averages_unrotated_keys() -> None:
    """The mean logit is corrected by what turning changes, so all exact rules leave the output as it was."""
    for rule in ("bias", "paper", "min-norm"):
        options = {"rule": rule, "predict": "current", "threshold": -1.0, "space": "unrotated"}
        layer = Layer(make_method("keepkv", **options, sinks=1, recent=0.3), 9, ROTARY)
        query, key, value = prompt(3, 20, 3)
        true = layer.feed(query, key, value)[:, :, -1:].double()
        assert (layer.ask(query[:, :, -1:]) - true).norm() / true.norm() < 1e-5


def test_softcapped_logits_are_capped_before_their_mass_is_summed() -> None:
    layer = Layer(make_method("zsmerge", residual=0.3, mass="exact"), BUDGET)
    query, key, value = prompt(0, TOKENS)
    keys, values = layer.layer.update(3 * key, value)
    layer.layer.attend(query, keys, values, AttentionCall(DIM**-0.5, 2.0))
    view, plan, before, after = layer.notes.decisions[0]
    assert plan.edges is not None

    def capped(slots: Slots) -> torch.Tensor:
        logits = log_masses(slots, view.layer_pass.query) - slots.log_mass.double()[:, :, None]
        return 2.0 * torch.tanh(logits / 2.0) + slots.log_mass.double()[:, :, None]

    for target, sources in groups(plan.edges, 0).items():
        expected = torch.logsumexp(capped(before)[0, 0, 0, [target, *sources]], 0)
        torch.testing.assert_close(capped(after)[0, 0, 0, target], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("rule", ["paper", "min-norm"])
def test_a_rule_with_its_own_mass_takes_no_other(rule: str) -> None:
    with pytest.raises(ValueError, match="mass must be 'rule'") as error:
        make_method("keepkv", rule=rule, mass="votes")
    assert str(error.value).count("\n") == 0
