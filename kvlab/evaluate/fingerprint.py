"""Digest of the weights that rows were measured with."""

from __future__ import annotations

import hashlib

import torch
from transformers import PreTrainedModel

from kvlab.fitted.signature import named_weights

_SAMPLED = 256  # values read per tensor: distinguishes checkpoints at little cost


def model_digest(model: PreTrainedModel) -> str:
    """Hash the shapes, types and a sample of the values of every parameter to 12 hex digits."""
    digest = hashlib.sha256()
    for name, parameter in named_weights(model):
        flat = parameter.reshape(-1)
        sample = flat[:: max(1, flat.numel() // _SAMPLED)][:_SAMPLED].to("cpu", torch.float32)
        digest.update(f"{name}{tuple(parameter.shape)}{parameter.dtype}".encode())
        digest.update(sample.numpy().tobytes())
    return digest.hexdigest()[:12]
