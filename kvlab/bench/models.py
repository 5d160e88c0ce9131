"""Open a model to measure: one that `kvlab.load_model` finds, or a real architecture with random weights."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.initialization import no_init_weights

from kvlab.bench.device import check_room
from kvlab.core.attention import ATTENTION_NAME
from kvlab.core.attention.layer_handoff import PROJECTIONS
from kvlab.engine.environment import model_shape, step_weight_bytes
from kvlab.models.info.size import SHAPE_PREFIX, find_shape
from kvlab.models.load import LoadedModel, load_model, pick_device, prepare
from kvlab.models.placement import DTYPES, input_device
from kvlab.trace.schema import ModelShape

WEIGHT_SPREAD = 0.02


@dataclass(frozen=True)
class BenchModel:
    """A model with the properties that a benchmark needs."""

    model: PreTrainedModel
    name: str
    tokenizer: Any = None  # None for shapes with random weights
    rounding_kl: float | None = None

    @property
    def device(self) -> torch.device:
        """Device of the token ids; for a distributed model, its first device."""
        return input_device(self.model)

    def device_of(self, layer: int) -> torch.device:
        """Device of a layer's attention, keys and values."""
        for part in self.attention_modules[layer].modules() if layer in self.attention_modules else ():
            if (place := getattr(getattr(part, "_hf_hook", None), "execution_device", None)) is not None:
                return torch.device(place)
        return self.device

    @property
    def dtype(self) -> torch.dtype:
        return self.model.dtype

    @property
    def config(self) -> Any:
        return self.model.config.get_text_config(decoder=True)

    @cached_property
    def shape(self) -> ModelShape:
        return model_shape(LoadedModel(self.model, None, self.name))  # type: ignore[arg-type]  # nothing here is tokenized

    @cached_property
    def attention_modules(self) -> dict[int, nn.Module]:
        found = (m for m in self.model.modules() if any(hasattr(m, name) for name in PROJECTIONS))
        return {int(m.layer_idx): m for m in found if hasattr(m, "layer_idx")}  # type: ignore[arg-type]  # layer_idx is an integer, modules are typed as tensors

    @cached_property
    def weight_bytes(self) -> int:
        return sum(p.numel() * p.element_size() for p in self.model.parameters())

    @cached_property
    def bytes_per_pass(self) -> int:
        """Weight bytes read per decode step."""
        return step_weight_bytes(self.model)

    @property
    def token_bytes(self) -> int:
        """Keys and values of one token in all layers, uncompressed."""
        shape = self.shape
        return (
            2 * shape.num_hidden_layers * shape.num_key_value_heads * shape.head_dim * torch.finfo(self.dtype).bits // 8
        )

    @contextmanager
    def attention(self, name: str) -> Iterator[None]:
        """Use another attention function inside the context."""
        if self.model.config._attn_implementation != name:
            self.model.set_attn_implementation(name)
        try:
            yield
        finally:
            if name != ATTENTION_NAME:
                self.model.set_attn_implementation(ATTENTION_NAME)


def open_model(
    name: str,
    *,
    scale: int = 1,
    device: str = "auto",
    dtype: str = "auto",
    seed: int = 0,
    hub: dict[str, Any] | None = None,
) -> BenchModel:
    """`shape:NAME` with random weights, or any model `kvlab.load_model` takes, with its options `hub`.

    Raises UserError for an unknown model, shape or device, and MemoryError if a shape does not fit.
    """
    if not name.startswith(SHAPE_PREFIX):
        loaded = load_model(name, device, dtype, **(hub or {}))
        return BenchModel(loaded.model, name, loaded.tokenizer, loaded.rounding_kl)
    place = pick_device(device)
    kind = DTYPES.get(dtype, torch.float32 if place.type == "cpu" else torch.bfloat16)
    config = find_shape(name.removeprefix(SHAPE_PREFIX), scale).config()
    with torch.device("meta"), no_init_weights():
        empty = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    check_room(sum(p.numel() for p in empty.parameters()) * torch.finfo(kind).bits // 8, place)
    # Directly on its device and in its dtype, with random weights.
    with place, no_init_weights():
        model = AutoModelForCausalLM.from_config(config, dtype=kind, trust_remote_code=False)
    generator = torch.Generator(place).manual_seed(seed)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1:
                weight.normal_(0.0, WEIGHT_SPREAD, generator=generator)
            elif weight.dim() == 1 and not bool((weight == 1).all()):
                weight.zero_()  # a bias; norms are already ones
    return BenchModel(prepare(model).eval(), name)
