"""Kernels where they can be run: on a GPU, or by Triton's interpreter."""

from __future__ import annotations

import os
from importlib import import_module
from types import ModuleType

import pytest
import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def kernel_module(name: str) -> ModuleType:
    """The module, imported; skips the test where Triton is not installed."""
    pytest.importorskip("triton", reason="the package triton is not installed: pip install kvlab[kernels]")
    if DEVICE == "cpu":
        assert os.environ["TRITON_INTERPRET"] == "1", "tests/conftest.py turns the interpreter on before triton loads"
    return import_module(name)
