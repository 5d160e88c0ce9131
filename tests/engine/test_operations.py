"""How many operations a layer takes for a token after which it decides: each is a launch on a GPU."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from kvlab.core.attention import layer_pass
from kvlab.core.attention.kernels import reference
from kvlab.core.cache import make_cache
from kvlab.core.cache.layers import decisions
from kvlab.models.load import prepare
from tests.engine.operations import Operations, of_the_cache
from tests.families import tiny_model

PROMPT, WARM = 60, 8
# Of append, attention, scores and decision: on plain torch, and where kernels do attention (two launches) and decision.
# Four of them order equal scores by position.
MOST, MOST_WITH_KERNELS = 100, 40  # six of them: of equally similar merge targets the oldest
METHODS = ["h2o", "zsmerge", "keepkv", "cam", "d2o"]


def _counted(method: str, dtype: torch.dtype, arrange: Callable[[Operations], None] = lambda _: None) -> Counter[str]:
    """Operations a layer of one deciding step."""
    model = prepare(tiny_model("llama")).to(dtype)
    cache = make_cache(model, method, 0.4)
    with torch.no_grad():  # in inference mode what torch composes of other operations counts as one
        model(torch.arange(PROMPT)[None] % 90 + 3, past_key_values=cache)
        for step in range(WARM):
            model(torch.full((1, 1), 3 + step), past_key_values=cache)
        with of_the_cache(cache) as operations:
            arrange(operations)
            model(torch.full((1, 1), 20), past_key_values=cache)
    layers = len(cache.compressed_layers())
    return Counter({name: count // layers for name, count in operations.counts.items()})


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("method", METHODS)
def test_a_deciding_step_takes_few(method: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU for which no kernel can be made."""
    monkeypatch.setattr(decisions, "decision_kernel", lambda device: None)
    counts = _counted(method, dtype)
    assert counts.total() <= MOST, counts.most_common()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("method", METHODS)
def test_with_kernels_it_takes_fewer(method: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    def arrange(operations: Operations) -> None:
        def attention(*given: Any) -> tuple[Tensor, Tensor, Tensor]:
            operations.note("stretches of attention")
            operations.note("attention put together")
            with operations.paused():
                return reference(*given)

        decision = lambda work: operations.note("decision")  # noqa: E731
        monkeypatch.setattr(layer_pass, "one_query_kernel", lambda device: attention)
        monkeypatch.setattr(decisions, "decision_kernel", lambda device: decision)

    counts = _counted(method, dtype, arrange)
    assert counts["decision"] == 1
    assert counts.total() <= MOST_WITH_KERNELS, counts.most_common()


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
