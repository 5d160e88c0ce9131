"""Decode steps under every reading on a device that is not the host: nothing is read there, the numbers are equal."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from kvlab.attention import layer_pass
from kvlab.cache import make_cache
from kvlab.cache.layers import decisions
from kvlab.checking.properties import NoReading
from kvlab.methods.readings import READINGS
from kvlab.models.load import prepare
from tests.conformance.test_readings import SHORT
from tests.engine.pretend import CUDA, PretendCuda, pretend_cuda, put_there
from tests.families import tiny_model


def _logits(
    model: PreTrainedModel, ids: Tensor, pretence: PretendCuda | None, method: str, read: str, store: str
) -> Tensor:
    cache, kept = make_cache(model, method, 0.5, read=read, store=store), []
    tokens = [torch.full((2, 1), 3 + step, device=ids.device) for step in range(6)]
    with torch.inference_mode():
        model(ids, past_key_values=cache)
        for step, token in enumerate(tokens):
            steady = pretence is not None and step >= 3 and store == "native"
            if pretence is not None:
                pretence.steady = steady
            with NoReading() if steady else nullcontext():
                kept.append(model(token, past_key_values=cache).logits[:, -1])
    if pretence is not None:
        pretence.steady = False
    return torch.stack(kept)


@pytest.mark.parametrize("name", READINGS)
def test_a_reading_runs_on_the_device_alone(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With every token held, with slots evicted in turn, and with packed slots."""
    ids = torch.arange(80).view(2, -1) % 90 + 3
    model, read = prepare(tiny_model("llama")), SHORT.get(name, name)
    monkeypatch.setattr(layer_pass, "one_query_kernel", lambda device: None)
    monkeypatch.setattr(decisions, "decision_kernel", lambda device: None)
    for method, store in (("sparse", "native"), ("h2o", "native"), ("snapkv", "turbo4")):
        expected = _logits(model, ids, None, method, read, store)
        with pretend_cuda(monkeypatch) as pretence:
            found = _logits(put_there(model), ids.to(CUDA), pretence, method, read, store)
            assert found.device == CUDA
            found = found.cpu()
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)
