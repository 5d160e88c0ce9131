"""Arrays as plotly packs them into JSON."""

from __future__ import annotations

import base64

import numpy as np


def decode_arrays(value: object) -> object:
    """A figure's JSON with its packed arrays (`bdata`, `dtype`, `shape`) as arrays; the rest is unchanged."""
    if isinstance(value, list):
        return [decode_arrays(one) for one in value]
    if not isinstance(value, dict):
        return value
    if {"bdata", "dtype"} <= set(value):
        flat = np.frombuffer(base64.b64decode(value["bdata"]), dtype=value["dtype"])
        shape = [int(size) for size in str(value.get("shape", len(flat))).split(",")]
        return flat.reshape(shape)
    return {name: decode_arrays(one) for name, one in value.items()}
