"""Decisions while decoding: scores that are no numbers, rows beside others, autograd modes, unlike budgets."""

from __future__ import annotations

import pytest
import torch

from kvlab.core.cache import make_cache
from kvlab.core.cache.layers import decisions
from kvlab.core.contract.view import Slots
from kvlab.core.methods.scorers.ema import EMA
from kvlab.models.load import prepare
from tests.cache.kernels import DEVICE, kernel_module
from tests.cache.test_triton_inplace import kernel_as_it_was  # noqa: F401  # a fixture
from tests.families import tiny_model

PROMPT = 40


@pytest.mark.parametrize(
    ("method", "added", "odd"),
    [("d2o", 0.0, False), ("d2o", -100.0, True), ("keepkv", 0.0, True)],  # KeepKV's scores are logs of attention
)
@pytest.mark.parametrize("who", ["pipeline", "kernel"])
def test_a_score_that_is_no_number_counts_as_0_whoever_decides(
    who: str, method: str, added: float, odd: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every second token has such a score; the others lie above 0, so that one of the first leaves, or below."""
    decide = kernel_module("kvlab.core.cache.triton_inplace").decide if who == "kernel" else None
    monkeypatch.setattr(decisions, "decision_kernel", lambda device: decide)
    model, ids = prepare(tiny_model("llama")).to(DEVICE), torch.arange(PROMPT, device=DEVICE)[None] % 90 + 3
    cache = make_cache(model, method, 0.8)
    with torch.inference_mode():
        model(ids, past_key_values=cache)
        model(ids[:, :1], past_key_values=cache)
        tables = [table for layer in cache.compressed_layers() for table in layer.tables]
        before = [table.slots.position.clone() for table in tables]
        for table, position in zip(tables, before, strict=True):
            score = table.slots.extra[EMA] if method == "keepkv" else table.slots.score
            score.add_(added).masked_fill_(position % 2 == 0, torch.nan)
        model(ids[:, :1], past_key_values=cache)
    for table, position in zip(tables, before, strict=True):
        kept = (position[..., None] == table.slots.position[..., None, :]).any(-1)
        gone = position[(position >= 0) & ~kept]
        assert len(gone) and (gone % 2 == odd).all()


def test_a_row_alone_gets_what_it_gets_beside_others() -> None:
    """Rows that were kept, repeated or put in another order have tables of their own from then on."""
    model = prepare(tiny_model("llama"))
    ids, after = torch.arange(3 * PROMPT).view(3, -1) % 90 + 3, torch.arange(12).view(3, -1) % 90 + 3
    order = torch.tensor([2, 0])
    for method in ("keepkv", "d2o"):
        found = []
        for early in (True, False):
            cache = make_cache(model, method, 0.4)
            with torch.inference_mode():
                model(ids[order] if early else ids, past_key_values=cache)
                for step in range(4):
                    if step == 2 and not early:
                        cache.batch_select_indices(order)
                    token = after[order] if early or step >= 2 else after
                    found.append(model(token[:, step : step + 1], past_key_values=cache).logits)
        torch.testing.assert_close(found[6], found[2], rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(found[7], found[3], rtol=1e-4, atol=1e-4)


def test_what_is_kept_from_an_inference_serves_another_step() -> None:
    model, ids = prepare(tiny_model("llama")), torch.arange(PROMPT)[None] % 90 + 3
    for method in ("keepkv", "d2o"):
        cache = make_cache(model, method, 0.4)
        with torch.no_grad():
            model(ids, past_key_values=cache)
        for mode in (torch.inference_mode, torch.no_grad, torch.inference_mode):
            with mode():
                model(ids[:, :1], past_key_values=cache)


def test_heads_of_unlike_budgets_in_a_table_keep_their_budgets() -> None:
    """A table is as long as its longest head; what the others hold below that is no reason to decide again."""
    model, ids = prepare(tiny_model("llama")), torch.stack([torch.arange(200) % 90, torch.arange(200) ** 2 % 83]) + 3
    cache = make_cache(model, "compose", 0.4, score="keepkv", settle="keepkv", allocate="adakv")
    with torch.inference_mode():
        model(ids, past_key_values=cache)
        for step in range(5):
            model(ids[:, step : step + 1], past_key_values=cache)
    unlike = [
        bucket.head_budgets.smallest < bucket.head_budgets.largest for layer in cache.layers for bucket in layer.buckets
    ]
    assert any(unlike), "every table has heads of one length, so that nothing was asked"
    for layer in cache.compressed_layers():
        assert torch.equal(layer.per_head(Slots.live), layer.budget)
