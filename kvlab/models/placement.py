"""Device, placement, dtype and quantization of a model's weights."""

import logging
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import nn

from kvlab.core import UserError, name_of

log = logging.getLogger(__name__)
DRIVER = Path("/proc/driver/nvidia/version")  # exists if NVIDIA's driver is installed
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
BITS = ("4bit", "8bit")
BFLOAT16 = "bf16"


def pick_device(device: str) -> torch.device:
    """The requested device (auto, cpu, mps, cuda, cuda:1), or the best available one.

    Raises UserError if it is not available.
    """
    device = name_of(device, "The device")
    there = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if device == "auto":
        best = next(name for name in ("cuda", "mps", "cpu") if there[name])
        if best == "cpu" and DRIVER.exists():
            warn_of_an_idle_gpu()
        return torch.device(best)
    kind, _, number = device.partition(":")
    count = torch.cuda.device_count() if kind == "cuda" else 1
    if not there.get(kind, False) or (number and not (number.isdecimal() and int(number) < count)):
        raise UserError(f"There is no device {device!r} here: omit the device to use the best available one.")
    return torch.device(device)


@lru_cache
def warn_of_an_idle_gpu() -> None:
    """Warn once that this torch cannot use an installed GPU."""
    built = f"is built for CUDA {torch.version.cuda}, for which the driver may be too old" if torch.version.cuda else ""
    log.warning(
        "An NVIDIA driver is installed, but torch %s finds no GPU, so the CPU is used, in float32: torch %s. "
        "`nvidia-smi` shows the driver's CUDA version; install a torch built for that version or an older one.",
        torch.__version__,
        built or "is built without CUDA",
    )


def device_map(placement: str, device: torch.device) -> str | dict[str, Any] | None:
    """transformers' device map: one device, all devices, or None if weights are moved after loading.

    Only accelerate loads weights directly to their device. Raises UserError for an unknown word, or without accelerate.
    """
    if placement not in ("single", "auto"):
        raise UserError(f"There is no placement {placement!r}: use single (one device) or auto (all devices).")
    there = find_spec("accelerate") is not None
    if placement == "auto" and not there:
        raise UserError("Placement auto needs accelerate: install it with `pip install 'kvlab[placement]'`.")
    if placement == "auto":
        return "auto"
    return {"": device} if there and device.type != "cpu" else None


def quantization(weights: str | None) -> Any:
    """Settings for weights in 4 or 8 bit, with bitsandbytes or else torchao; None for unquantized weights and bf16.

    Raises UserError if neither is installed.
    """
    if weights is None or weights == BFLOAT16:
        return None
    if weights not in BITS:
        raise UserError(f"Weights cannot be loaded in {weights!r}: use {BFLOAT16}, {' or '.join(BITS)}, or omit it.")
    if find_spec("bitsandbytes") is not None:
        from transformers import BitsAndBytesConfig

        four = weights == "4bit"
        return BitsAndBytesConfig(load_in_4bit=four, load_in_8bit=not four, bnb_4bit_quant_type="nf4")
    if find_spec("torchao") is not None:
        from torchao.quantization import Int4WeightOnlyConfig, Int8WeightOnlyConfig
        from transformers import TorchAoConfig

        return TorchAoConfig(Int4WeightOnlyConfig() if weights == "4bit" else Int8WeightOnlyConfig())
    raise UserError(
        f"Weights in {weights.replace('bit', ' bit')} need another package: install bitsandbytes or torchao, or omit "
        "--weights."
    )


def input_device(model: nn.Module) -> torch.device:
    """Device of token ids: where the embedding is computed, even if its weight is offloaded."""
    embedding: Any = model.get_input_embeddings()  # type: ignore[operator]  # a method of every model
    hook = getattr(embedding, "_hf_hook", None)
    place = getattr(hook, "execution_device", None)
    return embedding.weight.device if place is None else torch.device(place)
