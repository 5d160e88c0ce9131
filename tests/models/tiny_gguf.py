"""Tiny GGUF files of random models, written with the package gguf as llama.cpp's converter lays them out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
from transformers import PreTrainedModel

from tests.families import tiny_model

ARCHITECTURES = {
    "llama": gguf.MODEL_ARCH.LLAMA,
    "qwen2": gguf.MODEL_ARCH.QWEN2,
    "qwen3": gguf.MODEL_ARCH.QWEN3,
    "phi3": gguf.MODEL_ARCH.PHI3,
    "gemma2": gguf.MODEL_ARCH.GEMMA2,
}
TOKENS = ["<unk>", "<s>", "</s>", "w", "1", "w1", "Ġ", *(chr(0x4E00 + index) for index in range(90))]
CHAT_TEMPLATE = "{% for m in messages %}<s>{{ m['role'] }}: {{ m['content'] }}</s>{% endfor %}"


def tiny_gguf(
    path: Path,
    family: str = "llama",
    kind: gguf.GGMLQuantizationType | None = None,
    more: Callable[[gguf.GGUFWriter], None] = lambda writer: None,
    **sizes: object,
) -> PreTrainedModel:
    """Write a random model of the family to `path` and return it; `kind` quantizes its matrices, None keeps float32.

    `more` adds settings and tensors to the file that the model does not have; `sizes` go into its config.
    """
    model = tiny_model(family, num_hidden_layers=2, **sizes).cpu()
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[ARCHITECTURES[family]])
    _settings(writer, model.config)
    more(writer)
    names = gguf.get_tensor_name_map(ARCHITECTURES[family], model.config.num_hidden_layers)
    for name, weight in model.state_dict().items():
        if name == "lm_head.weight" and model.config.tie_word_embeddings:
            continue
        known = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert known is not None, name
        data = _laid_out(name, weight.numpy(), model, family)
        if kind is not None and data.ndim == 2:
            writer.add_tensor(known, gguf.quantize(data, kind), raw_dtype=kind)
        else:
            writer.add_tensor(known, data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return model


def _settings(writer: gguf.GGUFWriter, config) -> None:
    writer.add_name("tiny")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_embedding_length(config.hidden_size)
    share = config.rope_parameters.get("partial_rotary_factor", 1.0)
    writer.add_rope_dimension_count(int(share * config.head_dim))
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(TOKENS)
    writer.add_token_types([3, 3, 3, *[1] * (len(TOKENS) - 3)])
    writer.add_token_merges(["w 1"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(0)
    writer.add_chat_template(CHAT_TEMPLATE)


def _laid_out(name: str, weight: np.ndarray, model: PreTrainedModel, family: str) -> np.ndarray:
    """As the converter stores it: rotated pairs of Llama side by side, Gemma's norms with their one added."""
    if family == "llama" and name.endswith(("q_proj.weight", "k_proj.weight")):
        heads = model.config.num_attention_heads if "q_proj" in name else model.config.num_key_value_heads
        rows = weight.reshape(heads, 2, weight.shape[0] // heads // 2, weight.shape[1])
        return np.ascontiguousarray(rows.swapaxes(1, 2).reshape(weight.shape))
    return weight + 1 if family.startswith("gemma") and name.endswith("norm.weight") else weight
