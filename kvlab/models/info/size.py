"""A model's sizes, which determine memory and time, read from `config.json` and the weights' headers alone."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvlab.core import UserError, read_file, read_json
from kvlab.models.info.model_faults import ABOUT, about, fault
from kvlab.models.info.names import model_file

if TYPE_CHECKING:
    from transformers import PretrainedConfig


@dataclass(frozen=True)
class Shape:
    """The numbers that determine bytes and operations of a decoder-only model, under transformers' names."""

    family: str
    num_hidden_layers: int
    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    max_position_embeddings: int
    rope_theta: float
    options: dict[str, Any] = field(default_factory=dict)

    def scaled(self, by: int) -> Shape:
        """The shape with layers, heads, hidden and intermediate sizes and vocabulary divided by `by`.

        `head_dim` and query heads per KV head stay, so a slot costs what it costs in the real model.
        """
        group = self.num_attention_heads // self.num_key_value_heads
        key_value_heads = max(1, self.num_key_value_heads // by)
        heads = key_value_heads * group
        return replace(
            self,
            num_hidden_layers=max(1, self.num_hidden_layers // by),
            hidden_size=heads * self.hidden_size // self.num_attention_heads,
            intermediate_size=max(64, self.intermediate_size // by),
            num_attention_heads=heads,
            num_key_value_heads=key_value_heads,
            vocab_size=max(64, self.vocab_size // by),
        )

    def config(self) -> PretrainedConfig:
        from transformers.models.auto.configuration_auto import CONFIG_MAPPING

        numbers: dict[str, Any] = {
            name: value for name, value in vars(self).items() if name not in ("family", "rope_theta", "options")
        }
        rope = {"rope_type": "default", "rope_theta": self.rope_theta}
        ends: dict[str, Any] = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "tie_word_embeddings": False}
        return CONFIG_MAPPING[self.family](**(numbers | ends | {"rope_parameters": rope} | self.options))


SHAPES = {
    "tiny": Shape("llama", 2, 64, 128, 4, 2, 16, 256, 65536, 1e4),
    "llama2-7b": Shape("llama", 32, 4096, 11008, 32, 32, 128, 32000, 4096, 1e4),
    "llama2-13b": Shape("llama", 40, 5120, 13824, 40, 40, 128, 32000, 4096, 1e4),
    "llama3-8b": Shape("llama", 32, 4096, 14336, 32, 8, 128, 128256, 8192, 5e5),
    "mistral-7b": Shape("mistral", 32, 4096, 14336, 32, 8, 128, 32768, 32768, 1e6, {"sliding_window": None}),
    "qwen2.5-7b": Shape("qwen2", 28, 3584, 18944, 28, 4, 128, 152064, 32768, 1e6),
    "qwen3-8b": Shape("qwen3", 36, 4096, 12288, 32, 8, 128, 151936, 40960, 1e6),
}


def find_shape(name: str, scale: int = 1) -> Shape:
    """The named shape, made `scale` times smaller; raises UserError for an unknown name."""
    if name not in SHAPES:
        raise UserError(f"There is no shape {name!r}; choose one of {', '.join(SHAPES)}.")
    return SHAPES[name].scaled(scale) if scale > 1 else SHAPES[name]


LARGEST_CONFIG_BYTES = 2**24
SHAPE_PREFIX = "shape:"
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "float64": 8}
# A packed weight with its share of the scale: 4 bytes per 64 weights in 4 bit, per row in 8 bit.
PACKED_BYTES = {"8bit": 1.01, "4bit": 0.5625}


@dataclass(frozen=True)
class Model:
    """Layers, heads and widths of a decoder; `parameters` come from the weight files or the shape."""

    name: str
    family: str
    full_layers: int
    sliding_layers: int
    window: int  # of the sliding layers
    heads: int
    key_value_heads: int
    head_dim: int
    hidden: int
    intermediate: int  # that one token passes through: of all its experts
    vocabulary: int
    parameters: int
    read_per_token: int  # parameters that one token passes through
    dtype: str  # of the checkpoint
    counted: bool  # whether `parameters` were counted
    tables: int = 0  # parameters of embedding and output layer, which are not packed
    other_layers: int = 0  # with a recurrent state, or none
    file_bytes: int = 0  # of a GGUF file, whose weights are dequantised while they load
    written_out: bool = False  # logits are capped, biased or have a learned sink, so no fused kernel applies

    @property
    def layers(self) -> int:
        return self.full_layers + self.sliding_layers + self.other_layers

    @property
    def group(self) -> int:
        """Query heads per KV head."""
        return max(1, self.heads // self.key_value_heads)

    def number_bytes(self, dtype: str, device: str) -> int:
        """Bytes of one weight or cache number under a request's `dtype`, resolved as the loader does."""
        if dtype == "auto":
            dtype = "float32" if device == "cpu" else self.dtype
        return BYTES.get(dtype, 4)

    def weight_bytes(self, number: int, weights: str | None = None) -> int:
        """Bytes of all weights at `number` bytes each; in 8 or 4 bit all but the tables, in bf16 all but the embedding.

        An output layer that shares the embedding's table has its own in bf16.
        """
        tables = min(self.tables, self.parameters)
        if weights == "bf16":
            embedding = self.vocabulary * self.hidden
            return embedding * number + BYTES["bfloat16"] * (self.parameters - tables + embedding)
        return math.ceil(tables * number + (self.parameters - tables) * PACKED_BYTES.get(weights or "", number))


def find_model(name: str, scale: int = 1) -> Model:
    """The sizes of `mini`, a local folder, a cached hub name, or `shape:NAME` scaled down by `scale`.

    Raises UserError if the configuration is not on this machine or incomplete.
    """
    if name.startswith(SHAPE_PREFIX):
        shape = find_shape(name.removeprefix(SHAPE_PREFIX), scale)
        config = vars(shape) | shape.options | {"model_type": shape.family, "dtype": "bfloat16"}
        return model_from(name, config)
    file = model_file(name, "config.json")
    if file is None:
        if why := fault(Path(name)):
            raise UserError(why)
        raise UserError(
            f"The configuration of {name!r} is not on this machine, so nothing can be planned: give mini, a folder "
            "with config.json, a hub model that was loaded here before, or a shape such as shape:llama3-8b."
        )
    try:
        config = read_json(read_file(file, "The configuration", LARGEST_CONFIG_BYTES))
        found = model_from(name, config.get("text_config") or config, _counted(file.parent))
        described = file.parent / ABOUT
        return replace(found, file_bytes=int(about(file.parent)["bytes"])) if described.is_file() else found
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ArithmeticError) as error:
        raise UserError(f"{file} does not say what a plan needs ({error!r}): is it a decoder's?") from None


# Names of a number in configurations, transformers' first.
SPELLINGS = (
    ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    ("num_attention_heads", "n_head", "n_heads"),
    ("hidden_size", "n_embd", "n_embed", "d_model"),
)


def model_from(name: str, config: Mapping[str, Any], parameters: int | None = None) -> Model:
    """The sizes in a transformers configuration. Raises KeyError if a required one is missing."""
    found: dict[str, int] = {}
    for first, *others in SPELLINGS:
        found[first] = next((config[name] for name in (first, *others) if config.get(name) is not None), 0)
    layers = found["num_hidden_layers"] or len(_named(config, 0)) or config["num_hidden_layers"]
    heads = found["num_attention_heads"] or config["num_attention_heads"]
    hidden = found["hidden_size"] or config["hidden_size"]
    head_dim = (config.get("model_type") not in UNGROUPED and config.get("head_dim")) or hidden // heads
    full, sliding, window = kinds_of_layers(config, layers)
    experts = config.get("num_local_experts") or config.get("num_experts") or config.get("n_routed_experts") or 1
    chosen = config.get("num_experts_per_tok", 1) if experts > 1 else 1
    width = (config.get("moe_intermediate_size") if experts > 1 else None) or config.get("intermediate_size")
    width = width or config.get("ffn_hidden_size") or 4 * hidden
    kind = config.get("model_type")
    key_value_heads = config.get("num_key_value_heads") or heads
    if kind == "gpt_bigcode" or (kind == "falcon" and not config.get("new_decoder_architecture")):
        key_value_heads = 1 if config.get("multi_query", True) else heads
    elif kind == "falcon":
        key_value_heads = config.get("num_kv_heads") or heads
    elif kind in UNGROUPED:
        key_value_heads = heads
    vocabulary = config["vocab_size"]
    attention = (2 * heads + 2 * key_value_heads) * head_dim * hidden
    matrices = 2 if config.get("model_type") in ("gpt_neox", "falcon", "bloom", "mpt", "phi", "starcoder2") else 3
    tables = (1 if config.get("tie_word_embeddings", False) else 2) * vocabulary * hidden
    whole = layers * (attention + matrices * experts * width * hidden + 2 * hidden) + tables + hidden
    return Model(
        name=name,
        family=str(config.get("model_type", "")),
        full_layers=full,
        sliding_layers=sliding,
        window=window,
        heads=heads,
        key_value_heads=key_value_heads,
        head_dim=head_dim,
        hidden=hidden,
        intermediate=chosen * width,
        vocabulary=vocabulary,
        parameters=parameters or whole,
        read_per_token=layers * (attention + matrices * chosen * width * hidden) + vocabulary * hidden,
        dtype=str(config.get("dtype") or config.get("torch_dtype") or "float32"),
        counted=parameters is not None,
        tables=tables,
        other_layers=layers - full - sliding,
        written_out=bool(config.get("attn_logit_softcapping") or config.get("alibi"))
        or config.get("model_type") in ("gpt_oss", "bloom", "mpt"),
    )


# Families of decoders without grouped heads: transformers ignores the keys `num_key_value_heads` and `head_dim`.
UNGROUPED = frozenset(
    (
        "biogpt",
        "bloom",
        "codegen",
        "ctrl",
        "gpt2",
        "gpt_neo",
        "gpt_neox",
        "gpt_neox_japanese",
        "gptj",
        "mpt",
        "openai-gpt",
        "opt",
        "persimmon",
        "xglm",
    )
)


def _counted(folder: Path) -> int | None:
    """Parameters in a folder's safetensors files, from their headers, or of its GGUF file; None if there are none."""
    if (folder / ABOUT).is_file():
        return int(about(folder)["parameters"])
    files = sorted(folder.glob("*.safetensors"))
    named = folder / "model.safetensors.index.json"
    if named.is_file():  # some folders hold a second, merged copy, and parts may be missing
        parts = {folder / part for part in json.loads(named.read_text(encoding="utf-8"))["weight_map"].values()}
        files = sorted(parts) if all(part.is_file() for part in parts) else []
    count = 0
    for file in files:
        with file.open("rb") as opened:
            size = int.from_bytes(opened.read(8), "little")
            if size > file.stat().st_size:
                raise ValueError(f"{file.name} is damaged")
            header = read_json(opened.read(size))
        count += sum(math.prod(tensor["shape"]) for name, tensor in header.items() if name != "__metadata__")
    return count or None


# Sliding-window layers, under transformers' names.
WINDOWED = ("sliding_attention", "chunked_attention", "hybrid_sliding")
WHOLE = ("full_attention", "attention", "hybrid")
# Families whose layers are all sliding-window if the configuration has a window and no layer types.
ALL_SLIDE = ("mistral", "mixtral", "phi3", "starcoder2")
PATTERN = {"*": "full_attention", "M": "linear_attention", "-": "mlp", "E": "moe"}  # of Nemotron-H


def kinds_of_layers(config: Mapping[str, Any], layers: int) -> tuple[int, int, int]:
    """(full-attention layers, sliding-window layers, their window); other layers keep no keys and values."""
    window = config.get("sliding_window") or config.get("attention_chunk_size") or 0
    if kinds := _named(config, layers):
        return sum(kind in WHOLE for kind in kinds), sum(kind in WINDOWED for kind in kinds), window
    if config.get("model_type") == "falcon_h1":  # attention and a state in every layer
        return layers, 0, 0
    slides = window and config.get("use_sliding_window", True) and config.get("model_type") in ALL_SLIDE
    if slides and window < config.get("max_position_embeddings", window + 1):
        return 0, layers, window
    return layers, 0, window


def _named(config: Mapping[str, Any], layers: int) -> list[str]:
    for name in ("layer_types", "layers_block_type"):
        if config.get(name):
            return list(config[name])
    if config.get("hybrid_override_pattern"):
        return [PATTERN.get(letter, "other") for letter in config["hybrid_override_pattern"]]
    attending = config.get("attn_layer_indices")
    if attending is None and config.get("attn_layer_period"):
        attending = range(config.get("attn_layer_offset", 0), layers, config["attn_layer_period"])
    if attending is None:
        return []
    return ["full_attention" if index in attending else "linear_attention" for index in range(layers)]
