"""Versions, device and model shape that a run's record states."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import torch

from kvlab.core.attention.queries import full_attention_config, num_key_value_heads
from kvlab.core.cache.rotary import changing_rotary, find_rotary, unrotated_layers
from kvlab.core.cache.settings import synchronize
from kvlab.core.plugins.load import stamps
from kvlab.models.load import LoadedModel
from kvlab.planning.seconds import Speed
from kvlab.trace.schema import ModelShape

PACKAGES = ("kvlab", "torch", "transformers", "safetensors", "numpy")


def versions() -> dict[str, str]:
    """Versions of Python and of every package and plug-in whose change could change a number."""
    return {"python": platform.python_version()} | {name: version(name) for name in PACKAGES} | stamps()


def device_name(device: torch.device) -> str:
    """Such as `cuda: NVIDIA H200` or `cpu: x86_64, 2 threads`."""
    if device.type == "cuda":
        return f"cuda: {torch.cuda.get_device_name(device)}"
    if device.type == "mps":
        return f"mps: {platform.processor() or platform.machine()}"
    return f"cpu: {platform.machine()}, {torch.get_num_threads()} threads"


def model_shape(loaded: LoadedModel) -> ModelShape:
    """The model's dimensions, as recorded for the figures."""
    config = loaded.model.config.get_text_config(decoder=True)
    heads, attention = config.num_attention_heads, full_attention_config(config)
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
        name=loaded.name, family=config.model_type, quantization=loaded.quantization, checksum=loaded.checksum,
        num_hidden_layers=config.num_hidden_layers, num_attention_heads=heads,
        num_key_value_heads=num_key_value_heads(config),
        head_dim=getattr(attention, "head_dim", None) or config.hidden_size // heads,
        dtype=str(loaded.model.dtype).removeprefix("torch."),
        parameters=sum(parameter.numel() for parameter in loaded.model.parameters()), **rotation,
    )  # fmt: skip


ROWS, COPIED = 4096, 2**28


def measure(device: torch.device) -> Speed:
    """Operations per second of a bfloat16 matrix product (CPU: float32) and bytes copied per second, best of five."""
    dtype = torch.float32 if device.type == "cpu" else torch.bfloat16
    left, right = (torch.ones(ROWS, ROWS, dtype=dtype, device=device) for _ in range(2))
    source, target = (torch.ones(COPIED, dtype=torch.uint8, device=device) for _ in range(2))
    product, copy = _best(lambda: left @ right, device), _best(lambda: target.copy_(source), device)
    return Speed(operations=2 * ROWS**3 / product, bytes=2 * COPIED / copy)


def _best(work: Callable[[], object], device: torch.device) -> float:
    taken = []
    for _ in range(6):  # the first one warms up
        synchronize(device)
        begun = time.perf_counter()
        work()
        synchronize(device)
        taken.append(time.perf_counter() - begun)
    return min(taken[1:])
