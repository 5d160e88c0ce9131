"""Which kernel does the attention of a decode step on a device."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import lru_cache
from importlib.util import find_spec

import torch
from torch import Tensor

SWITCH = "KVLAB_KERNELS"
OneQuery = Callable[[Tensor, Tensor, Tensor, Tensor | None, float], tuple[Tensor, Tensor, Tensor]]


@lru_cache
def one_query_kernel(device: torch.device) -> OneQuery | None:
    """The fused kernel for `device`, or None where plain torch does it.

    CUDA with the package `triton` has one; the environment variable KVLAB_KERNELS=off keeps plain torch there too.
    """
    if device.type != "cuda" or os.environ.get(SWITCH) == "off" or find_spec("triton") is None:
        return None
    from kvlab.attention.ragged_kernel import ragged_attention

    return ragged_attention
