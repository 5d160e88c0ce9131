"""`kvlab fit --method less`: the examples it fits to, and what comes out of a minute fraction on a tiny model."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from kvlab.cli import commands
from kvlab.core.cache import make_cache
from kvlab.core.errors import UserError
from kvlab.core.methods.merging.less import random_feature_maps
from kvlab.models.fitting import less
from kvlab.models.fitting.less import fit_less, layer_blocks
from kvlab.models.fitting.observations import (
    compressible_layers,
    heavy_and_recent,
    observation_bytes,
    observe,
    projections,
)
from kvlab.models.fitting.request import FitRequest
from kvlab.models.fitting.text import text_windows
from kvlab.models.load import LoadedModel, load_model
from tests.families import tiny_folder


@pytest.fixture(scope="module")
def tiny(tiny_model_folder: Path) -> LoadedModel:
    return load_model(str(tiny_model_folder), "cpu")


@pytest.fixture
def books(tmp_path: Path) -> Path:
    folder = tmp_path / "books"
    folder.mkdir()
    (folder / "one.txt").write_text("It was the best of times, it was the worst of times. " * 200)
    return tmp_path


def test_what_is_kept_is_recent_or_heavy() -> None:
    scores, rows = torch.rand(2, 3, 40, generator=torch.Generator().manual_seed(0)), torch.tensor([20, 30, 39])
    kept = heavy_and_recent(scores, rows, 10)
    for index, row in enumerate(rows.tolist()):
        for head in range(2):
            heavy = scores[head, index, : row - 4].topk(5).indices.tolist()
            assert set(kept[head, index].nonzero()[:, 0].tolist()) == {*heavy, *range(row - 4, row + 1)}


def test_an_observation_is_the_layers_own_attention(tiny: LoadedModel, books: Path) -> None:
    """With everything dropped put back by the true kernel, slots and state together give the true output."""
    ids = next(text_windows(tiny, books, 300, 0))
    for seen, projection in zip(observe(tiny, ids, Random(0)), projections(tiny, [0, 1, 2]), strict=True):
        logits = (seen.query @ seen.key[:, None].transpose(-1, -2)) * seen.key.shape[-1] ** -0.5
        left = (logits - seen.top).exp() * seen.dropped[:, None]
        whole = (seen.numerator + left @ seen.value[:, None]) / (seen.denominator + left.sum(-1, keepdim=True))
        torch.testing.assert_close(whole, seen.true, rtol=1e-4, atol=1e-5)
        heads, group, _, head_dim = seen.query.shape
        silent = random_feature_maps(0, heads, group, head_dim, 8)
        silent = silent.map(lambda tensor: tensor * 0)
        silent.key_bias.fill_(-100)
        assert float(seen.error(silent, projection)) == pytest.approx(seen.evicted_error, rel=1e-3)
        assert seen.evicted_error > 0


def test_observations_take_what_is_said(tiny: LoadedModel, books: Path) -> None:
    for tokens in (300, 290):
        for seen in observe(tiny, next(text_windows(tiny, books, tokens, 0)), Random(0)):
            tensors = [tensor for tensor in vars(seen).values() if isinstance(tensor, torch.Tensor)]
            assert sum(tensor.nbytes for tensor in tensors) == observation_bytes(tiny, tokens)


def test_layers_are_watched_in_blocks_that_fit(
    tiny: LoadedModel, tiny_model_folder: Path, books: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Room for two layers: a block of two and one of one, and all three get their maps."""
    layers = compressible_layers(tiny)
    assert layer_blocks(tiny, layers, 256) == [[0, 1, 2]], "the shipped maps come from one block"
    monkeypatch.setattr(less, "MOST_BYTES", 2.5 * less.MOST_WINDOWS * observation_bytes(tiny, 256))
    watched, watch = [], less._watch

    def noted(loaded: LoadedModel, request: FitRequest, block: list[int], *rest: Any) -> Any:
        found = watch(loaded, request, block, *rest)
        watched.append((block, sum(len(seen) for seen in found) * observation_bytes(loaded, 256)))
        return found

    monkeypatch.setattr(less, "_watch", noted)
    fields = {"corpus": books, "rank": 4, "minutes": 0.02, "length": 256, "device": "cpu"}
    request = FitRequest(method="less", model=str(tiny_model_folder), **fields)
    assert len(fit_less(request, tmp_path / "maps.safetensors", say=lambda _: None)) == 3
    assert [block for block, _ in watched] == [[0, 1], [2]]
    assert all(size <= less.MOST_BYTES for _, size in watched)
    monkeypatch.setattr(less, "MOST_BYTES", 1)
    assert layer_blocks(tiny, layers, 256) == [[0], [1], [2]], "one layer at the least"


def test_a_fit_lowers_the_error_and_its_file_serves_the_method(
    tiny: LoadedModel, tiny_model_folder: Path, books: Path, tmp_path: Path
) -> None:
    out = tmp_path / "maps.safetensors"
    arguments = ["--model", str(tiny_model_folder), "--corpus", str(books), "--out", str(out), "--minutes", "0.04"]
    result = CliRunner().invoke(
        commands, ["fit", "--method", "less", *arguments, "--set", "length=256", "--set", "rank=4", "--device", "cpu"]
    )
    assert result.exit_code == 0, result.output
    lines = [line for line in result.output.splitlines() if line.startswith("layer")]
    errors = [(float(line.split()[3]), float(line.split()[6])) for line in lines]
    assert len(errors) == 3
    assert all(after < before for before, after in errors)
    assert [path.name for path in tmp_path.iterdir()].count("maps.safetensors") == 1
    assert not list(tmp_path.glob(".*"))
    cache = make_cache(tiny, "less", 0.2, weights=str(out), rank=4)
    with torch.inference_mode():
        assert torch.isfinite(tiny.model(next(text_windows(tiny, books, 256, 1)), past_key_values=cache).logits).all()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--minutes", "0"], "--minutes cannot be 0"),
        (["--set", "rank=0"], "--set rank cannot be 0"),
        (["--set", "length=10"], "--set length cannot be 10"),
        (["--set", "form=softmax"], "--set form cannot be 'softmax'"),
        (["--corpus", "nowhere", "--minutes", "0.01"], "No .txt books in nowhere"),
    ],
)
def test_bad_input_is_one_sentence(arguments: list[str], sentence: str) -> None:
    result = CliRunner().invoke(commands, ["fit", "--method", "less", *arguments])
    assert isinstance(result.exception, UserError)
    assert sentence in str(result.exception)
    assert "\n" not in str(result.exception)


def test_a_model_on_which_the_method_means_nothing_is_refused_before_any_work(tmp_path: Path) -> None:
    folder, out = tiny_folder(tmp_path / "model", "falcon-alibi"), tmp_path / "maps.safetensors"
    result = CliRunner().invoke(
        commands, ["fit", "--method", "less", "--force", "--model", str(folder), "--out", str(out), "--minutes", "60"]
    )
    assert isinstance(result.exception, UserError)
    assert "ALiBi" in str(result.exception)
    assert not out.exists()
