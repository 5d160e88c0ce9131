"""One of a few choices that stand side by side: one is always chosen, and the address names it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import streamlit as st

T = TypeVar("T", bound=str)


def one_of(
    label: str, options: Sequence[T] | Mapping[T, str], default: T | None = None, *, key: str, **further: Any
) -> T:
    """The chosen one of `options`, shown in the words a mapping has for it; at first `default`, else the first."""
    values = list(options)
    if isinstance(options, Mapping):
        further["format_func"] = options.__getitem__
    start = values[0] if default is None else default
    return st.segmented_control(label, values, default=start, key=key, bind="query-params", required=True, **further)
