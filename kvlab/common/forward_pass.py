"""Whether a forward pass of the model is under way in this context: other work on the model has to wait for its end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_under_way: ContextVar[bool] = ContextVar("forward_pass", default=False)


def is_under_way() -> bool:
    """Whether the caller was called from within a forward pass."""
    return _under_way.get()


@contextmanager
def under_way() -> Iterator[None]:
    """Mark what is called inside as called from within a forward pass."""
    token = _under_way.set(True)
    try:
        yield
    finally:
        _under_way.reset(token)
