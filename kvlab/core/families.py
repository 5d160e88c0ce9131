"""Supported model families, and how a model is set to kvlab's attention.

A family that uses transformers' attention interface, with keys and values per head, needs no code: it is added by name
once tests/conformance proves that a full budget equals plain transformers.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial, wraps
from typing import Any

from torch import nn
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText, GenerationMixin, PreTrainedModel

from kvlab.core.attention import register_attention
from kvlab.core.attention.inline_attention import INLINE, find_cache, give_a_mask
from kvlab.core.attention.queries import STARTS_ANEW
from kvlab.core.errors import UserError

SUPPORTED = (
    *("llama", "llama4_text", "smollm3", "arcee", "seed_oss", "nemotron"),
    *("mistral", "mixtral", "ministral", "ministral3"),
    *("qwen2", "qwen3", "qwen2_moe", "qwen3_moe"),
    *("gemma", "gemma2", "gemma3_text", "gemma3n_text", "gemma4_text"),
    *("phi", "phi3"),
    *("gpt_oss", "gpt_neox", "starcoder2", "stablelm"),
    *("olmo", "olmo2", "olmo3", "olmoe"),
    *("granite", "granitemoe", "cohere", "cohere2", "exaone4"),
    *("glm", "glm4", "glm4_moe", "ernie4_5"),
    *("falcon", "bloom", "mpt"),
    *("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text", "lfm2", "lfm2_moe", "olmo_hybrid"),
    *("jamba", "bamba", "granitemoehybrid", "nemotron_h", "falcon_h1", "zamba2"),
)
# What layers may keep: keys and values per head, of the whole text or of a window.
ATTENDING = ("full_attention", "sliding_attention", "chunked_attention")
# What some layers of a hybrid keep instead: a state of constant size, or nothing; left unchanged.
BESIDE = ("linear_attention", "conv", "hybrid", "moe", "mlp")


def keep_compressed_cache(model: PreTrainedModel) -> None:
    """Make `generate` keep a compressed cache of Phi-3 with two sets of rotary frequencies; other caches as before.

    transformers discards the cache at the first pass beyond the switch and recomputes all keys with the long
    frequencies. A compressed cache cannot be recomputed, and a longer prompt would lose it before its first use, so
    that the answer would come from a full cache.
    """
    original: Callable[..., dict[str, Any]] = getattr(model, "prepare_inputs_for_generation")  # noqa: B009
    plain: Callable[..., dict[str, Any]] = GenerationMixin.prepare_inputs_for_generation

    @wraps(original)
    def prepare(*args: Any, **kwargs: Any) -> dict[str, Any]:
        layers = getattr(find_cache(args, kwargs), "layers", ())
        if any(hasattr(layer, "attend") for layer in layers):
            return plain(model, *args, **kwargs)
        return original(*args, **kwargs)

    object.__setattr__(model, "prepare_inputs_for_generation", prepare)


def check_pass(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raise UserError at a later pass of several tokens.

    Jamba and Bamba reset their recurrent state at every such pass (transformers 5.23), so a prompt in chunks or a
    second turn would silently lose earlier text.
    """
    cache = find_cache(args, kwargs)
    ids = args[0] if args else kwargs.get("input_ids")
    if cache is not None and ids is not None and ids.shape[1] > 1 and cache.get_seq_length() > 0:
        raise UserError(
            f"Models of family {module.config.model_type!r} reset their recurrent state at every pass of several "  # type: ignore[union-attr]  # modules are typed as tensors
            "tokens, so the whole text must come in one pass: do not use prefill chunks or second turns."
        )


# What is called before every pass of a family's model, and the mark of a model that has it already.
PASS_HOOKS: dict[str, tuple[Callable[..., Any], str]] = {
    "mpt": (give_a_mask, "_kvlab_gives_a_mask"),
    **dict.fromkeys(("jamba", "bamba"), (check_pass, STARTS_ANEW)),
}


@dataclass(frozen=True)
class Attachment:
    """A model that runs kvlab's attention until `detach`, or until its `with` block ends.

    Other caches, and calls without one, give what the model gave before: the attention function computes plain
    attention for them.
    """

    model: PreTrainedModel
    undo: list[Callable[[], object]] = field(default_factory=list)

    def detach(self) -> None:
        """Give the model back the attention it had (idempotent); caches made for it no longer work."""
        while self.undo:
            self.undo.pop()()
        vars(self.model).pop(ATTACHMENT, None)

    def __enter__(self) -> "Attachment":
        return self

    def __exit__(self, *_: object) -> None:
        self.detach()


ATTACHMENT = "_kvlab_attachment"


def prepare(model: PreTrainedModel) -> PreTrainedModel:
    """Set the model to kvlab's attention and return it; raises UserError for an unsupported family."""
    check_supported(model.config)
    switch_attention(model)
    return model


def switch_attention(model: PreTrainedModel) -> Attachment:
    """Set the model to kvlab's attention, and note how to undo it; a second call returns the same attachment."""
    if ATTACHMENT in vars(model):
        return vars(model)[ATTACHMENT]
    config = model.config.get_text_config(decoder=True)
    attachment = Attachment(model)
    configs = {id(module.config): module.config for module in model.modules() if hasattr(module, "config")}
    for each in configs.values():
        if before := getattr(each, "_attn_implementation", None):
            attachment.undo.append(partial(setattr, each, "_attn_implementation", before))
    attachment.undo.append(partial(setattr, config, "sliding_window", getattr(config, "sliding_window", None)))
    # Remove a window that is as wide as the context, since it hides nothing (Phi-3.5 mini, Phi-4 mini), if the whole
    # model has one window: otherwise the layer type matters beyond what it hides.
    window = getattr(config, "sliding_window", None)
    context = getattr(config, "max_position_embeddings", None)
    if getattr(config, "layer_types", None) is None and window is not None and context and window >= context:
        config.sliding_window = None
    name = register_attention()
    family = config.model_type
    if family in INLINE:
        original, routed = INLINE[family]
        inline: list[Any] = [module for module in model.modules() if isinstance(module, original)]
        for module in inline:
            _change_class(module, routed)
            attachment.undo.append(partial(_change_class, module, original))
            if not hasattr(module, "config"):
                module.config = model.config
        every_config: list[Any] = [getattr(module, "config", None) for module in model.modules()]
        for each in every_config:
            if each is not None:
                each._attn_implementation = name
    else:
        model.set_attn_implementation(name)
    if family == "phi3":
        keep_compressed_cache(model)
    if family in PASS_HOOKS:
        hook, mark = PASS_HOOKS[family]
        hooked = model.base_model if family == "mpt" else model  # MPT's decoder converts the mask
        if not hasattr(hooked, mark):
            hooked.register_forward_pre_hook(hook, with_kwargs=True)
            setattr(hooked, mark, True)
    object.__setattr__(model, ATTACHMENT, attachment)
    return attachment


def _change_class(module: Any, to: type[nn.Module]) -> None:
    module.__class__ = to
    if "_old_forward" in vars(module):  # accelerate calls this one, between moving inputs and outputs
        module._old_forward = to.forward.__get__(module)


def model_class(config: Any) -> Any:
    """The transformers class for this checkpoint, including any vision part."""
    also_sees = config.get_text_config(decoder=True) is not config
    return AutoModelForImageTextToText if also_sees else AutoModelForCausalLM


def check_supported(config: Any) -> None:
    """Raise UserError if no test shows that kvlab runs this configuration exactly."""
    check_layers(config)
    family = config.get_text_config(decoder=True).model_type
    if family not in SUPPORTED:
        raise UserError(
            f"Models of family {family!r} are not supported: no test shows yet that kvlab runs them exactly; kvlab "
            f"supports {', '.join(sorted(SUPPORTED))}."
        )


def check_layers(config: Any) -> None:
    """Raise UserError if some layers keep something other than keys and values per head, or a recurrent state."""
    config = config.get_text_config(decoder=True)
    family = config.model_type
    kinds = set(getattr(config, "layer_types", None) or ())
    if getattr(config, "kv_lora_rank", None):
        raise UserError(
            f"Models of family {family!r} are not supported: they keep one latent state per token (MLA), not keys and "
            "values per head."
        )
    if others := sorted(kinds.difference(ATTENDING, BESIDE)):
        raise UserError(
            f"Models of family {family!r} are not supported: they have layers of kind {', '.join(map(str, others))}, "
            "which keep no keys and values per head."
        )


def compressed_only(kinds: list[str], compressed: list[int]) -> str:
    """Note for a model of which only some layers are compressed because others keep a state; else empty."""
    stateful = [index for index, kind in enumerate(kinds) if kind in ("linear_attention", "conv")]
    if any(kind.startswith("hybrid") for kind in kinds):
        return "Each layer's recurrent state is unchanged: only its attention is compressed."
    if not stateful:
        return ""
    return (
        f"{len(stateful)} of {len(kinds)} layers keep a recurrent state, which does not grow with the text and is "
        f"unchanged: kvlab compresses the attention of {len(compressed)} layers ({', '.join(map(str, compressed))})."
    )
