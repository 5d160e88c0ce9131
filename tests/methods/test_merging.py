"""What merging must leave unchanged: the output, the votes, and identical pairs."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cache.layers import DIM, HandLayer, draw

EXACT_RULES = ["paper", "min-norm", "bias"]


def similar_tokens(seed: int, tokens: int, heads: int, spread: float = 0.4) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys that share a direction (so that they merge), and unrelated values; (1, heads, tokens, d)."""
    common = draw(seed, 1, heads, 1, DIM) * 1.5
    return common + spread * draw(seed + 1, 1, heads, tokens, DIM), draw(seed + 2, 1, heads, tokens, DIM)


@pytest.mark.parametrize("rule", EXACT_RULES)
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000), budget=st.integers(6, 11))
def test_keepkv_leaves_the_output_unchanged_at_the_merge_step(rule: str, seed: int, budget: int) -> None:
    """Many merges into few slots at prefill, then one at each decode step: the same query gets the same output."""
    hand = HandLayer("keepkv", budget, rule=rule, predict="current", threshold=-1.0, sinks=1, recent=0.3)
    key, value = similar_tokens(seed, 16, heads=3)
    query = draw(seed + 3, 1, 3, 16, DIM)
    true = hand.feed(query, key, value)[:, :, -1:].double()
    error = (hand.ask(query[:, :, -1:]) - true).norm(dim=-1) / true.norm(dim=-1)
    assert error.max() < 1e-5
    for step in range(4):
        key, value = similar_tokens(seed + 10 * step, 1, heads=3)
        query = draw(seed + 77 + step, 1, 3, 1, DIM)
        attended = hand.feed(query, key, value).double()
        error = (hand.ask(query) - attended).norm(dim=-1) / attended.norm(dim=-1)
        assert error.max() < 1e-5
    assert hand.layer.slots is not None
    assert (hand.layer.slots.live() <= budget).all()


def test_votes_rule_is_not_exact() -> None:
    """The authors' code rule changes the output where the exact ones do not: the exactness test can fail."""
    hand = HandLayer("keepkv", 6, rule="votes", predict="current", threshold=-1.0, sinks=1, recent=0.3)
    key, value = similar_tokens(0, 16, heads=3)
    query = 2 * draw(3, 1, 3, 16, DIM)
    true = hand.feed(query, key, value)[:, :, -1:].double()
    assert ((hand.ask(query[:, :, -1:]) - true).norm(dim=-1) / true.norm(dim=-1)).max() > 1e-3


@pytest.mark.parametrize(
    ("rule", "predict"),
    [("paper", "current"), ("min-norm", "current"), ("bias", "current"), ("votes", "current"), ("votes", "ema")],
)
def test_merging_identical_tokens_is_exact(rule: str, predict: str) -> None:
    """Copies of a token carry no information that merging could lose, for any later query."""
    hand = HandLayer("keepkv", 8, rule=rule, predict=predict, threshold=0.99, sinks=1, recent=0.25)
    key, value = draw(1, 1, 2, 2, DIM).repeat_interleave(8, 2), draw(2, 1, 2, 2, DIM).repeat_interleave(8, 2)
    hand.feed(draw(4, 1, 4, 16, DIM), key, value)
    later = draw(5, 1, 4, 1, DIM)
    logits = (later.double() @ key.double().repeat_interleave(2, 1).transpose(-1, -2)) * DIM**-0.5
    true = torch.softmax(logits, -1) @ value.double().repeat_interleave(2, 1)
    assert hand.layer.slots is not None
    assert hand.layer.slots.votes.max() > 1, "nothing was merged"
    assert hand.layer.evicted_votes is not None
    assert (hand.layer.evicted_votes == 0).all(), "a copy was evicted although its twin was retained"
    torch.testing.assert_close(hand.ask(later), true, rtol=1e-4, atol=1e-5)


def test_paper_rule_counts_its_guard() -> None:
    """Logits near zero make the printed key scale blow up: the guard must act, and be counted."""
    hand = HandLayer("keepkv", 6, rule="paper", predict="current", threshold=-1.0, sinks=1, recent=0.3)
    hand.feed(draw(3, 1, 3, 40, DIM), draw(4, 1, 3, 40, DIM), draw(5, 1, 3, 40, DIM))
    assert hand.layer.guard_activations is not None
    assert hand.layer.guard_activations.sum() > 0
    assert hand.layer.slots is not None
    assert torch.isfinite(hand.layer.slots.keys).all()


def test_below_the_threshold_tokens_are_evicted() -> None:
    hand = HandLayer("keepkv", 6, threshold=1.0, sinks=1, recent=0.3)
    hand.feed(draw(1, 1, 2, 16, DIM), draw(2, 1, 2, 16, DIM), draw(3, 1, 2, 16, DIM))
    assert hand.layer.evicted_votes is not None
    assert (hand.layer.evicted_votes == 10).all()


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("keepkv", {"threshold": -1.0}),
        ("keepkv", {}),
        ("zsmerge", {}),
        ("zsmerge", {"prefill": "similarity", "residual": 0.3}),
        ("zsmerge", {"similarity": "cosine", "residual": 0.2}),
        ("zsmerge", {"similarity": "l2", "residual": 0.2, "combine_score": "sum"}),
    ],
)
@pytest.mark.parametrize("start", [4, 10, 30])
@pytest.mark.parametrize("every", [1, 3])
def test_votes_sum_to_the_tokens_seen(method: str, options: dict, start: int, every: int) -> None:
    """Also where the prompt is shorter than the budget and the cache fills while decoding."""
    hand = HandLayer(method, 12, compress_every=every, **options)
    hand.feed(draw(1, 2, 4, start, DIM), draw(2, 2, 2, start, DIM), draw(3, 2, 2, start, DIM))
    for step in range(25):
        hand.feed(draw(step, 2, 4, 1, DIM), draw(step + 50, 2, 2, 1, DIM), draw(step + 99, 2, 2, 1, DIM))
        slots, dropped = hand.layer.slots, hand.layer.evicted_votes
        assert slots is not None
        assert dropped is not None
        votes = slots.votes.masked_fill(~slots.valid, 0).sum(-1).float()
        torch.testing.assert_close(votes + dropped, torch.full_like(votes, start + step + 1))
        if method == "zsmerge" or options:
            assert (dropped == 0).all(), "this method merges everything"
        assert (slots.live() <= 12).all()


def test_zsmerge_residual_slots_are_weighted_means_and_sinks_stay_whole() -> None:
    hand = HandLayer("zsmerge", 12, residual=0.17, sinks=2, alpha=1.0)
    key, value = draw(2, 1, 2, 40, DIM), draw(3, 1, 2, 40, DIM)
    hand.feed(draw(1, 1, 4, 40, DIM), key, value)
    slots = hand.layer.slots
    assert slots is not None
    residual = slots.extra["residual"] > 0
    assert (residual.sum(-1) == 2).all()
    assert (slots.position[residual] >= 2).all(), "a sink became a residual slot"
    torch.testing.assert_close(slots.log_mass[residual], slots.votes[residual].log())
    # Everything not kept is in a residual slot, so votes-weighted values add up to all that is missing.
    for head in range(2):
        kept = slots.position[0, head][slots.valid[0, head] & ~residual[0, head]].long()
        gone = torch.ones(40, dtype=torch.bool)
        gone[kept] = False
        mine = residual[0, head]
        total = (slots.values[0, head][mine] * slots.votes[0, head][mine][:, None]).sum(0)
        torch.testing.assert_close(total, value[0, head][gone].sum(0), rtol=1e-4, atol=1e-4)


def test_zsmerge_prefill_chunks_are_contiguous() -> None:
    """The authors' prefill: what must go, in position order, cut into chunks of near-equal size."""
    hand = HandLayer("zsmerge", 10, residual=0.3, sinks=0, recent=0.2)
    value = torch.arange(30.0)[None, None, :, None].expand(1, 1, 30, DIM).contiguous()
    hand.feed(draw(1, 1, 1, 30, DIM), draw(2, 1, 1, 30, DIM), value)
    slots = hand.layer.slots
    assert slots is not None
    residual = (slots.extra["residual"] > 0)[0, 0]
    kept = set(slots.position[0, 0][slots.valid[0, 0] & ~residual].tolist())
    gone = torch.tensor([position for position in range(30) if position not in kept], dtype=torch.float32)
    sizes = sorted(slots.votes[0, 0][residual].tolist())
    assert len(sizes) == 3
    assert sizes[-1] - sizes[0] <= 1
    order = slots.position[0, 0][residual].argsort()
    means, start = slots.values[0, 0][residual][order][:, 0], 0
    for mean, count in zip(means, slots.votes[0, 0][residual][order].int().tolist(), strict=True):
        torch.testing.assert_close(mean, gone[start : start + count].mean())
        start += count
