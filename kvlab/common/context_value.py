"""Set a context variable temporarily."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

T = TypeVar("T")


@contextmanager
def temporarily(variable: ContextVar[T], value: T) -> Iterator[None]:
    """Set `variable` to this value inside the block, for this thread or task alone."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)
