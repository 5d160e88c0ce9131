"""Which families kvlab runs, and how a model is set to kvlab's attention."""

from __future__ import annotations

from typing import Any

from transformers import AutoModelForCausalLM, AutoModelForImageTextToText, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from kvlab.attention import register_attention
from kvlab.errors import UserError
from kvlab.models.falcon import use_slot_attention
from kvlab.models.phi3 import keep_compressed_cache

SUPPORTED = (
    "llama",
    "mistral",
    "qwen2",
    "qwen3",
    "phi3",
    "gemma",
    "gemma2",
    "gemma3_text",
    "gpt_neox",
    "falcon",
)
OWN_ATTENTION = ("falcon",)


def prepare(model: PreTrainedModel) -> PreTrainedModel:
    """The same model, set to kvlab's attention; raises UserError for an unsupported family."""
    check_supported(model.config.get_text_config(decoder=True))
    name = register_attention()
    if model.config.model_type == "falcon":
        use_slot_attention(model, name)
    else:
        model.set_attn_implementation(name)
    if model.config.model_type == "phi3":
        keep_compressed_cache(model)
    return model


def model_class(config: Any) -> Any:
    """The transformers class that loads this model: of text, or of text and images where there is no other."""
    return AutoModelForCausalLM if type(config) in MODEL_FOR_CAUSAL_LM_MAPPING else AutoModelForImageTextToText


def check_supported(config: Any) -> None:
    """Raises UserError if kvlab cannot run this configuration faithfully."""
    config = config.get_text_config(decoder=True)
    if config.model_type not in SUPPORTED:
        raise UserError(f"Models of family {config.model_type!r} are not supported; kvlab runs {', '.join(SUPPORTED)}.")
