"""The decision kernel against the pipeline on plain torch, in Triton's interpreter where there is no GPU."""

from __future__ import annotations

import os
from collections.abc import Iterator
from types import ModuleType

import pytest
import torch
from torch import Tensor

from kvlab.cache import CompressedCache, deciding, fused, make_cache
from kvlab.cache.fused import Work
from kvlab.models.load import prepare
from tests.families import tiny_model

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
CASES: list[tuple[str, dict]] = [
    ("h2o", {}),
    ("zsmerge", {}),
    ("zsmerge", {"combine_score": "sum", "residual": 3, "sinks": 0}),
    ("keepkv", {"threshold": 0.3}),
    ("keepkv", {"rule": "votes", "threshold": -1.0}),
    ("d2o", {}),
    ("d2o", {"smoothing": 1.0, "sinks": 0}),
    ("cam", {"merge": 4}),
    ("cam", {"merge": 3, "draw": "expected"}),
]
PROMPT, STEPS = 40, 14


@pytest.fixture(scope="module")
def kernel() -> ModuleType:
    pytest.importorskip("triton", reason="the package triton is not installed: pip install kvlab[kernels]")
    if DEVICE == "cpu":
        assert os.environ["TRITON_INTERPRET"] == "1", "tests/conftest.py turns the interpreter on before triton loads"
    from kvlab.cache import decision_kernel

    return decision_kernel


@pytest.fixture(autouse=True)
def _as_it_was(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(fused, "_failed", False)
    fused.decision_kernel.cache_clear()
    yield
    fused.decision_kernel.cache_clear()


def _decoded(cache: CompressedCache, family: str = "llama") -> Tensor:
    """Logits of a padded batch: a prompt, decode steps, a second turn, decode steps."""
    model = prepare(tiny_model(family)).to(DEVICE)
    mask, seen = torch.ones(2, PROMPT, dtype=torch.int64, device=DEVICE), []
    mask[1, :7] = 0
    ids = torch.arange(2 * PROMPT, device=DEVICE).view(2, -1) % 90 + 3
    with torch.inference_mode():
        model(ids, attention_mask=mask, past_key_values=cache)
        for step in range(STEPS):
            width = 3 if step == STEPS // 2 else 1
            token = (torch.arange(2 * width, device=DEVICE).view(2, -1) * 7 + 3 * step) % 90 + 3
            mask = torch.cat([mask, mask.new_ones(2, width)], 1)
            seen.append(model(token, attention_mask=mask, past_key_values=cache).logits[:, -1])
    return torch.stack(seen)


def _same(ours: CompressedCache, theirs: CompressedCache, close: float = 1e-4) -> None:
    for our, their in zip(ours.compressed_layers(), theirs.compressed_layers(), strict=True):
        assert our.slots is not None and their.slots is not None
        there = our.slots.valid
        assert (there == their.slots.valid).all()
        columns = {**our.slots.metadata(), "keys": our.slots.keys, "values": our.slots.values}
        for name, column in columns.items():
            other = getattr(their.slots, name) if name in vars(their.slots) else their.slots.extra[name]
            if name != "score" or "ema" not in columns:  # that one is worked out when it is wanted
                torch.testing.assert_close(column[there], other[there], rtol=close, atol=close, msg=name)
        torch.testing.assert_close(our.dropped, their.dropped)
        for name, state in our.buckets[0].table.head_state.items():
            torch.testing.assert_close(state, their.buckets[0].table.head_state[name], rtol=close, atol=close)


@pytest.mark.parametrize(("method", "options"), CASES)
def test_equals_the_pipeline(kernel: ModuleType, method: str, options: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    """A padded batch, a second turn, merges and evictions: the same logits and the same tables after every step."""
    model, works = prepare(tiny_model("llama")).to(DEVICE), []

    def watched(work: Work) -> None:
        works.append(work)
        kernel.decide(work)

    caches, logits = [], []
    for launch in (None, watched):
        monkeypatch.setattr(deciding, "decision_kernel", lambda device, launch=launch: launch)
        caches.append(make_cache(model, method, 0.4, **options))
        logits.append(_decoded(caches[-1]))
    layers = len(caches[0].compressed_layers())
    assert len(works) >= layers * (STEPS - 3), "hardly a decision went through the kernel"
    torch.testing.assert_close(logits[1], logits[0], rtol=1e-4, atol=1e-4)
    _same(caches[1], caches[0])
