"""A long prompt can be stopped between two layers."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from kvlab.core.cache import make_cache
from kvlab.engine.forward import prefill
from kvlab.engine.progress import Cancelled, Watch
from kvlab.models.load import prepare
from tests.families import tiny_model


@pytest.mark.parametrize("family", ["llama", "falcon-alibi", "bloom", "mpt", "gemma2"])
def test_a_stop_is_seen_before_the_next_layer(family: str) -> None:
    model = prepare(tiny_model(family))
    loaded, ids = SimpleNamespace(model=model), torch.arange(3, 40)[None]
    layers, asked = model.config.num_hidden_layers, []
    watch = Watch(1, None, lambda: len(asked) == 2)

    def check() -> None:
        asked.append(len(asked))
        watch.check()

    cache = make_cache(model, "full")
    with pytest.raises(Cancelled):
        prefill(loaded, cache, ids, check=check)
    assert layers >= 2
    assert [layer.get_seq_length() for layer in cache.layers] == [37] + [0] * (layers - 1)
    asked.extend(range(10))
    before = len(asked)
    prefill(loaded, make_cache(model, "full"), ids, check=check)
    assert len(asked) - before == layers
    prefill(loaded, make_cache(model, "full"), ids)
    assert len(asked) - before == layers
