"""Attention that computes what scorers ask of it on its way: against plain loops, and against attention without."""

from __future__ import annotations

import pytest
import torch

from kvlab.core.attention import tiles
from kvlab.core.attention.layer_handoff import PassResults
from kvlab.core.attention.tiles import Tiles
from kvlab.core.cache import make_cache
from kvlab.core.cache.fan_out_cache import FanOutCache
from kvlab.models.load import prepare
from tests.attention.test_column_sums import BATCH, DIM, GROUP, HEADS, SLOTS, a_pass, looks, summed
from tests.cache.layers import draw
from tests.families import tiny_model


@pytest.mark.parametrize("rows", [SLOTS, 11])
@pytest.mark.parametrize("slots", [SLOTS, 13])
def test_equals_one_query_at_a_time(rows: int, slots: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums by two weights, the largest and the squares of whole prompts and later passes, in blocks of few rows."""
    monkeypatch.setattr(tiles, "ROW_NUMBERS", 1)
    monkeypatch.setattr(tiles, "FEWEST_ROWS", 4)
    value = draw(6, BATCH, HEADS, SLOTS, DIM)
    expected_output = a_pass("plain", rows).attend(value)
    layer_pass = a_pass("plain", rows)
    results = layer_pass.results = PassResults()
    decayed = torch.cat([torch.zeros(rows - 5), 0.9 ** torch.arange(4.0, -1.0, -1.0)])
    for weight in (torch.ones(rows), decayed):
        results.expect(weight)
    results.largest = results.squares = slots
    results.on_the_way = True
    monkeypatch.setattr(Tiles, "_masses", lambda *given: pytest.fail("computed a second time"))

    torch.testing.assert_close(layer_pass.attend(value), expected_output, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(layer_pass.column_mass(), summed(layer_pass, 0, None).float(), rtol=1e-5, atol=1e-6)
    recent = layer_pass.column_mass(5, decayed[-5:])
    torch.testing.assert_close(recent, summed(layer_pass, rows - 5, decayed[-5:]).float(), rtol=1e-5, atol=1e-6)
    most = torch.zeros(BATCH, HEADS, SLOTS, dtype=torch.float64)
    squares = torch.zeros_like(most)
    for b, h, _, share in looks(layer_pass, 0):
        reach = len(share)
        most[b, h, :reach] = torch.maximum(most[b, h, :reach], share)
        squares[b, h, :reach] += share**2
    mean_squares = (squares / (GROUP * rows)).sqrt().float()
    torch.testing.assert_close(
        layer_pass.column_max(slots=slots)[..., :slots], most.float()[..., :slots], rtol=1e-5, atol=1e-6
    )
    torch.testing.assert_close(
        layer_pass.column_rms(slots=slots)[..., :slots], mean_squares[..., :slots], rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize("kind", ["padded", "merged", "capped", "alibi", "sinks"])
def test_other_passes_compute_sums_apart(kind: str) -> None:
    """Passes with a bias or rules of their own keep the kernel, and the sum is the same."""
    layer_pass = a_pass(kind, SLOTS)
    layer_pass.results = PassResults(on_the_way=True)
    layer_pass.results.expect(torch.ones(SLOTS))
    layer_pass.attend(draw(6, BATCH, HEADS, SLOTS, DIM))
    torch.testing.assert_close(layer_pass.column_mass(), summed(layer_pass, 0, None).float(), rtol=1e-5, atol=1e-6)


def test_who_asks_is_charged() -> None:
    """The seconds of statistics are charged to caches that ask for them, and to those with an equal scorer."""
    clock = iter(range(1000))
    layer_pass = a_pass("plain", SLOTS)
    results = layer_pass.results = PassResults(now=lambda: float(next(clock)), on_the_way=True)
    results.expect(torch.ones(SLOTS))
    value = draw(6, BATCH, HEADS, SLOTS, DIM)
    layer_pass.attend(value)
    aside = results.aside
    assert aside > 0
    assert results.charged == -aside, "the first has spent them, and has not asked yet"
    results.charged = 0.0
    layer_pass.attend(value)
    attention_alone = results.charged
    results.of_part("update", "h2o", layer_pass.column_mass)
    assert results.charged == attention_alone + aside
    results.charged = 0.0
    results.of_part("update", "h2o", lambda: pytest.fail("computed a second time"))
    assert results.charged > aside, "the sum, and the update's own seconds"


@pytest.mark.parametrize(("methods", "expected"), [(("h2o",), True), (("h2o", "snapkv"), False), (("kvzip",), True)])
def test_only_if_every_cache_asks(methods: tuple[str, ...], expected: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass that other caches share keeps the fused kernel, which is what they would take alone."""
    model = prepare(tiny_model("llama"))
    calls: list[object] = []
    on_the_way = Tiles.attention_with_statistics
    monkeypatch.setattr(Tiles, "attention_with_statistics", lambda *given: calls.append(given) or on_the_way(*given))
    caches = [make_cache(model, method, 12) for method in methods]
    ids = torch.arange(40)[None] % 20
    with torch.inference_mode():
        together = model(ids, past_key_values=caches[0] if len(caches) == 1 else FanOutCache(caches, model.device))
    assert bool(calls) == expected
    torch.testing.assert_close(together.logits, model(ids).logits, rtol=1e-4, atol=1e-5)
