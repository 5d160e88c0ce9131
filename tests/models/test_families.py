"""What of a family decides whether it runs: its windows, and what its layers keep."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from kvlab.core.cache import make_cache
from kvlab.core.choice import MethodChoice
from kvlab.core.errors import UserError
from kvlab.core.families import check_supported
from kvlab.engine import compare
from kvlab.models.load import load_model, prepare
from kvlab.requests.compare import CompareRequest
from tests.families import COMMON, WINDOWED, tiny_folder, tiny_model


@pytest.mark.parametrize("methods", [("full",), ("h2o",), ("full", "h2o")])
def test_a_model_that_only_slides_is_told_so_and_nothing_runs(methods: tuple[str, ...], tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path / "model", "mistral-sliding")
    request = CompareRequest(
        prompt="Down the rabbit hole.",
        model=str(folder),
        choices=tuple(MethodChoice(method=method) for method in methods),
        max_new_tokens=2,
        device="cpu",
    )
    with pytest.raises(UserError, match=r"uses a sliding window of 8 tokens, .* nothing to compress"):
        compare(request, tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("family", ["phi3-wide-window", "mistral-wide-window"])
def test_a_window_as_wide_as_the_context_is_none(family: str, tmp_path: Path) -> None:
    loaded = load_model(str(tiny_folder(tmp_path, family)), device="cpu")
    assert len(make_cache(loaded, "h2o", 0.3).compressed_layers()) == 3


def test_keys_that_later_layers_read_too_are_left_alone() -> None:
    """Gemma 3n: layers 3 and 4 read what layers 1 and 2 keep, so only layer 0 is compressed."""
    model = prepare(tiny_model("gemma3n-shared"))
    cache = make_cache(model, "h2o", 0.3)
    assert [layer.layer_idx for layer in cache.compressed_layers()] == [0]
    with torch.inference_mode():
        model(torch.arange(3, 23)[None], past_key_values=cache)
    slots = cache.compressed_layers()[0].slots
    assert slots is not None and int(slots.live().max()) == 6 and cache.layers[2].get_seq_length() == 20


LATENT = {"kv_lora_rank": 8, "q_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4, "v_head_dim": 8}


@pytest.mark.parametrize(
    ("kind", "options", "sentence"),
    [
        ("deepseek_v3", LATENT, "one latent state per token"),
        ("minicpm3", LATENT, "one latent state per token"),
        ("minimax", {}, "no test shows yet"),
        ("mamba2", {}, "not supported"),
        ("diffllama", {}, "no test shows yet"),
        ("gpt2", {}, "no test shows yet"),
    ],
)
def test_what_keeps_no_keys_and_values_a_head_is_refused(kind: str, options: dict, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence) as error:
        check_supported(CONFIG_MAPPING[kind](**options))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("kind", "text"), [("mistral3", "mistral"), ("gemma3", "gemma3_text")])
def test_a_model_that_also_sees_runs_by_its_text_family(kind: str, text: str, tmp_path: Path) -> None:
    """Its whole checkpoint is read, and the rotation is that of the text, not of the images."""
    from transformers import AutoModelForImageTextToText

    folder = tiny_folder(tmp_path)
    vision = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    size = {"image_size": 28, "patch_size": 14}
    config = CONFIG_MAPPING[kind](
        text_config=COMMON | {"vocab_size": 259, "model_type": text} | (WINDOWED if kind == "gemma3" else {}),
        vision_config=vision | size,
    )
    plain = AutoModelForImageTextToText.from_config(config).eval()
    plain.save_pretrained(folder)
    loaded = load_model(str(folder), device="cpu")
    ids = loaded.encode("Down the rabbit hole.")
    cache = make_cache(loaded, "keepkv", 1.0)
    with torch.inference_mode():
        given = loaded.model(ids, past_key_values=cache).logits
        assert (given - plain(ids).logits).abs().max() < 1e-4
    rotary = cache.compressed_layers()[0].rotary.now()
    assert rotary is not None and rotary.inverse_frequencies.numel() == COMMON["head_dim"] // 2
