"""Tiny random models of every supported family, on kvlab's attention or on plain transformers attention."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from kvlab.bench.request import ON_RANDOM_WEIGHTS
from kvlab.core.cache import CompressedCache, make_cache

# Where models and prompts of the conformance tests are: `KVLAB_TEST_DEVICE=cuda` runs the matrix on a GPU.
DEVICE = torch.device(os.environ.get("KVLAB_TEST_DEVICE", "cpu"))
COMMON = {
    "vocab_size": 97,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
TWO = {"num_hidden_layers": 2}  # are enough where layers are alike, in the matrix that every method goes through
FAMILIES: dict[str, tuple[str, dict]] = {
    "llama": ("llama", {}),
    "mistral": ("mistral", {"sliding_window": None, **TWO}),
    "mistral-sliding": ("mistral", {"sliding_window": 8, **TWO}),
    "qwen2": ("qwen2", TWO),
    "qwen3": ("qwen3", TWO),
    "phi3": ("phi3", {"pad_token_id": 0, **TWO}),
    "gemma": ("gemma", TWO),
    "gemma2": ("gemma2", {"sliding_window": 8, "query_pre_attn_scalar": 16}),
    "gemma3": (
        "gemma3_text",
        {
            "layer_types": ["sliding_attention", "full_attention", "full_attention"],
            "sliding_window": 8,
            "query_pre_attn_scalar": 16,
        },
    ),
    "gpt-neox": ("gpt_neox", {"num_key_value_heads": None, "rotary_pct": 1.0, **TWO}),
    "falcon-multi-query": ("falcon", {"new_decoder_architecture": False, "multi_query": True, "alibi": False, **TWO}),
    "falcon-grouped": ("falcon", {"new_decoder_architecture": True, "num_kv_heads": 2, "alibi": False, **TWO}),
    "falcon-alibi": (
        "falcon",
        {"new_decoder_architecture": False, "multi_query": False, "parallel_attn": False, "alibi": True, **TWO},
    ),
    "falcon-alibi-grouped": ("falcon", {"new_decoder_architecture": True, "num_kv_heads": 2, "alibi": True, **TWO}),
}
WINDOWED = {"layer_types": ["sliding_attention", "full_attention", "full_attention"], "sliding_window": 8}
EXPERTS = {
    **{"num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4, "num_experts_per_tok": 2},
    **{"moe_intermediate_size": 32, "shared_expert_intermediate_size": 32},
}
PER_LAYER = {"hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 97}
GEMMA3N = {**WINDOWED, **PER_LAYER, "laurel_rank": 8, "intermediate_size": 96, "activation_sparsity_pattern": [0.0] * 3}
FACTORS = {"short_factor": [1.0 + 0.05 * i for i in range(8)], "long_factor": [2.0 + 0.5 * i for i in range(8)]}

# Hybrids: a layer with a recurrent state between two with attention, or both in one layer.
BETWEEN = {"layer_types": ["full_attention", "linear_attention", "full_attention"]}
CONVOLVED = {"layer_types": ["full_attention", "conv", "full_attention"], "conv_L_cache": 3}
DELTA = {
    **BETWEEN,
    **{"linear_conv_kernel_dim": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 16},
    **{"linear_num_key_heads": 2, "linear_num_value_heads": 4},
}
MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 16, "mamba_n_groups": 1, "mamba_chunk_size": 8}
GRANITE_HYBRID = {
    **{**BETWEEN, **EXPERTS, **MAMBA},
    **{"shared_intermediate_size": 64, "attention_multiplier": 0.25, "logits_scaling": 2.0},
}


def scaled(kind: str, **options: object) -> dict:
    """Rotary frequencies of a kind, made for 64 positions and stretched to 512."""
    own = {"rope_type": kind, "rope_theta": 1e4, "original_max_position_embeddings": 64, **options}
    return {"rope_parameters": {"factor": 8.0, **own}}


# Families and variants that have a smaller matrix of their own, tests/conformance/test_families.py; the whole one sees
# them with KVLAB_CONFORMANCE=full.
MORE: dict[str, tuple[str, dict]] = {
    "llama-llama3": ("llama", scaled("llama3", low_freq_factor=1.0, high_freq_factor=4.0)),
    "llama-yarn": ("llama", scaled("yarn", attention_factor=1.05)),
    "llama-linear": ("llama", scaled("linear")),
    "llama-dynamic": ("llama", scaled("dynamic")),
    "llama-biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "phi3-longrope": ("phi3", {**scaled("longrope", **FACTORS), "original_max_position_embeddings": 64}),
    "phi3-partial": ("phi3", {"partial_rotary_factor": 0.75}),
    "phi3-wide-window": ("phi3", {"sliding_window": 512}),
    "mistral-wide-window": ("mistral", {"sliding_window": 4096}),
    "qwen3-windowed": ("qwen3", {**WINDOWED, "use_sliding_window": True, "max_window_layers": 1}),
    "gpt-neox-partial": ("gpt_neox", {"rotary_pct": 0.25}),
    "mixtral": ("mixtral", {"sliding_window": None, **EXPERTS}),
    "qwen2-moe": ("qwen2_moe", EXPERTS),
    "qwen3-moe": ("qwen3_moe", EXPERTS),
    "gpt-oss": ("gpt_oss", {**WINDOWED, **EXPERTS, **scaled("yarn", beta_fast=32.0, beta_slow=1.0, truncate=False)}),
    "llama4": (
        "llama4_text",
        {**EXPERTS, "attention_chunk_size": 8, "no_rope_layers": [1, 1, 0], "intermediate_size_mlp": 96},
    ),
    "llama4-rotated": (
        "llama4_text",
        {**EXPERTS, "layer_types": ["full_attention"] * 3, "no_rope_layers": [1, 0, 1], "intermediate_size_mlp": 96},
    ),
    "ministral": ("ministral", WINDOWED),
    "ministral3": ("ministral3", {}),
    "olmo": ("olmo", {"clip_qkv": 2.0}),
    "olmo2": ("olmo2", {}),
    "olmo3": ("olmo3", WINDOWED),
    "olmoe": ("olmoe", EXPERTS),
    "granite": ("granite", {"attention_multiplier": 0.3, "logits_scaling": 2.0}),
    "granitemoe": ("granitemoe", {**EXPERTS, "attention_multiplier": 0.3}),
    "cohere": ("cohere", {"use_qk_norm": True, "logit_scale": 1.0}),
    "cohere2": ("cohere2", {**WINDOWED, "logit_scale": 1.0}),
    "glm": ("glm", {"partial_rotary_factor": 0.5}),
    "glm4": ("glm4", {"partial_rotary_factor": 0.5, "attention_bias": True}),
    "glm4-moe": ("glm4_moe", {**EXPERTS, "partial_rotary_factor": 0.5, "use_qk_norm": True}),
    "smollm3": ("smollm3", {"no_rope_layers": [1, 0, 1]}),
    "starcoder2": ("starcoder2", {"sliding_window": None}),
    "phi": ("phi", {"partial_rotary_factor": 0.5}),
    "phi-normed": ("phi", {"partial_rotary_factor": 0.5, "qk_layernorm": True, "num_key_value_heads": 4}),
    "gemma3n": ("gemma3n_text", {**GEMMA3N, "num_kv_shared_layers": 0}),
    "gemma3n-shared": ("gemma3n_text", {**GEMMA3N, "num_hidden_layers": 5, "num_kv_shared_layers": 2}),
    "gemma4": ("gemma4_text", {**WINDOWED, **PER_LAYER, "global_head_dim": 32, "num_kv_shared_layers": 0}),
    "bloom": ("bloom", {}),
    "mpt": ("mpt", {}),
    "stablelm": ("stablelm", {"qk_layernorm": True, "use_qkv_bias": True}),
    "seed-oss": ("seed_oss", {}),
    "arcee": ("arcee", {}),
    "nemotron": ("nemotron", {}),
    "exaone4": ("exaone4", WINDOWED),
    "ernie4-5": ("ernie4_5", {}),
    "qwen3-next": ("qwen3_next", {**DELTA, **EXPERTS}),
    "qwen3.5": ("qwen3_5_text", DELTA),
    "qwen3.5-moe": ("qwen3_5_moe_text", {**DELTA, **EXPERTS}),
    "olmo-hybrid": ("olmo_hybrid", DELTA),
    "lfm2": ("lfm2", {**CONVOLVED, "block_auto_adjust_ff_dim": False}),
    "lfm2-moe": ("lfm2_moe", {**CONVOLVED, **EXPERTS, "num_dense_layers": 1}),
    "jamba": (
        "jamba",
        {**EXPERTS, "attn_layer_period": 2, "attn_layer_offset": 0, "mamba_d_state": 8, "mamba_dt_rank": 8},
    ),
    "bamba": ("bamba", {**MAMBA, "attn_layer_indices": [0, 2]}),
    "granitemoe-hybrid": ("granitemoehybrid", GRANITE_HYBRID),
    "granitemoe-hybrid-rotated": ("granitemoehybrid", {**GRANITE_HYBRID, "position_embedding_type": "rope"}),
    "nemotron-h": (
        "nemotron_h",
        {
            **{
                "num_hidden_layers": 4,
                "layers_block_type": ["full_attention", "linear_attention", "mlp", "full_attention"],
            },
            **{"mamba_num_heads": 8, "mamba_head_dim": 16, "ssm_state_size": 16, "n_groups": 2, "chunk_size": 8},
        },
    ),
    "falcon-h1": ("falcon_h1", {**MAMBA, "mamba_d_ssm": 128}),
    "zamba2": (
        "zamba2",
        {
            **{
                "num_hidden_layers": 2,
                "layers_block_type": ["linear_attention", "hybrid"],
                "mamba_d_state": 16,
                "n_mamba_heads": 8,
            },
            **{"mamba_ngroups": 1, "chunk_size": 8, "num_mem_blocks": 1, "use_mem_rope": True, "adapter_rank": 8},
        },
    ),
}
MORE["gemma3n-shared"][1].update(
    layer_types=["full_attention", "sliding_attention", "full_attention", "sliding_attention", "full_attention"],
    activation_sparsity_pattern=[0.0] * 5,
)
EVERY = FAMILIES | MORE
# What a method needs besides its defaults to run on a model that nothing was fitted to.
ON_ANY_MODEL = ON_RANDOM_WEIGHTS
# transformers 5.23 adds Falcon's ALiBi twice under `eager`: to the mask, and to the logits again.
PLAIN = {"falcon-alibi": "sdpa", "falcon-alibi-grouped": "sdpa"}
OUTSIDE = {
    "falcon": ("intermediate_size", "num_key_value_heads", "head_dim"),
    "gpt_neox": ("num_key_value_heads", "head_dim"),
    "bloom": ("num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim", "intermediate_size"),
    "mpt": (
        "hidden_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "intermediate_size",
        "max_position_embeddings",
    ),
}
INSTEAD = {
    "bloom": {"n_layer": 3, "n_head": 4},
    "mpt": {"d_model": 64, "n_layers": 3, "n_heads": 4, "max_seq_len": 512},
}


def tiny_model(
    family: str, dtype: torch.dtype = torch.float32, attention: str | None = None, **changes: object
) -> PreTrainedModel:
    """A random model of the family, the same weights for the same arguments; plain attention unless told otherwise."""
    attention = attention or PLAIN.get(family, "eager")
    kind, own = EVERY[family]
    options = {name: value for name, value in COMMON.items() if name not in OUTSIDE.get(kind, ())}
    options |= INSTEAD.get(kind, {})
    if "vocab_size_per_layer_input" in own:
        changes = {"vocab_size_per_layer_input": changes.get("vocab_size", 97), **changes}
    config = CONFIG_MAPPING[kind](
        **(options | {k: v for k, v in own.items() if v is not None or k == "sliding_window"} | changes)
    )
    torch.manual_seed(0)
    config.initializer_range = 0.3
    model = AutoModelForCausalLM.from_config(config, attn_implementation=attention).to(dtype).eval()
    _fill_what_is_empty(model)
    if kind == "falcon":
        model.config.tie_word_embeddings = True
    return model.to(DEVICE)


def _fill_what_is_empty(model: PreTrainedModel) -> None:
    """Random numbers for what its maker leaves at zero or untouched, so that no part of a model is without effect."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith(("sinks", "bias")) or not torch.isfinite(weight).all():
                drawn = torch.randn(weight.shape, generator=generator)
                weight.copy_(5 + 3 * drawn if name.endswith("sinks") else 0.1 * drawn)  # these logits are of size 10


def cache_for(model: PreTrainedModel, method: str, budget: float | int, **options: object) -> CompressedCache:
    """A cache of a registered method with its defaults, for any of these models."""
    return make_cache(model, method, budget, **options, **ON_ANY_MODEL.get(method, {}))


# A turn each, as ChatML has it, with BOS written by the template, and a switch for thinking as Qwen 3 has it.
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<turn>{{ m['role'] }}\n{{ m['content'] }}<end>{% endfor %}"
    "{% if add_generation_prompt %}<turn>assistant\n{% if enable_thinking is defined and not enable_thinking %}"
    "<think></think>{% endif %}{% endif %}"
)


def tiny_folder(path: Path, family: str = "llama", chat_template: str | None = None, bos: bool = True) -> Path:
    """A model folder on disk: a random model of the family with a byte-level tokenizer, one token a byte.

    With `bos` the tokenizer puts its BOS token before a text; a `chat_template` has turns of <turn> and <end>.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    special = ["<pad>", "<bos>", "<eos>", *(["<turn>", "<end>"] if chat_template else [])]
    symbols = special + sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({symbol: index for index, symbol in enumerate(symbols)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    if bos:
        tokenizer.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", 1)])
    saved = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<bos>", eos_token="<eos>", pad_token="<pad>",
        additional_special_tokens=special[3:],
    )  # fmt: skip
    saved.chat_template = chat_template
    saved.save_pretrained(path)
    tiny_model(family, vocab_size=len(symbols)).save_pretrained(path)
    return path


def padded_rows(rows: int, tokens: int, pads: int, seed: int) -> tuple[Tensor, Tensor]:
    """(ids, mask) of so many rows, the second padded on the left."""
    ids = torch.randint(3, 97, (rows, tokens), generator=torch.Generator().manual_seed(seed))
    mask = torch.ones_like(ids)
    mask[1, :pads] = 0
    return (ids * mask).to(DEVICE), mask.to(DEVICE)
