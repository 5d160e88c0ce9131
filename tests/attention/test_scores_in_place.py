"""Scores kept up in place, and worked out only when something is decided, are those of an update at every step."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from kvlab.core.cache import CompressedCache, make_cache
from kvlab.core.contract.pipeline import Pipeline
from kvlab.core.contract.view import is_constant
from kvlab.models.load import prepare
from tests.families import tiny_model

NOTING = ["h2o", "zsmerge", "keepkv", "d2o", "cam"]


def decoded(method: str, every: int, steps: int = 30) -> tuple[CompressedCache, Tensor]:
    """(the cache, logits) after a prompt and forced tokens; the last step ends with a decision."""
    model = prepare(tiny_model("llama"))
    options = {"threshold": 0.0} if method == "keepkv" else {}
    cache = make_cache(model, method, 0.4, compress_every=every, **options)
    with torch.inference_mode():
        model(torch.arange(80).view(2, -1) % 90 + 3, past_key_values=cache)
        logits = [model(torch.full((2, 1), 3 + 7 * n % 90), past_key_values=cache).logits for n in range(steps)]
        while cache.compressed_layers()[0].waiting:
            model(torch.full((2, 1), 11), past_key_values=cache)
    return cache, torch.cat(logits, 1)


@pytest.mark.parametrize("every", [1, 4, 16])
@pytest.mark.parametrize("method", NOTING)
def test_decisions_scores_and_outputs_are_the_same(method: str, every: int, monkeypatch: pytest.MonkeyPatch) -> None:
    in_place, logits = decoded(method, every)
    can = in_place.settings.pipeline.can
    assert can.score.note is not None
    monkeypatch.setattr(Pipeline, "can", replace(can, score=replace(can.score, note=None)))
    updated, expected = decoded(method, every)
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)
    for given, wanted in zip(in_place.compressed_layers(), updated.compressed_layers(), strict=True):
        own, other = given.slots, wanted.slots
        assert own is not None
        assert other is not None
        assert torch.equal(own.valid, other.valid)
        for name in ("position", "votes", "log_mass", "score"):
            left, right = (getattr(slots, name).masked_fill(~own.valid, 0) for slots in (own, other))
            torch.testing.assert_close(left, right, rtol=1e-4, atol=1e-4, msg=lambda text, name=name: f"{name}: {text}")


def test_keepkv_holds_no_scores_and_whoever_looks_gets_them_as_they_are() -> None:
    """Between decisions too: log of the corrected average, plus log mass."""
    model = prepare(tiny_model("llama"))
    cache = make_cache(model, "keepkv", 0.4, compress_every=8, alpha=0.9)
    seen = []
    with torch.inference_mode():
        model(torch.arange(80).view(2, -1) % 90 + 3, past_key_values=cache)
        for n in range(10):
            model(torch.full((2, 1), 3 + n), past_key_values=cache)
            layer = cache.compressed_layers()[0]
            assert all(is_constant(table.slots.score) for table in layer.tables)
            slots = layer.slots
            assert slots is not None
            rows = slots.extra["ema_rows"].double()
            expected = slots.extra["ema"].double() - (1 - 0.9**rows).log() + slots.log_mass
            torch.testing.assert_close(slots.score[slots.valid].double(), expected[slots.valid], rtol=1e-5, atol=1e-5)
            seen.append(slots.score[slots.valid].sum())
    assert len(set(map(float, seen))) == len(seen)
