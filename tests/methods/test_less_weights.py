"""Feature maps on disk: those that ship help mini, and any other file says what is wrong with it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from kvlab.core.assets import asset_path
from kvlab.core.cache import make_cache
from kvlab.core.fitted.kinds import MAPS, write_maps
from kvlab.core.methods.merging.less import random_feature_maps
from kvlab.engine.prompt import divergence
from kvlab.models.load import LoadedModel, load_model, prepare
from tests.families import tiny_model

PREFIX, SCORED = 384, 64


@pytest.fixture(scope="module")
def mini() -> LoadedModel:
    return load_model("mini", "cpu")


def predictions(mini: LoadedModel, method: str, ids: Tensor, budget: float) -> Tensor:
    """(rows * SCORED, V) log-probabilities of a continuation, given a prefix that was compressed."""
    cache = make_cache(mini, method, budget)
    cache.expect(PREFIX)
    with torch.inference_mode():
        mini.model(ids[:, :PREFIX], past_key_values=cache, logits_to_keep=1)
        logits = mini.model(ids[:, PREFIX:], past_key_values=cache).logits
    return torch.log_softmax(logits.float(), -1).flatten(0, 1)


def test_the_shipped_maps_bring_mini_nearer_to_the_full_cache_than_eviction(mini: LoadedModel) -> None:
    """Next-token KL on prose that neither mini nor the maps were fitted to; the same slots, and the state on top."""
    text = asset_path("prompts/haystack/jekyll_and_hyde.txt").read_text(encoding="utf-8")
    whole = mini.encode(text)[0, 1:]
    starts = [1000, 4000, 7000]
    rows = [torch.cat([mini.encode("")[0], whole[s : s + PREFIX + SCORED - 1]]) for s in starts]
    ids = torch.stack(rows)
    full = predictions(mini, "full", ids, 1.0)
    for budget in (0.1, 0.2):
        kl = {
            method: sum(divergence(a, b)[0] for a, b in zip(full, predictions(mini, method, ids, budget), strict=True))
            for method in ("h2o", "less")
        }
        assert kl["less"] < 0.95 * kl["h2o"], budget


def test_the_shipped_maps_say_what_they_were_fitted_to() -> None:
    maps, _, about = MAPS.read(asset_path("less/mini.safetensors"))
    assert len(maps) == 6
    assert about["model"] == "mini"
    assert float(about["error_after"]) < float(about["error_before"])


def test_maps_survive_the_disk(tmp_path: Path) -> None:
    model = prepare(tiny_model("llama"))
    maps = [random_feature_maps(layer, 2, 2, 16, 4) for layer in range(3)]
    write_maps(tmp_path / "maps.safetensors", maps, model, {"model": "tiny"})
    cache = make_cache(model, "less", 10, weights=str(tmp_path / "maps.safetensors"), rank=4)
    found = cache.settings.pipeline.settle.fitted
    for given, expected in zip(found, maps, strict=True):
        for name, tensor in expected.tensors().items():
            assert torch.equal(given.tensors()[name], tensor)


def test_maps_fit_the_same_model_in_another_precision(tmp_path: Path) -> None:
    maps = [random_feature_maps(layer, 2, 2, 16, 8) for layer in range(3)]
    write_maps(tmp_path / "maps.safetensors", maps, prepare(tiny_model("llama")), {})
    make_cache(prepare(tiny_model("llama", torch.bfloat16)), "less", 10, weights=str(tmp_path / "maps.safetensors"))


def cut(path: Path, change: object) -> None:
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path, {"form": "exponential"})


def narrowed(tensors: dict[str, Tensor]) -> None:
    tensors["key_out"] = tensors["key_out"][..., :3].contiguous()


@pytest.mark.parametrize(
    ("spoil", "rank", "sentence"),
    [
        (lambda path: path.unlink(), 8, "There is no file of feature maps .*kvlab fit --method less"),
        (lambda path: path.write_bytes(b"not this"), 8, "is not a file of feature maps"),
        (lambda path: cut(path, lambda t: t.pop("key_out")), 8, "is not a file of feature maps"),
        (lambda path: cut(path, lambda t: t.pop("signature")), 8, "is not a file of feature maps"),
        (
            lambda path: cut(path, lambda t: t.update(key_out=t["key_out"][..., :3].contiguous())),
            8,
            "is not a file of feature maps",
        ),
        (lambda path: None, 16, "have rank 8, not 16: give rank=8"),
        (lambda path: cut(path, lambda t: t["signature"].mul_(1.1)), 8, "were not fitted to these weights"),
    ],
)
def test_a_bad_file_says_what_is_wrong(tmp_path: Path, spoil, rank: int, sentence: str) -> None:
    model, path = prepare(tiny_model("llama")), tmp_path / "maps.safetensors"
    write_maps(path, [random_feature_maps(layer, 2, 2, 16, 8) for layer in range(3)], model, {})
    spoil(path)
    with pytest.raises(ValueError, match=sentence) as error:
        make_cache(model, "less", 10, weights=str(path), rank=rank)
    assert str(error.value).count("\n") == 0


def test_a_model_without_maps_names_the_command_that_makes_them(tiny_model_folder: Path) -> None:
    with pytest.raises(ValueError, match=f"kvlab fit --method less --model {tiny_model_folder} --out FILE"):
        make_cache(load_model(str(tiny_model_folder), "cpu"), "less", 0.2)
