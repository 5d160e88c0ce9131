"""LESS: slots and a low-rank state together, against the formula token by token."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import Tensor

from kvlab.core.cache import CompressedCache, make_cache
from kvlab.core.methods import Method, make_method
from kvlab.core.methods.merging.less import HEAD, NORMALIZER, NUMERATOR, FeatureMaps, new_maps, random_feature_maps
from kvlab.engine.recording.events import answer
from kvlab.models.load import prepare
from tests.cache.layers import DIM, draw
from tests.families import cache_for, tiny_model
from tests.methods.merging import Layer, prompt

HEADS, GROUP, TOKENS, BUDGET, RANK = 2, 2, 30, 12, 8


def less(**options: object) -> Method:
    return make_method("less", weights="untrained", **options)


def noted(layer: Layer) -> dict[str, Tensor]:
    return layer.layer.tables[0].head_state


def maps() -> FeatureMaps:
    return random_feature_maps(0, HEADS, GROUP, DIM, RANK).map(Tensor.double)


class Story:
    """Every token's key and value, to compute from the formula what a query gets."""

    def __init__(self) -> None:
        self.keys = torch.zeros(HEADS, 0, DIM, dtype=torch.float64)
        self.values = torch.zeros_like(self.keys)

    def add(self, key: Tensor, value: Tensor) -> None:
        self.keys, self.values = (
            torch.cat([self.keys, key[0].double()], 1),
            torch.cat([self.values, value[0].double()], 1),
        )

    def output(self, query: Tensor, kept: list[set[int]], seen: int) -> Tensor:
        """(Hq, d): softmax numerator and denominator over kept tokens, and phi(q) psi(k) for every dropped one."""
        rows = []
        for head in range(HEADS * GROUP):
            kv, mine = head // GROUP, head % GROUP
            phi = _phi(query[head].double(), kv, mine)
            top, bottom = torch.zeros(DIM, dtype=torch.float64), 0.0
            for token in range(seen):
                key, value = self.keys[kv, token], self.values[kv, token]
                weight = (query[head].double() @ key * DIM**-0.5).exp() if token in kept[kv] else phi @ _psi(key, kv)
                top, bottom = top + weight * value, bottom + weight
            rows.append(top / bottom)
        return torch.stack(rows)


def _phi(query: Tensor, head: int, mine: int) -> Tensor:
    m = maps()
    hidden = torch.nn.functional.gelu(query @ m.query_in[head, mine])
    return (hidden @ m.query_out[head, mine] + m.query_bias[head, mine]).exp()


def _psi(key: Tensor, head: int) -> Tensor:
    m = maps()
    return (torch.nn.functional.gelu(key @ m.key_in[head]) @ m.key_out[head] + m.key_bias[head]).exp()


@pytest.mark.parametrize("evictor", ["h2o", "streaming-llm"])
def test_every_query_gets_what_the_formula_gives(evictor: str) -> None:
    """After the prompt, for single steps and for several tokens at once; tokens dropped in both phases are in it."""
    layer, story = Layer(less(evictor=evictor), BUDGET), Story()
    states = prompt(0, TOKENS, HEADS, GROUP)
    story.add(*states[1:])
    layer.feed(*states)
    seen = TOKENS
    for step, count in enumerate([1, 1, 3, 1]):
        kept = [set(layer.table(head)) for head in range(HEADS)]
        query, key, value = prompt(70 + step, count, HEADS, GROUP)
        story.add(key, value)
        output = layer.feed(query, key, value)
        for row in range(count):
            here = [known | set(range(seen, seen + row + 1)) for known in kept]
            expected = story.output(query[0, :, row], here, seen + row + 1)
            torch.testing.assert_close(output[0, :, row].double(), expected, rtol=1e-4, atol=1e-5)
        seen += count
    layer.check_votes(seen)


@pytest.mark.parametrize("scores", ["all", "slots"])
def test_h2o_beneath_scores_by_the_formula_with_the_state_or_without(scores: str) -> None:
    """Decoding one token at a time: each slot's sum over queries of its share of everything, or of the slots alone."""
    layer, m = Layer(less(scores=scores), BUDGET), maps()
    query, key, value = prompt(0, TOKENS, HEADS, GROUP)
    layer.feed(query, key, value)
    sums = [{p: float(slot["score"]) for p, slot in layer.table(head).items()} for head in range(HEADS)]
    for step in range(6):
        absorbed = noted(layer)[NORMALIZER][0].double()
        query, key, value = prompt(70 + step, 1, HEADS, GROUP)
        tables = [layer.table(head) for head in range(HEADS)]
        layer.feed(query, key, value)
        for head in range(HEADS):
            known = {p: slot["key"].double() for p, slot in tables[head].items()} | {
                TOKENS + step: key[0, head, 0].double()
            }
            sums[head][TOKENS + step] = 0.0
            for mine in range(GROUP):
                asks = query[0, head * GROUP + mine, 0].double()
                weight = {p: float((asks @ own * DIM**-0.5).exp()) for p, own in known.items()}
                state = float(_phi(asks, head, mine) @ absorbed[head]) if scores == "all" else 0.0
                whole = sum(weight.values()) + state
                for p in known:
                    sums[head][p] += weight[p] / whole / GROUP
            now = layer.table(head)
            assert len(now) == BUDGET and m.rank == RANK
            for p, slot in now.items():
                assert float(slot["score"]) == pytest.approx(sums[head][p], rel=1e-4)
            gone = min((p for p in known if p < TOKENS + step + 1 - BUDGET // 2), key=lambda p: sums[head][p])
            assert set(now) == set(known) - {gone}


def test_absorbing_in_two_goes_equals_absorbing_at_once() -> None:
    """A window drops the same tokens whenever it is asked, so the state must be the same too."""
    query, key, value = prompt(4, TOKENS, HEADS, GROUP)
    once, twice, bit_by_bit = (Layer(less(evictor="window"), BUDGET) for _ in range(3))
    once.feed(query, key, value)
    for layer, cuts in ((twice, [0, 17, TOKENS]), (bit_by_bit, [0, 17, *range(18, TOKENS + 1)])):
        for start, end in pairwise(cuts):
            layer.feed(query[:, :, start:end], key[:, :, start:end], value[:, :, start:end])
        assert set(layer.table()) == set(once.table()) == set(range(TOKENS - BUDGET, TOKENS))
        for name in (NUMERATOR, NORMALIZER, HEAD):
            torch.testing.assert_close(noted(layer)[name], noted(once)[name])


def test_nothing_dropped_means_nothing_beside_the_slots() -> None:
    layer, plain = Layer(less(), 1.0), Layer(make_method("h2o"), 1.0)
    for step, count in enumerate([TOKENS, 1, 4]):
        states = prompt(step, count, HEADS, GROUP)
        assert torch.equal(layer.feed(*states), plain.feed(*states))
    assert not noted(layer)


def test_a_row_that_dropped_nothing_is_left_alone() -> None:
    """Of two padded rows only the long one is over budget: the short one's output is plain attention."""
    layer, plain = Layer(less(), BUDGET), Layer(make_method("full"), BUDGET)
    padding = torch.ones(2, TOKENS, dtype=torch.bool)
    padding[1, : TOKENS - BUDGET + 2] = False
    states, step = prompt(0, TOKENS, HEADS, GROUP, batch=2), prompt(9, 1, HEADS, GROUP, batch=2)
    outputs = []
    for each in (layer, plain):
        each.feed(*states, padding=padding)
        outputs.append(each.feed(*step))
    torch.testing.assert_close(outputs[0][1], outputs[1][1])
    assert not torch.allclose(outputs[0][0], outputs[1][0])


def test_the_state_follows_its_row() -> None:
    """Rows swapped in mid-decoding, as beam search does: each goes on as it would have."""
    straight, turned = (Layer(less(), BUDGET) for _ in range(2))
    for layer in (straight, turned):
        layer.feed(*prompt(3, TOKENS, HEADS, GROUP, batch=2))
    turned.layer.reorder_cache(torch.tensor([1, 0]))
    for step in range(3):
        states = prompt(40 + step, 1, HEADS, GROUP, batch=2)
        expected, given = straight.feed(*states), turned.feed(*(state.flip(0) for state in states))
        torch.testing.assert_close(given.flip(0), expected)
    assert not torch.equal(*noted(straight)[NUMERATOR]), "rows that agree would prove nothing"


def test_a_head_keeps_its_own_maps_wherever_it_is_stored() -> None:
    whole = new_maps("gelu", 3, 2, DIM, 5, RANK, torch.Generator().manual_seed(1))
    head, key, query = torch.tensor([[2], [0]]), draw(1, 2, 1, 4, DIM), draw(2, 2, 1, 2, 4, DIM)
    some = whole.map(lambda tensor: tensor[head])
    for row, index in enumerate(head[:, 0].tolist()):
        everywhere = whole.of_keys(key[row].expand(1, 3, -1, -1)), whole.of_queries(query[row].expand(1, 3, -1, -1, -1))
        torch.testing.assert_close(some.of_keys(key)[row, 0], everywhere[0][0, index])
        torch.testing.assert_close(some.of_queries(query)[row, 0], everywhere[1][0, index])


@pytest.mark.parametrize("form", ["exponential", "gelu"])
def test_features_are_never_negative(form: str) -> None:
    found = new_maps(form, HEADS, GROUP, DIM, 16, RANK, torch.Generator().manual_seed(0))
    for size in (0.1, 1.0, 1e4):
        assert (found.of_keys(draw(0, 1, HEADS, 50, DIM) * size) >= 0).all()
        assert torch.isfinite(found.of_queries(draw(1, 1, HEADS, GROUP, 50, DIM) * size)).all()


def after_prompt(observer: object = None, **options: object) -> CompressedCache:
    lab = prepare(tiny_model("llama"))
    cache = make_cache(lab, "less", 10, weights="untrained", observer=observer, **options)
    ids = torch.randint(3, 97, (1, 40), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        lab(ids, past_key_values=cache)
        for step in range(3):
            lab(ids[:, step : step + 1], past_key_values=cache)
    return cache


@pytest.mark.parametrize("rank", [1, 8])
def test_the_states_bytes_are_counted(rank: int) -> None:
    """(rank x head_dim + rank) float32 and one index a head, on top of what the evictor holds."""
    plain = cache_for(lab := prepare(tiny_model("llama")), "h2o", 10)
    with torch.inference_mode():
        lab(torch.full((1, 40), 7), past_key_values=plain)
    state = 2 * (4 * (rank * 16 + rank) + 8)
    for given, evicting in zip(after_prompt(rank=rank).memory().layers, plain.memory().layers, strict=True):
        assert given.live_bytes == evicting.live_bytes + state
        assert given.allocated_bytes == evicting.allocated_bytes + state
        assert given.peak_bytes >= given.allocated_bytes


class Asking:
    """Implements the cache's `Observer`: what slots and state get of each query, before and after each decision."""

    def __init__(self) -> None:
        self.totals: list[Tensor] = []
        self.outputs: list[tuple[Tensor, Tensor]] = []

    def attended(self, layer_idx: int, slots, seen, output) -> None:
        given = answer(slots, seen)
        self._note(given)
        self.outputs.append((given.output, output[0, :, -1]))

    def compressed(self, layer_idx: int, view, plan, before, after) -> None:
        self._note(answer(after, view.layer_pass))
        assert self.totals[-1].numel() and answer(after, view.layer_pass).state_mass is not None

    def _note(self, given) -> None:
        state = 0.0 if given.state_mass is None else given.state_mass
        self.totals.append(given.mass.sum(-1) + state)


def test_masses_of_slots_and_state_sum_to_one_and_give_the_output() -> None:
    asking = Asking()
    after_prompt(asking)
    assert len(asking.totals) == 3 * 4 * 2
    torch.testing.assert_close(torch.stack(asking.totals), torch.ones(len(asking.totals), 2))
    for asked, given in asking.outputs:
        torch.testing.assert_close(asked, given, rtol=1e-4, atol=1e-5)


def test_evictors_of_unequal_heads_and_of_the_prompt_alone() -> None:
    for evictor in ("adakv", "snapkv", "pyramidkv"):
        cache = after_prompt(evictor=evictor)
        assert all(HEAD in layer.tables[0].head_state for layer in cache.compressed_layers())
