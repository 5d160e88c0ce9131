"""GVote: kept slots and chosen budgets against Algorithm 1 written token by token, and what it promises."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedModel

from kvlab.core.attention.pass_view import PassView
from kvlab.core.cache import make_cache
from kvlab.core.cache.layers.compressed_layer import CompressedLayer
from kvlab.core.methods import registered
from kvlab.core.methods.eviction.gvote import Ballots, choose_highest, nucleus_size
from kvlab.core.methods.scorers import sampled_queries as future_module
from kvlab.models.load import prepare
from tests.attention.test_queries import Watcher, lively
from tests.cache.layers import draw
from tests.conformance.test_matrix import COMPRESSIBLE
from tests.families import tiny_model

TOKENS, SINKS, SAMPLES = 40, 4, 5
SMALL = {"p_nuc": 0.3, "recent": 3, "samples": SAMPLES, "n_future": 8}


def noise_of_layer(layer: int) -> torch.Generator:
    return torch.Generator().manual_seed(100 + layer)


def prefill(
    model: PreTrainedModel, ids: torch.Tensor, mask: torch.Tensor | None = None, watcher=None, seed: int = 0, **options
) -> list[CompressedLayer]:
    """The compressed layers after a prompt."""
    mask = torch.ones_like(ids) if mask is None else mask
    cache = make_cache(model, "gvote", observer=watcher, seed=seed, **(SMALL | options))
    with torch.inference_mode():
        model(ids, attention_mask=mask, position_ids=(mask.cumsum(-1) - 1).clamp_min(0), past_key_values=cache)
    return cache.compressed_layers()


def text(rows: int = 1, tokens: int = TOKENS) -> torch.Tensor:
    return torch.randint(3, 97, (rows, tokens), generator=torch.Generator().manual_seed(8))


def positions(layer: CompressedLayer, row: int = 0) -> list[list[int]]:
    assert layer.slots is not None
    return [sorted(p[v].tolist()) for p, v in zip(layer.slots.position[row], layer.slots.valid[row], strict=True)]


def nucleus(attention: torch.Tensor, among: list[int], share: float) -> int:
    total, mass, size = sum(float(attention[j]) for j in among), 0.0, 0
    for j in sorted(among, key=lambda j: -float(attention[j])):
        mass, size = mass + float(attention[j]) / total, size + 1
        if mass >= share:
            break
    return size


@torch.no_grad()
def algorithm_1(layer_pass: PassView, layer: int, options: dict) -> list[list[set[int]]]:
    """For each KV head of batch row 0 the top-k set of every sample, query head after query head."""
    states, group = layer_pass.hidden_states[0].float(), layer_pass.query.shape[1] // layer_pass.key.shape[1]
    mean, deviation = states[SINKS:].mean(0), states[SINKS:].std(0)
    noise = torch.randn(SAMPLES, states.shape[1], generator=noise_of_layer(layer))
    query = layer_pass.project_queries((mean + deviation * noise)[None])[0]  # (Hq, samples, d)
    turn = [layer_pass.rotary.turn(query, torch.full(query.shape[:2], TOKENS + ahead)) for ahead in range(8)]
    if options.get("rope_mode") == "sampled":
        future = torch.stack([turn[(2 * s + 1) * 8 // (2 * SAMPLES)][:, s] for s in range(SAMPLES)], 1)
    else:
        future = torch.stack(turn).mean(0)
    among = list(range(0 if options.get("count_sinks") else SINKS, TOKENS))
    steps = options.get("step_queries", 1)
    sets: list[list[set[int]]] = []
    for head in range(layer_pass.key.shape[1]):
        key, mine = layer_pass.key[0, head], range(head * group, (head + 1) * group)
        rows = {(h, t): torch.softmax(key @ layer_pass.query[0, h, t] * layer_pass.scaling + causal(t), 0) for h in mine
                for t in range(TOKENS - steps, TOKENS)}  # fmt: skip
        wishes = {
            (h, s): torch.softmax(key @ future[h, s] * layer_pass.scaling, 0) for h in mine for s in range(SAMPLES)
        }
        if options.get("group") == "mean":
            rows = {(0, t): sum(rows[h, t] for h in mine) / group for t in range(TOKENS - steps, TOKENS)}
            wishes = {(0, s): sum(wishes[h, s] for h in mine) / group for s in range(SAMPLES)}
        chosen_by = []
        for (h, _), wish in wishes.items():
            sizes = [nucleus(row, among, options["p_nuc"]) for (of, _), row in rows.items() if of == h]
            k = max(options.get("minimum", 1), round(sum(sizes) / len(sizes)))
            chosen_by.append(set(sorted(among, key=lambda j: -float(wish[j]))[:k]))
        sets.append(chosen_by)
    return sets


def causal(row: int) -> torch.Tensor:
    return torch.zeros(TOKENS).masked_fill(torch.arange(TOKENS) > row, -math.inf)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"rope_mode": "sampled"},
        {"count_sinks": True, "floors": False},
        {"preset": "paper", "count_sinks": True, "floors": False},
        {"group": "mean"},
        {"minimum": 6},
        {"step_queries": 4, "p_nuc": 0.6},
    ],
    ids=str,
)
@pytest.mark.parametrize("family", ["llama", "qwen3", "falcon-multi-query"])
def test_against_algorithm_1(family: str, options: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kept = union of every sample's top k and the floors; the budget reported is its size; ballots count samples."""
    monkeypatch.setattr(future_module, "random_source", lambda seen, device: noise_of_layer(seen.module.layer_idx))
    model, watcher = lively(family), Watcher()
    options = SMALL | options
    dropped = 0
    for layer in prefill(model, text(), watcher=watcher, **options):
        sets = algorithm_1(watcher.seen[layer.layer_idx], layer.layer_idx, options)
        recent = range(TOKENS - (options["recent"] if options.get("floors", True) else 1), TOKENS)
        floor = {*recent} | ({*range(SINKS)} if options.get("floors", True) else set())
        for head, of_head in enumerate(sets):
            union = set().union(*of_head)
            assert positions(layer)[head] == sorted(union | floor)
            assert layer.budget[0, head] == len(union | floor)
            votes = layer.slots.extra["ballots"][0, head]
            for slot, position in enumerate(layer.slots.position[0, head].tolist()):
                if layer.slots.valid[0, head, slot]:
                    by_sample = {n % SAMPLES for n, one in enumerate(of_head) if position in one}
                    assert votes[slot] == len(by_sample)
            dropped += TOKENS - len(union | floor)
    assert dropped > 0, "the example is too easy"


@given(st.lists(st.floats(0.001, 1), min_size=1, max_size=30), st.floats(0.01, 1))
@settings(deadline=None)
def test_the_nucleus_is_the_smallest_set_that_holds_the_share(weights: list[float], share: float) -> None:
    mass = torch.tensor(weights, dtype=torch.float64) / sum(weights)
    size = int(nucleus_size(mass, share))
    largest = mass.sort(descending=True).values
    assert size >= 1
    assert largest[: size - 1].sum() < share + 1e-9
    assert largest[:size].sum() >= share - 1e-9


@given(st.integers(0, 1000), st.lists(st.integers(0, 12), min_size=3, max_size=3))
@settings(deadline=None)
def test_every_query_gets_as_many_slots_as_its_own_budget(seed: int, counts: list[int]) -> None:
    wish, count = draw(seed, 3, 12), torch.tensor(counts)
    mine = choose_highest(wish, count, max(counts))
    assert torch.equal(mine.sum(-1), count)
    for row in range(3):
        if 0 < counts[row] < 12:
            assert wish[row][mine[row]].min() > wish[row][~mine[row]].max()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("family", COMPRESSIBLE)
def test_the_reported_budget_is_what_is_kept_and_decoding_adds(family: str, dtype: torch.dtype) -> None:
    model = prepare(tiny_model(family, dtype))
    cache = make_cache(model, "gvote", **SMALL)
    with torch.inference_mode():
        model(text(2), past_key_values=cache)
        for step in range(4):
            for layer in cache.compressed_layers():
                assert torch.equal(layer.slots.live(), layer.budget + step)
                assert layer.budget.max() <= TOKENS
                for head in positions(layer):
                    assert set(head) >= {*range(SINKS), *range(TOKENS - 3, TOKENS + step)}
            model(torch.full((2, 1), 9 + step), past_key_values=cache)
    budgets = torch.cat([layer.budget.flatten() for layer in cache.compressed_layers()])
    assert budgets.min() < TOKENS
    assert budgets.unique().numel() > 1, "heads and layers find their own budgets"


@pytest.mark.parametrize("family", COMPRESSIBLE)
def test_padded_rows_in_any_order_get_what_they_would_alone(family: str) -> None:
    model, ids = prepare(tiny_model(family)), text(3)
    mask = torch.ones_like(ids)
    mask[1, :9] = 0
    mask[2, :36] = 0  # four tokens: too short for statistics
    alone = [prefill(model, ids[row : row + 1, int((1 - mask[row]).sum()) :]) for row in range(3)]
    for order in ([0, 1, 2], [2, 1, 0]):
        together = prefill(model, (ids * mask)[order], mask[order])
        for place, row in enumerate(order):
            for here, there in zip(together, alone[row], strict=True):
                assert positions(here, place) == positions(there)
                assert here.budget[place].tolist() == there.budget[0].tolist()


def test_a_seed_decides_everything() -> None:
    model = prepare(tiny_model("llama"))
    first, again = prefill(model, text()), prefill(model, text())
    for one, two in zip(first, again, strict=True):
        assert torch.equal(one.slots.extra["ballots"], two.slots.extra["ballots"])
        assert positions(one) == positions(two)


def test_another_generator_draws_other_samples() -> None:
    model, watcher = prepare(tiny_model("llama")), Watcher()
    prefill(model, text(), watcher=watcher)
    seen, rows = watcher.seen[0], torch.ones(1, TOKENS, dtype=torch.bool)
    queries = []
    for seed in (1, 1, 2):
        seen.generator = torch.Generator().manual_seed(seed)
        with torch.inference_mode():
            queries.append(future_module.FutureQueries().draw(seen, rows, torch.tensor([TOKENS])))
    assert torch.equal(queries[0], queries[1])
    assert (queries[0] - queries[2]).abs().max() > 0.1


@pytest.mark.parametrize("tokens", [1, 2, SINKS, SINKS + 2])
def test_prompts_too_short_for_statistics_are_kept_whole(tokens: int) -> None:
    for layer in prefill(prepare(tiny_model("llama")), text(2, tokens), floors=False, p_nuc=0.01):
        assert (layer.budget == tokens).all()
        assert (layer.slots.live() == tokens).all()
        assert (layer.slots.extra["ballots"][layer.slots.valid] == SAMPLES).all()


def test_without_floors_only_the_newest_token_is_safe() -> None:
    model = prepare(tiny_model("llama"))
    with_floors, bare = prefill(model, text()), prefill(model, text(), floors=False)
    for one, two in zip(with_floors, bare, strict=True):
        for safe, free in zip(positions(one), positions(two), strict=True):
            assert set(free) <= set(safe)
            assert TOKENS - 1 in free
    assert any(set(head).isdisjoint(range(SINKS)) for layer in bare for head in positions(layer))


def test_a_sink_that_holds_the_mass_would_leave_a_step_budget_of_one() -> None:
    """Note the default: the nucleus is taken over the rest, so a sink head keeps what its other attention needs."""
    query, key = torch.ones(1, 2, 1, 8), draw(3, 1, 1, 30, 8) * 0.01
    key[:, :, 0] = 3.0
    seen, everywhere = PassView(query, key, None, None, 1.0), torch.ones(1, 30, dtype=torch.bool)
    rest = everywhere & (torch.arange(30) >= SINKS)
    assert Ballots(count_sinks=True).step_budget(seen, everywhere, everywhere).tolist() == [[[1, 1]]]
    assert Ballots().step_budget(seen, everywhere, rest).min() > 20


def test_it_asks_for_no_budget() -> None:
    assert not registered()["gvote"].needs_budget
    model, ids = prepare(tiny_model("llama")), text()
    kept = []
    for budget in (0.1, 7, 1.0):
        cache = make_cache(model, "gvote", budget, **SMALL)
        with torch.inference_mode():
            model(ids, past_key_values=cache)
        kept.append([positions(layer) for layer in cache.compressed_layers()])
    assert kept[0] == kept[1] == kept[2]
