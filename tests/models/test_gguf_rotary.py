"""Rotary positions of GGUF files: as transformers' own scaled config has them on the same weights, not as unscaled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from transformers import Gemma3TextConfig, LlamaConfig, PreTrainedModel

from kvlab.core.cache import make_cache
from kvlab.core.errors import UserError
from kvlab.models.describe_gguf import FREQS, complete_config
from kvlab.models.load import load_model
from tests.models.tiny_gguf import tiny_gguf

IDS = torch.arange(90)[None].repeat(1, 3) % 90 + 3  # 270 tokens, beyond each original context below
BASE = 10_000.0
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVLAB_CACHE", str(tmp_path_factory.getbasetemp() / "gguf-cache"))


def logits(model: torch.nn.Module, **options: object) -> torch.Tensor:
    with torch.inference_mode():
        return model(IDS, **options).logits


def scaled(model: PreTrainedModel, rope: dict[str, Any]) -> PreTrainedModel:
    """The same weights under transformers' own config of a scaling."""
    config = type(model.config).from_dict(model.config.to_dict())
    config.rope_parameters = {**config.rope_parameters, **rope}
    if hasattr(config, "original_max_position_embeddings") and "original_max_position_embeddings" in rope:
        config.original_max_position_embeddings = rope["original_max_position_embeddings"]
    other = type(model)(config)
    other.load_state_dict(model.state_dict())
    return other.eval()


def llama3_factors(width: int, rope: dict[str, float]) -> np.ndarray:
    """What the converter writes to `rope_freqs`: by the length of each wave, pair by pair."""
    before, low, high = (
        rope[name] for name in ("original_max_position_embeddings", "low_freq_factor", "high_freq_factor")
    )
    found = []
    for pair in range(width // 2):
        wave = 2 * np.pi * BASE ** (2 * pair / width)
        smooth = (before / wave - low) / (high - low)
        if wave < before / high:
            found.append(1.0)
        elif wave > before / low:
            found.append(rope["factor"])
        else:
            found.append(1 / ((1 - smooth) / rope["factor"] + smooth))
    return np.array(found, np.float32)


def linear(writer: gguf.GGUFWriter) -> None:
    writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
    writer.add_rope_scaling_factor(4.0)


def older_linear(writer: gguf.GGUFWriter) -> None:
    writer.add_float32("llama.rope.scale_linear", 4.0)


def yarn(writer: gguf.GGUFWriter) -> None:
    writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
    writer.add_rope_scaling_factor(4.0)
    writer.add_rope_scaling_orig_ctx_len(64)


def yarn_with_betas(writer: gguf.GGUFWriter) -> None:
    yarn(writer)
    writer.add_rope_scaling_yarn_beta_fast(8.0)
    writer.add_rope_scaling_yarn_beta_slow(2.0)


def llama3(writer: gguf.GGUFWriter) -> None:
    writer.add_tensor("rope_freqs.weight", llama3_factors(16, LLAMA3))


def other_factors(writer: gguf.GGUFWriter) -> None:
    writer.add_tensor("rope_freqs.weight", np.array([1, 2, 1, 4, 3, 1, 9, 2], np.float32))


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
FREE = [1.0, 2.0, 1.0, 4.0, 3.0, 1.0, 9.0, 2.0]
KINDS = {
    "linear": (linear, {"rope_type": "linear", "factor": 4.0}),
    "linear by its older name": (older_linear, {"rope_type": "linear", "factor": 4.0}),
    "yarn": (yarn, YARN),
    "yarn with betas": (yarn_with_betas, {**YARN, "beta_fast": 8.0, "beta_slow": 2.0}),
    "llama3": (llama3, {"rope_type": "llama3", **LLAMA3}),
    "factors of another kind": (
        other_factors,
        {
            "rope_type": "longrope", "short_factor": FREE, "long_factor": FREE, "attention_factor": 1.0,
            "original_max_position_embeddings": 512,
        },
    ),
}  # fmt: skip


@pytest.mark.usefixtures("gguf_here")
@pytest.mark.parametrize("kind", KINDS)
def test_scaled_positions_are_those_of_transformers_scaled_config(tmp_path: Path, kind: str) -> None:
    write, rope = KINDS[kind]
    written = tiny_gguf(tmp_path / "scaled.gguf", more=write)
    loaded = load_model(str(tmp_path / "scaled.gguf"), device="cpu")
    ours = logits(loaded.model, past_key_values=make_cache(loaded, "full"))
    torch.testing.assert_close(ours, logits(scaled(written, rope)), rtol=1e-4, atol=1e-4)
    assert (ours - logits(written)).abs().max() > 0.05, "the unscaled twin has other logits"


@pytest.mark.usefixtures("gguf_here")
@pytest.mark.parametrize("family", ["qwen2", "qwen3", "gemma2"])
def test_every_architecture_is_scaled(tmp_path: Path, family: str) -> None:
    tiny_gguf(tmp_path / "plain.gguf", family)
    tiny_gguf(tmp_path / "scaled.gguf", family, more=yarn)
    plain, loaded = (load_model(str(tmp_path / f"{name}.gguf"), device="cpu").model for name in ("plain", "scaled"))
    torch.testing.assert_close(logits(loaded), logits(scaled(plain, YARN)), rtol=1e-4, atol=1e-4)
    assert (logits(loaded) - logits(plain)).abs().max() > 0.01


@pytest.mark.usefixtures("gguf_here")
@pytest.mark.parametrize("length", [60, 270])
def test_two_sets_of_frequencies_change_at_the_original_context(tmp_path: Path, length: int) -> None:
    short, long = [1.0, 1.5, 2.0, 2.5], [2.0, 3.0, 5.0, 9.0]

    def more(writer: gguf.GGUFWriter) -> None:
        writer.add_rope_scaling_orig_ctx_len(64)
        writer.add_rope_scaling_attn_factors(1.25)
        writer.add_tensor("rope_factors_short.weight", np.array(short, np.float32))
        writer.add_tensor("rope_factors_long.weight", np.array(long, np.float32))

    half = {"rope_type": "default", "rope_theta": BASE, "partial_rotary_factor": 0.5}  # of each head is rotated
    written = tiny_gguf(tmp_path / "phi.gguf", "phi3", more=more, rope_parameters=half)
    rope = {"rope_type": "longrope", "short_factor": short, "long_factor": long, "attention_factor": 1.25}
    theirs = scaled(written, {**rope, "original_max_position_embeddings": 64})
    loaded = load_model(str(tmp_path / "phi.gguf"), device="cpu")
    with torch.inference_mode():
        ours = loaded.model(IDS[:, :length], past_key_values=make_cache(loaded, "full")).logits
        torch.testing.assert_close(ours, theirs(IDS[:, :length]).logits, rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("gguf_here")
@pytest.mark.parametrize("width", [16, 32, 128])
def test_head_widths_are_read(tmp_path: Path, width: int) -> None:
    written = tiny_gguf(tmp_path / "wide.gguf", "qwen3", head_dim=width)
    loaded = load_model(str(tmp_path / "wide.gguf"), device="cpu")
    assert loaded.model.config.head_dim == width
    torch.testing.assert_close(logits(loaded.model), logits(written), rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("gguf_here")
def test_the_parameters_of_llama_3_are_found_again(tmp_path: Path) -> None:
    """Those of Llama 3.1 and 3.2, from the factors alone: a GPU then waits for no choice between two sets."""
    for factor in (8.0, 32.0):
        rope = {**LLAMA3, "factor": factor, "original_max_position_embeddings": 8192}
        factors = llama3_factors(64, rope)
        config = LlamaConfig(rope_parameters={"rope_type": "default", "rope_theta": BASE}, head_dim=64)
        complete_config(config, lambda name: None, {FREQS: factors})
        assert config.rope_parameters == {"rope_theta": BASE, "rope_type": "llama3", **rope}


def test_layers_with_a_window_are_not_scaled() -> None:
    config = Gemma3TextConfig()
    before = config.rope_parameters["sliding_attention"]
    complete_config(config, {"rope.scaling.type": "linear", "rope.scaling.factor": 8.0}.get, {})
    assert config.rope_parameters["sliding_attention"] == before
    full = config.rope_parameters["full_attention"]
    assert (full["rope_type"], full["factor"], full["rope_theta"]) == ("linear", 8.0, 1_000_000.0)


def test_a_scaling_that_is_none_changes_nothing() -> None:
    config = LlamaConfig()
    before = dict(config.rope_parameters)
    complete_config(config, {"rope.scaling.type": "none", "rope.scaling.factor": 8.0}.get, {})
    complete_config(config, {}.get, {FREQS: np.ones(32, np.float32)})
    assert config.rope_parameters == before


def unknown(writer: gguf.GGUFWriter) -> None:
    writer.add_string("llama.rope.scaling.type", "spiral")


def yarn_of_deepseek(writer: gguf.GGUFWriter) -> None:
    yarn(writer)
    writer.add_rope_scaling_yarn_log_mul(0.0707)


def yarn_with_factors(writer: gguf.GGUFWriter) -> None:
    yarn(writer)
    llama3(writer)


@pytest.mark.usefixtures("gguf_here")
@pytest.mark.parametrize(
    ("write", "words"),
    [
        (unknown, "scaled by 'spiral'"),
        (yarn_of_deepseek, "YaRN positions have a log_multiplier"),
        (yarn_with_factors, "YaRN positions have factors of their own"),
    ],
)
def test_what_transformers_cannot_do_is_refused_in_a_sentence(tmp_path: Path, write: Any, words: str) -> None:
    tiny_gguf(tmp_path / "scaled.gguf", more=write)
    with pytest.raises(UserError, match=words) as error:
        load_model(str(tmp_path / "scaled.gguf"), device="cpu")
    assert str(error.value).endswith(".") and "\n" not in str(error.value)


@pytest.mark.usefixtures("gguf_here")
def test_a_part_of_a_head_that_transformers_would_rotate_whole_is_refused(tmp_path: Path) -> None:
    half = {"rope_type": "default", "rope_theta": BASE, "partial_rotary_factor": 0.5}
    tiny_gguf(tmp_path / "half.gguf", "qwen2", rope_parameters=half)
    with pytest.raises(UserError, match="rotates 8 of the 16 numbers of a head"):
        load_model(str(tmp_path / "half.gguf"), device="cpu")


@pytest.mark.usefixtures("gguf_here")
def test_weights_of_another_shape_than_the_metadata_says_are_named(tmp_path: Path) -> None:
    """And not with transformers' advice to load them anyway."""

    def wrong(writer: gguf.GGUFWriter) -> None:
        del writer.kv_data[0]["llama.feed_forward_length"]
        writer.add_feed_forward_length(64)

    tiny_gguf(tmp_path / "other.gguf", more=wrong)
    with pytest.raises(UserError, match=r"of another shape \(model\.layers\.\d\.mlp") as error:
        load_model(str(tmp_path / "other.gguf"), device="cpu")
    assert "ignore_mismatched_sizes" not in str(error.value)
