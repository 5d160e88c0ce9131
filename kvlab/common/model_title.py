"""The name of a model as pages and figures show it."""

from __future__ import annotations


def model_title(name: str) -> str:
    """The name of a model without the folders above it: `smollm2` for `/models/smollm2`; hub names stay whole."""
    return name.rstrip("/").rsplit("/", 1)[-1] if name.startswith(("/", "~", ".")) else name
