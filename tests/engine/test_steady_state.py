"""A decode step of a method with a fixed budget can be captured: nothing is read, and every step is the same work."""

from __future__ import annotations

import pytest
import torch

from kvlab.checking.properties import NoReading
from kvlab.core.cache import CompressedCache, make_cache
from kvlab.core.methods import registered
from kvlab.models.load import prepare
from tests.families import tiny_model

# Budget-free methods and those that keep what is generated have tables that grow; LESS needs weights of its own.
FIXED = [
    name
    for name, method in registered().items()
    if name != "less" and method.needs_budget and method().pipeline().decode and name != "compose"
]
FIXED += ["snapkv", "criticalkv", "lagkv"]  # with `decode=budget`
PROMPT, WARM, WATCHED = 40, 12, 8
SHORT_PERIODS = {name: {"decode": "budget", "buffer": 2} for name in ("rkv", "snapkv", "criticalkv", "lagkv", "vase")}
SHORT_PERIODS |= {"triattention": {"queries": "untrained", "buffer": 2}, "lazyeviction": {"buffer": 2}}
SHORT_PERIODS["qfilter"] = {"queries": "untrained"}


@pytest.mark.parametrize("every", [1, 4])
@pytest.mark.parametrize("method", FIXED)
def test_a_decode_step_reads_nothing_and_has_fixed_shapes(method: str, every: int) -> None:
    model = prepare(tiny_model("llama", num_hidden_layers=2))
    cache = make_cache(model, method, 0.4, compress_every=every, **SHORT_PERIODS.get(method, {}))
    period, work = cache.settings.period, []
    with torch.inference_mode():
        model(torch.arange(2 * PROMPT).view(2, -1) % 90 + 3, past_key_values=cache)
        for step in range(WARM):
            model(torch.full((2, 1), 3 + step), past_key_values=cache)
        where = _places(cache)
        for step in range(WATCHED):
            token = torch.full((2, 1), 20 + step)
            with NoReading() as watched:
                model(token, past_key_values=cache)
            work.append(watched.shapes)
    assert _places(cache) == where, "the table moved"
    for step in range(WATCHED - period):
        assert work[step] == work[step + period], "steps of one kind differ"


def _places(cache: CompressedCache) -> list[int]:
    return [table.slots.keys.data_ptr() for layer in cache.compressed_layers() for table in layer.tables]


def test_the_watch_can_fail() -> None:
    numbers = torch.arange(5)
    with NoReading():
        with pytest.raises(AssertionError, match="reads a number"):
            int(numbers.sum())
        with pytest.raises(AssertionError, match="depends on values"):
            numbers.nonzero()
        with pytest.raises(AssertionError, match="mask"):
            numbers[numbers > 2]
        with pytest.raises(AssertionError, match="mask"):
            numbers[numbers > 2] = numbers[:2]
        with pytest.raises(AssertionError, match="depends on values"):
            numbers.repeat_interleave(numbers)
        with pytest.raises(AssertionError, match="draws from a generator"):
            torch.rand(3)
        with pytest.raises(AssertionError, match="pinned memory"):
            numbers.is_pinned()
