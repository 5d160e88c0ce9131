"""A context variable that has another value for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

T = TypeVar("T")


@contextmanager
def meanwhile(variable: ContextVar[T], value: T) -> Iterator[None]:
    """Inside, for this thread or task alone, `variable` has this value."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)
