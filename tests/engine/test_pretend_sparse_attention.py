"""Sparse decode steps on a device that is not the host: nothing is read there, the numbers are equal."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from kvlab.core.attention import layer_pass
from kvlab.core.cache import make_cache
from kvlab.core.cache.layers import decisions
from kvlab.core.methods.sparse_attention import SPARSE_ATTENTIONS
from kvlab.models.load import prepare
from tests.conformance.test_sparse_attention import SHORT
from tests.engine.pretend import CUDA, PretendCuda, decode_there, pretend_cuda, put_there
from tests.families import tiny_model


def _logits(
    model: PreTrainedModel, ids: Tensor, pretence: PretendCuda | None, method: str, read: str, store: str
) -> Tensor:
    cache = make_cache(model, method, 0.5, read=read, store=store)
    return decode_there(model, cache, ids, pretence, 6, lambda step: step >= 3 and store == "native")


@pytest.mark.parametrize("name", SPARSE_ATTENTIONS)
def test_sparse_attention_runs_on_the_device_alone(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
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
