"""Branches of a fan-out cache: forks, rows that leave, branches that end, and what copies share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from kvlab.core.cache import CompressedCache, make_cache
from kvlab.core.cache.cache_copy import copy_cache
from kvlab.core.cache.fan_out_cache import FanOutCache
from kvlab.core.contract.method import make_method
from kvlab.core.methods.scorers.window import WindowAttention
from kvlab.models.load import prepare
from tests.families import tiny_model

IDS = torch.randint(3, 97, (2, 30), generator=torch.Generator().manual_seed(3))


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    return prepare(tiny_model("llama", torch.float32)).double()


def read(model: PreTrainedModel, names: tuple[str, ...], ids: Tensor = IDS) -> FanOutCache:
    fan_out = FanOutCache([make_cache(model, name, 0.4) for name in names], ids.device)
    with torch.inference_mode():
        model(ids, past_key_values=fan_out, use_cache=True)
    return fan_out


@torch.inference_mode()
def step(model: PreTrainedModel, cache: FanOutCache | CompressedCache, tokens: list[int]) -> Tensor:
    return model(torch.tensor(tokens)[:, None], past_key_values=cache, use_cache=True).logits[:, -1]


@torch.inference_mode()
def alone(model: PreTrainedModel, name: str, ids: Tensor, tokens: list[int]) -> Tensor:
    cache = make_cache(model, name, 0.4)
    model(ids, past_key_values=cache, use_cache=True)
    for token in tokens:
        logits = step(model, cache, [token] * len(ids))
    return logits


def test_the_prompt_s_keys_exist_once_until_a_method_drops_some(model: PreTrainedModel) -> None:
    fan_out = read(model, ("full", "kvzip", "h2o", "full"))
    first, _, dropping, second = (branch.cache.compressed_layers()[0].tables[0].slots for branch in fan_out.branches)
    assert first.keys.data_ptr() == second.keys.data_ptr()
    assert first.keys.data_ptr() != dropping.keys.data_ptr() and dropping.keys.shape[2] < first.keys.shape[2]


def test_equal_scorers_score_the_prompt_once(model: PreTrainedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those of other budgets and other allocators; and each cache holds what it holds alone."""
    calls = []
    update = WindowAttention.update

    def counted(self: WindowAttention, *args: Any) -> Mapping[str, Tensor]:
        calls.append(self)
        return update(self, *args)

    monkeypatch.setattr(WindowAttention, "update", counted)
    own_window = make_method("snapkv", window=5)
    settings = [("snapkv", 0.2), ("snapkv", 0.4), ("adakv", 0.4), (own_window, 0.4)]
    fan_out = FanOutCache([make_cache(model, method, budget) for method, budget in settings], IDS.device)
    with torch.inference_mode():
        model(IDS, past_key_values=fan_out, use_cache=True)
        layers = len(fan_out.branches[0].cache.compressed_layers())
        assert len(calls) == 2 * layers, "one window of its own"
        for (method, budget), branch in zip(settings, fan_out.branches, strict=True):
            cache = make_cache(model, method, budget)
            model(IDS, past_key_values=cache, use_cache=True)
            for one, other in zip(branch.cache.compressed_layers(), cache.compressed_layers(), strict=True):
                assert torch.equal(one.slots.position, other.slots.position)
                assert torch.equal(one.slots.score, other.slots.score)


def test_merging_never_changes_the_keys_of_others(model: PreTrainedModel) -> None:
    plain = read(model, ("full",))
    beside = read(model, ("keepkv", "zsmerge", "cam", "d2o", "full"))
    for one, other in zip(*(fan.branches[-1].cache.compressed_layers() for fan in (plain, beside)), strict=True):
        assert torch.equal(one.slots.keys, other.slots.keys) and torch.equal(one.slots.values, other.slots.values)


@pytest.mark.parametrize("name", ["h2o", "keepkv", "adakv", "full"])
def test_a_fork_continues_and_the_original_too(model: PreTrainedModel, name: str) -> None:
    fan_out = read(model, ("snapkv", name), IDS[:1])
    fan_out.split()
    step(model, fan_out, [5, 7])
    fan_out.fork(fan_out.branches[1])
    logits = step(model, fan_out, [9, 11, 13])
    torch.testing.assert_close(logits[1:2], alone(model, name, IDS[:1], [7, 11]))
    torch.testing.assert_close(logits[2:3], alone(model, name, IDS[:1], [7, 13]))
    logits = step(model, fan_out, [9, 15, 17])
    torch.testing.assert_close(logits[2:3], alone(model, name, IDS[:1], [7, 13, 17]))


def test_rows_and_branches_leave_and_the_rest_goes_on(model: PreTrainedModel) -> None:
    fan_out = read(model, ("h2o", "keepkv", "snapkv"))
    fan_out.split()
    assert fan_out.num_rows == 6
    step(model, fan_out, [5] * 6)
    fan_out.keep_rows(fan_out.branches[1], [1])
    fan_out.drop([fan_out.branches[0]])
    assert fan_out.num_rows == 3
    logits = step(model, fan_out, [7, 7, 7])
    torch.testing.assert_close(logits[:1], alone(model, "keepkv", IDS, [5, 7])[1:])
    torch.testing.assert_close(logits[1:], alone(model, "snapkv", IDS, [5, 7]))


def test_caches_that_read_apart_decode_together(model: PreTrainedModel) -> None:
    caches = [branch.cache for name in ("h2o", "zsmerge") for branch in read(model, (name,)).branches]
    fan_out = FanOutCache.of_filled(caches, IDS.device)
    logits = step(model, fan_out, [5, 7, 9, 11])
    torch.testing.assert_close(logits[0], alone(model, "h2o", IDS, [5])[0])
    torch.testing.assert_close(logits[3], alone(model, "zsmerge", IDS, [11])[1])


def test_a_copy_shares_no_tensor_with_its_original(model: PreTrainedModel) -> None:
    (branch,) = read(model, ("adakv",)).branches
    copied = copy_cache(branch.cache)
    for one, other in zip(branch.cache.compressed_layers(), copied.compressed_layers(), strict=True):
        for own, beside in zip(one.tables, other.tables, strict=True):
            for name, tensor in own.slots.varying_columns().items():
                assert tensor.data_ptr() != beside.slots.varying_columns()[name].data_ptr()
            assert own.slots.keys.data_ptr() != beside.slots.keys.data_ptr()


def test_if_every_branch_fails_the_first_error_is_raised(
    model: PreTrainedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("broken")

    monkeypatch.setattr("kvlab.core.cache.layers.compressed_layer.decide", broken)
    with pytest.raises(ZeroDivisionError, match="broken"):
        read(model, ("h2o", "snapkv"))
