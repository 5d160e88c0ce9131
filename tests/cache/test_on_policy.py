"""On-policy queries: those that a second pass asks through the layers that are compressed already."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from kvlab.core.cache import make_cache
from kvlab.core.methods.settlers.matching import MatchAttention
from tests.cache.test_second_pass import ASK, lab, run, text


class Asked:
    """Keeps each layer's queries of the next pass."""

    full = True

    def __init__(self) -> None:
        self.query: dict[int, Tensor] = {}

    def attended(self, layer_idx: int, slots: Any, seen: Any, output: Tensor) -> None:
        self.query[layer_idx] = seen.query.clone()

    def compressed(self, *_: Any) -> None: ...


@pytest.mark.parametrize("on_policy", [True, False])
def test_each_layer_is_fitted_to_what_is_asked_of_it(on_policy: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A layer's queries depend on the layers below alone: they are those of a second turn on the finished cache.

    Off-policy they are those of a second turn on a full cache; the first layer has no layer below.
    """
    model, ids, used = lab(), text(), {}
    settle = MatchAttention.settle
    monkeypatch.setattr(
        MatchAttention,
        "settle",
        lambda self, view, select: used.update({view.layer_idx: view.references.query}) or settle(self, view, select),
    )
    options: dict[str, Any] = {"profile": "even", "window": 4, "sinks": 1, "recent": 2, "queries": 1000}
    cache = make_cache(model, "attention-matching", 0.5, on_policy=on_policy, **options)
    cache.expect(ids.shape[1])
    run(model, cache, ids)
    below, asked = cache if on_policy else make_cache(model, "full"), Asked()
    if not on_policy:
        run(model, below, ids)
    below.settings.observer = asked
    run(model, below, torch.tensor([ASK + ids[0, 1:].tolist()]))
    assert sorted(used) == sorted(asked.query) == [0, 1, 2]
    for layer, query in used.items():
        torch.testing.assert_close(query, asked.query[layer], atol=1e-4, rtol=1e-4)
    if on_policy:
        plain = make_cache(model, "full")
        run(model, plain, ids)
        plain.settings.observer = asked
        run(model, plain, torch.tensor([ASK + ids[0, 1:].tolist()]))
        assert not torch.allclose(used[2], asked.query[2], atol=1e-3)
