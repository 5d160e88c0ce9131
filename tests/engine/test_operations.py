"""How many operations a layer takes for a token after which it decides: each is a launch on a GPU."""

from __future__ import annotations

import pytest
import torch

from kvlab.cache import make_cache
from kvlab.models.load import prepare
from tests.engine.operations import of_the_cache
from tests.families import tiny_model

PROMPT, WARM = 60, 8
MOST = 90  # of append, attention, scores and decision, on plain torch


@pytest.mark.parametrize("method", ["h2o", "zsmerge", "keepkv", "cam", "d2o"])
def test_a_deciding_step_takes_few(method: str) -> None:
    model = prepare(tiny_model("llama"))
    cache = make_cache(model, method, 0.4)
    with torch.no_grad():  # in inference mode what torch composes of other operations counts as one
        model(torch.arange(PROMPT)[None] % 90 + 3, past_key_values=cache)
        for step in range(WARM):
            model(torch.full((1, 1), 3 + step), past_key_values=cache)
        with of_the_cache(cache) as operations:
            model(torch.full((1, 1), 20), past_key_values=cache)
    layers = len(cache.compressed_layers())
    assert operations.counts.total() / layers <= MOST, operations.counts.most_common()


def test_the_count_can_tell() -> None:
    """A step in which nothing is known beforehand, the first after the prompt, takes many more."""
    model, counts = prepare(tiny_model("llama")), []
    cache = make_cache(model, "zsmerge", PROMPT + 2)
    with torch.no_grad():
        model(torch.arange(PROMPT)[None] % 90 + 3, past_key_values=cache)
        for step in range(5):
            with of_the_cache(cache) as operations:
                model(torch.full((1, 1), 3 + step), past_key_values=cache)
            counts.append(operations.counts.total())
    assert counts[2] > 1.5 * counts[4] > 1.5 * counts[0] > 0
