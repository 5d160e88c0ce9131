"""exactmerge: what it computes on paper is what the executed table gives, and its choices follow from it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlab.core.cache import make_cache
from kvlab.core.cache.table import apply_plan
from kvlab.core.contract.view import Slots, View
from kvlab.core.errors import UserError
from kvlab.core.methods import make_method
from kvlab.core.methods.composition.composed import compose
from kvlab.core.methods.merging.exactmerge import ExactResidual
from kvlab.core.methods.scorers.sampled_queries import FutureQueries
from kvlab.core.methods.settlers.observed_queries import Observed
from kvlab.models.load import prepare
from tests.cache.layers import DIM, HandLayer, draw
from tests.families import tiny_model
from tests.methods.merging import Layer, Notes, prompt

TOKENS, WINDOW = 48, 8


class Spy(ExactResidual):
    """Remembers the last view it settled."""

    seen_views: list[View] = []  # noqa: RUF012

    def settle(self, view, select):
        # The table is rewritten in place afterwards, and the pass's keys with it.
        seen = replace(view.layer_pass, key=view.layer_pass.key.clone())
        Spy.seen_views.append(replace(view, slots=view.slots.map(torch.clone), layer_pass=seen))
        return super().settle(view, select)


def compressed(
    budget: int = 16, seed: int = 0, heads: int = 2, sinks: torch.Tensor | None = None, **options: object
) -> tuple[HandLayer, View]:
    """A prompt through one layer of exactmerge, and the view its decision was made from."""
    hand = HandLayer("exactmerge", budget, window=WINDOW, adaptive=False, **options)
    hand.sinks, pipeline = sinks, hand.layer.settings.pipeline
    settle = pipeline.settle
    assert isinstance(settle, ExactResidual)
    spy = Spy(settle.shares, settle.window, settle.ridge, settle.refit, settle.margin, settle.pivots)
    hand.layer.settings.pipeline = replace(pipeline, settle=spy)
    Spy.seen_views.clear()
    key = draw(seed, 1, 1, 1, DIM) + draw(seed + 1, 1, heads, TOKENS, DIM)
    hand.feed(draw(seed + 2, 1, 2 * heads, TOKENS, DIM), key, draw(seed + 3, 1, heads, TOKENS, DIM))
    return hand, Spy.seen_views[-1]


def window_error(hand: HandLayer, view: View) -> torch.Tensor:
    """(H,) relative error of the window's outputs, every query asked again of the real table."""
    observed = Observed.last_queries(view, WINDOW)
    heads = observed.output.shape[1]
    queries = view.layer_pass.query[:, :, -WINDOW:]
    given_outputs = torch.stack([hand.ask(queries[:, :, row : row + 1])[:, :, 0] for row in range(WINDOW)], 2)
    given_outputs = given_outputs.unflatten(1, (heads, -1)).flatten(2, 3)[0].float()
    true = observed.output[0]
    # Queries before the newest tokens could not see them, but the table holds them: compare the last query only.
    last = torch.arange(true.shape[1]) % WINDOW == WINDOW - 1
    return (given_outputs - true)[:, last].flatten(1).norm(dim=-1) / true[:, last].flatten(1).norm(dim=-1)


def reserved(view: View, share: float) -> torch.Tensor:
    """Residual slots (B, H) of a share of the budget."""
    return (view.budget * share).round().long().minimum(view.budget - 1)


@pytest.mark.parametrize("shares", [(0.0,), (0.2,), (0.4,)])
@pytest.mark.parametrize("refit", [False, True])
@pytest.mark.parametrize("pivots", ["score", "spread"])
def test_the_trial_is_what_the_table_gives(shares: tuple[float, ...], refit: bool, pivots: str) -> None:
    hand, view = compressed(shares=shares, refit=refit, pivots=pivots)
    settle, select = hand.layer.settings.pipeline.settle, hand.layer.settings.pipeline.select
    assert isinstance(settle, ExactResidual)
    observed = Observed.last_queries(view, WINDOW)
    weight = observed.mass.sum(2) + 1e-9
    grouping, keep = settle._group(view, select, reserved(view, shares[0]))
    trial, _ = grouping.trial(observed, keep, view.slots.values, weight)
    rows = torch.ones(observed.mass.shape[2], dtype=torch.bool)
    output = trial.output
    if refit:
        output = output + trial.residual_mass @ trial.refit(observed, rows, settle.ridge)
    last = torch.arange(observed.mass.shape[2]) % WINDOW == WINDOW - 1
    queries = view.layer_pass.query[:, :, -1:]
    executed = hand.ask(queries)[:, :, 0].unflatten(1, (2, -1)).float()
    torch.testing.assert_close(executed, output[:, :, last], rtol=1e-3, atol=1e-4)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 1000), budget=st.integers(1, 40))
def test_budget_votes_and_finiteness(seed: int, budget: int) -> None:
    hand, _ = compressed(budget, seed)
    slots, dropped = hand.layer.slots, hand.layer.evicted_votes
    assert slots is not None
    assert (slots.live() <= budget).all()
    votes = slots.votes.masked_fill(~slots.valid, 0).sum(-1).float()
    torch.testing.assert_close(votes + dropped, torch.full_like(votes, TOKENS))
    for tensor in (slots.keys, slots.values, slots.log_mass[slots.valid]):
        assert torch.isfinite(tensor).all()


def test_the_share_is_chosen_head_by_head_by_its_error() -> None:
    """A head whose dropped tokens are copies of each other merges; the errors it compared say so."""
    hand, view = compressed(shares=(0.0, 0.3), seed=5)
    settle, select = hand.layer.settings.pipeline.settle, hand.layer.settings.pipeline.select
    assert isinstance(settle, ExactResidual)
    observed = Observed.last_queries(view, WINDOW)
    weight = observed.mass.sum(2) + 1e-9
    errors = []
    for share in (0.0, 0.3):
        grouping, keep = settle._group(view, select, reserved(view, share))
        trial, _ = grouping.trial(observed, keep, view.slots.values, weight)
        shift = trial.refit(observed, ~observed.held_back, settle.ridge)
        errors.append(trial.error(observed, observed.held_back, shift))
    evict, merge = errors
    slots = hand.layer.slots
    assert slots is not None
    merged = (slots.votes * slots.valid).amax(-1) > 1
    assert torch.equal(merged, merge < evict)


def test_a_refit_helps_the_queries_it_was_fitted_on() -> None:
    with_refit = window_error(*compressed(shares=(0.3,), refit=True, ridge=1e-3, seed=3))
    without = window_error(*compressed(shares=(0.3,), refit=False, seed=3))
    assert (with_refit < without).all()


def test_merging_beats_evicting_where_tokens_repeat() -> None:
    """Forty copies of two tokens: two residual slots hold them without loss, eviction cannot."""
    key = draw(1, 1, 1, 2, DIM).repeat_interleave(24, 2)
    value = draw(2, 1, 1, 2, DIM).repeat_interleave(24, 2)
    query = draw(3, 1, 2, TOKENS, DIM)
    errors = {}
    for name, shares in (("merge", (0.5,)), ("evict", (0.0,))):
        options = {"adaptive": False, "shares": shares, "refit": False, "pivots": "spread"}
        hand = HandLayer("exactmerge", 12, window=WINDOW, **options)
        true = hand.feed(query, key, value)[:, :, -1:].double()
        errors[name] = float((hand.ask(query[:, :, -1:]) - true).norm() / true.norm())
    assert errors["merge"] < 0.5 * errors["evict"]


STEPS = (1, 1, 1, 5, 1, 1)  # tokens of each pass after the prompt: decoding, a second turn, decoding


def decoded(budget: int, seed: int = 0, **options: object) -> Layer:
    """A prompt and some passes after it, generated tokens competing for the budget."""
    method = make_method("exactmerge", decode="budget", window=WINDOW, adaptive=False, **options)
    layer = Layer(method, budget)
    for step, count in enumerate((TOKENS, *STEPS)):
        layer.feed(*prompt(seed + 10 * step, count, 2, 2))
        assert (layer.slots.live() <= budget).all()
        assert torch.isfinite(layer.slots.keys[layer.slots.valid]).all()
    layer.check_votes(TOKENS + sum(STEPS))
    return layer


@pytest.mark.parametrize("budget", [1, 2, 7, 16, 50, 52])
@pytest.mark.parametrize("shares", [(0.0, 0.1, 0.3), (0.4,)])
def test_decoding_inside_the_budget(budget: int, shares: tuple[float, ...]) -> None:
    for seed in (0, 500):
        decoded(budget, seed, shares=shares)


def test_a_decoded_token_merges_where_the_newest_queries_prefer_it() -> None:
    """What merged changed the newest query's output less than dropping it would have; elsewhere it was dropped."""
    merged, dropped = 0, 0
    for seed in range(0, 300, 100):
        for view, plan, before, after in decoded(12, seed, shares=(0.4,)).notes.decisions[1:]:
            assert plan.edges is not None
            if view.layer_pass.num_new > 1:
                continue
            true = ask(before, view.layer_pass.query)
            error = (ask(after, view.layer_pass.query) - true).flatten(2).norm(dim=-1)
            evicted = apply_plan.apply(before.map(torch.clone), replace(plan, edges=None))
            evicting = (ask(evicted, view.layer_pass.query) - true).flatten(2).norm(dim=-1)
            did = plan.edges.active.any(-1)
            assert (error < evicting)[did].all()
            torch.testing.assert_close(error[~did], evicting[~did])
            merged, dropped = merged + int(did.sum()), dropped + int((~did).sum())
    assert merged > 5 and dropped > 0, "both must have happened"


def ask(slots: Slots, query: torch.Tensor) -> torch.Tensor:
    """(B, H, G, d) attention of the last query over a table."""
    packed = query[:, :, -1].unflatten(1, (slots.keys.shape[1], -1))
    bias = slots.log_mass.masked_fill(~slots.valid, -torch.inf)[:, :, None]
    return torch.softmax(packed @ slots.keys.transpose(-1, -2) * DIM**-0.5 + bias, -1) @ slots.values


def test_scores_go_on_as_decayed_sums() -> None:
    layer = Layer(make_method("exactmerge", decode="budget", window=WINDOW, shares=(0.0,), adaptive=False), 100)
    query, key, value = prompt(0, TOKENS, 2, 2)
    layer.feed(query, key, value)
    score = layer.slots.score[0, :, :TOKENS].clone()
    for step, count in enumerate((1, 3)):
        query, more, value = prompt(50 + step, count, 2, 2)
        layer.feed(query, more, value)
        key = torch.cat([key, more], 2)
        score = torch.nn.functional.pad(score, (0, count)) * (1 - 1 / WINDOW) ** count
        logits = (query @ key.repeat_interleave(2, 1).transpose(-1, -2) * DIM**-0.5)[0].unflatten(0, (2, 2))
        logits = logits.masked_fill(torch.ones(logits.shape[-2:]).triu(key.shape[2] - count + 1).bool(), -torch.inf)
        decay = (1 - 1 / WINDOW) ** torch.arange(count - 1, -1, -1.0)
        score = score + (torch.softmax(logits, -1).mean(1) * decay[:, None]).sum(1)
    order = layer.slots.position[0].int().masked_fill(~layer.slots.valid[0], 10**6).argsort(-1)[:, : key.shape[2]]
    torch.testing.assert_close(layer.slots.score[0].gather(1, order), score, rtol=1e-4, atol=1e-5)


def test_sampled_queries_are_observed_with_their_weight() -> None:
    model, notes = prepare(tiny_model("qwen3")), Notes()
    cache = make_cache(model, "exactmerge", 10, observer=notes, futures=6, window=WINDOW, shares=(0.3,))
    with torch.inference_mode():
        model(torch.arange(3, 51)[None], past_key_values=cache)
        view = notes.decisions[0][0]
        alone = Observed.last_queries(view, WINDOW)
        both = alone.and_future(view, FutureQueries(6, rope_mode="sampled"), 4, 0.5)
    count = alone.weight.shape[-1]
    assert count == 2 * WINDOW and both.weight.shape[-1] == count + 2 * 6
    torch.testing.assert_close(both.weight[..., count:].sum(), 0.5 * alone.weight.sum())
    torch.testing.assert_close(both.mass[:, :, count:].sum(-1), torch.ones_like(both.mass[:, :, count:, 0]))
    assert both.held_back[count:].sum() == 6
    wanted = (both.mass * both.weight[..., None]).sum(2)
    torch.testing.assert_close((both.mass * both.weight[..., None]).sum(2), wanted)


def test_sampled_queries_need_a_score_that_asks_for_hidden_states() -> None:
    with pytest.raises(UserError, match="sampled from hidden states"):
        compose(score="h2o", settle="exactmerge", futures=8)
    assert compose(score="exactmerge", settle="exactmerge", futures=8).pipeline().score.needs_hidden_states


def test_with_sampled_queries_a_padded_row_equals_the_row_alone() -> None:
    model, ids = prepare(tiny_model("llama")), torch.arange(3, 51)[None].repeat(2, 1)
    mask = torch.ones_like(ids)
    mask[1, :9] = 0
    place = (mask.cumsum(-1) - 1).clamp_min(0)

    def after(ids: torch.Tensor, mask: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
        cache = make_cache(model, "exactmerge", 12, futures=6, window=WINDOW)
        grown = torch.cat([mask, mask.new_ones(len(mask), 1)], 1)
        with torch.inference_mode():
            model(ids, attention_mask=mask, position_ids=place, past_key_values=cache)
            following = {"position_ids": place[:, -1:] + 1, "past_key_values": cache}
            return model(ids[:, :1] * 0 + 7, attention_mask=grown, **following).logits[:, -1]

    together = after(ids, mask, place)
    torch.testing.assert_close(together[1:], after(ids[1:, 9:], mask[1:, 9:], place[1:, 9:]), rtol=1e-4, atol=1e-4)


def test_bad_shares_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one share, each between"):
        HandLayer("exactmerge", 8, shares=(0.5, 1.5))
