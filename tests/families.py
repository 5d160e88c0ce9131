"""Tiny random models of every supported family, on kvlab's attention or on plain transformers attention."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from kvlab.cache import CompressedCache, make_cache

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
FAMILIES: dict[str, tuple[str, dict]] = {
    "llama": ("llama", {}),
    "mistral": ("mistral", {"sliding_window": None}),
    "mistral-sliding": ("mistral", {"sliding_window": 8}),
    "qwen2": ("qwen2", {}),
    "qwen3": ("qwen3", {}),
    "phi3": ("phi3", {"pad_token_id": 0}),
    "gemma": ("gemma", {}),
    "gemma2": ("gemma2", {"sliding_window": 8, "query_pre_attn_scalar": 16}),
    "gemma3": (
        "gemma3_text",
        {
            "layer_types": ["sliding_attention", "full_attention", "full_attention"],
            "sliding_window": 8,
            "query_pre_attn_scalar": 16,
        },
    ),
    "gpt-neox": ("gpt_neox", {"num_key_value_heads": None, "rotary_pct": 1.0}),
    "falcon-multi-query": ("falcon", {"new_decoder_architecture": False, "multi_query": True, "alibi": False}),
    "falcon-grouped": ("falcon", {"new_decoder_architecture": True, "num_kv_heads": 2, "alibi": False}),
    "falcon-alibi": (
        "falcon",
        {"new_decoder_architecture": False, "multi_query": False, "parallel_attn": False, "alibi": True},
    ),
    "falcon-alibi-grouped": ("falcon", {"new_decoder_architecture": True, "num_kv_heads": 2, "alibi": True}),
}
# What a method needs besides its defaults to run on a model that nothing was fitted to.
ON_ANY_MODEL: dict[str, dict] = {"less": {"weights": "untrained"}}
# transformers 5.23 adds Falcon's ALiBi twice under `eager`: to the mask, and to the logits again.
PLAIN = {"falcon-alibi": "sdpa", "falcon-alibi-grouped": "sdpa"}
OUTSIDE = {
    "falcon": ("intermediate_size", "num_key_value_heads", "head_dim"),
    "gpt_neox": ("num_key_value_heads", "head_dim"),
}


def tiny_model(
    family: str, dtype: torch.dtype = torch.float32, attention: str | None = None, **changes: object
) -> PreTrainedModel:
    """A random model of the family, the same weights for the same arguments; plain attention unless told otherwise."""
    attention = attention or PLAIN.get(family, "eager")
    kind, own = FAMILIES[family]
    options = {name: value for name, value in COMMON.items() if name not in OUTSIDE.get(kind, ())}
    config = CONFIG_MAPPING[kind](
        **(options | {k: v for k, v in own.items() if v is not None or k == "sliding_window"} | changes)
    )
    torch.manual_seed(0)
    config.initializer_range = 0.3
    model = AutoModelForCausalLM.from_config(config, attn_implementation=attention).to(dtype).eval()
    if kind == "falcon":
        model.config.tie_word_embeddings = True
    return model


def cache_for(model: PreTrainedModel, method: str, budget: float | int, **options: object) -> CompressedCache:
    """A cache of a registered method with its defaults, for any of these models."""
    return make_cache(model, method, budget, **options, **ON_ANY_MODEL.get(method, {}))


def tiny_folder(path: Path, family: str = "llama") -> Path:
    """A model folder on disk: a random model of the family with a byte-level tokenizer, one token a byte."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    special = ["<pad>", "<bos>", "<eos>"]
    symbols = special + sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({symbol: index for index, symbol in enumerate(symbols)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", 1)])
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<bos>", eos_token="<eos>", pad_token="<pad>"
    ).save_pretrained(path)
    tiny_model(family, vocab_size=len(symbols)).save_pretrained(path)
    return path
