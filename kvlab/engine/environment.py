"""Versions, device and model shape that a run's record states."""

import platform
from importlib.metadata import version
from typing import Any

import torch
from transformers import PreTrainedModel

from kvlab.core.attention.queries import full_attention_config, num_key_value_heads
from kvlab.core.cache.rotary import changing_rotary, find_rotary, unrotated_layers
from kvlab.core.plugins.load import stamps
from kvlab.models.load import LoadedModel
from kvlab.trace.schema import ModelShape

PACKAGES = ("kvlab", "torch", "transformers", "safetensors", "numpy")


def versions() -> dict[str, str]:
    """Versions of Python and of every package and plug-in whose change could change a number."""
    return {"python": platform.python_version()} | {name: version(name) for name in PACKAGES} | stamps()


def device_name(device: torch.device, rounding_kl: float | None = None) -> str:
    """Such as `cuda: NVIDIA H200` or `cpu: x86_64, 2 threads`, and what weights in bf16 lose."""
    if device.type == "cuda":
        name = f"cuda: {torch.cuda.get_device_name(device)}"
    elif device.type == "mps":
        name = f"mps: {platform.processor() or platform.machine()}"
    else:
        name = f"cpu: {platform.machine()}, {torch.get_num_threads()} threads"
    if rounding_kl is None:
        return name
    return f"{name}, weights in bf16 (with the full cache KL {rounding_kl:.2g} nats a token to float32)"


def step_weight_bytes(model: PreTrainedModel) -> int:
    """Bytes of the weights that a decode step reads: all but an input embedding that is not tied to the output's."""
    weights = sum(tensor_bytes(weight) for weight in model.parameters())
    table: Any = model.get_input_embeddings()
    output: Any = model.get_output_embeddings()
    is_tied = output is None or output.weight is table.weight
    return weights if is_tied else weights - tensor_bytes(table.weight)


def tensor_bytes(tensor: torch.Tensor) -> int:
    """Bytes of a tensor; of one that wraps others, as torchao's quantized weights do, theirs."""
    flatten = getattr(tensor, "__tensor_flatten__", None)
    if flatten is None:
        return tensor.numel() * tensor.element_size()
    return sum(tensor_bytes(getattr(tensor, name)) for name in flatten()[0])


def model_shape(loaded: LoadedModel) -> ModelShape:
    """The model's dimensions, as recorded for the figures."""
    config = loaded.model.config.get_text_config(decoder=True)
    heads = config.num_attention_heads
    attention = full_attention_config(config)
    # Of an embedding and an output layer that share a table, bf16 weights make two.
    table: Any = loaded.model.get_input_embeddings()
    parameters = sum(parameter.numel() for parameter in loaded.model.parameters())
    is_copied = loaded.rounding_kl is not None and config.tie_word_embeddings
    # Frequencies that change with the text's length are not a property of the model.
    rotary = find_rotary(loaded.model) if changing_rotary(loaded.model) is None else None
    rotation: dict[str, Any] = {}
    if rotary is not None:  # to undo the rotation of a recorded key
        rotation = {
            "rotary_inverse_frequencies": tuple(rotary.inverse_frequencies.tolist()),
            "rotary_interleaved": rotary.interleaved,
            "rotary_scaling": rotary.scaling,
            "unrotated_layers": tuple(sorted(unrotated_layers(loaded.model))),
        }
    return ModelShape(
        name=loaded.name,
        family=config.model_type,
        quantization=loaded.quantization,
        checksum=loaded.checksum,
        num_hidden_layers=config.num_hidden_layers,
        num_attention_heads=heads,
        num_key_value_heads=num_key_value_heads(config),
        head_dim=getattr(attention, "head_dim", None) or config.hidden_size // heads,
        dtype=str(loaded.model.dtype).removeprefix("torch."),
        parameters=parameters - (table.weight.numel() if is_copied else 0),
        step_weight_bytes=step_weight_bytes(loaded.model),
        rounding_kl=loaded.rounding_kl,
        **rotation,
    )
