"""The acting user, and what belongs to them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from kvlab.core.errors import UserError


@dataclass(frozen=True)
class User:
    """A user of the dashboard or a terminal; `owns_all` where there is no sign-in, and in jobs, checked when queued."""

    name: str
    owns_all: bool = False


ALONE = User("", owns_all=True)  # of the command line, and of a dashboard without a lab file
_asks: Callable[[], User] = lambda: ALONE  # noqa: E731
_here: ContextVar[User | None] = ContextVar("acting", default=None)


def set_current_user(who: Callable[[], User]) -> None:
    """Set the function that returns the acting user, or raises UserError; only the dashboard's server calls it."""
    global _asks
    _asks = who


@contextmanager
def acting_for(user: User) -> Iterator[None]:
    """Let this process act for a user inside the block."""
    before = _asks
    set_current_user(lambda: user)
    try:
        yield
    finally:
        set_current_user(before)


@contextmanager
def acting_as(user: User) -> Iterator[None]:
    """Let this thread act for a user inside the block, whatever other threads do."""
    token = _here.set(user)
    try:
        yield
    finally:
        _here.reset(token)


def acting() -> User:
    """The user for whom this process acts now. Raises UserError if nobody has signed in where people must."""
    return _here.get() or _asks()


def viewer() -> str:
    """Cache key of the acting user: equal for users who may see the same runs."""
    user = acting()
    return "" if user.owns_all else f"user {user.name}"


def may_see(owner: str, private: bool) -> bool:
    """Whether the acting user may see what this owner has, private or not."""
    return is_owner(owner) or not private


def is_owner(owner: str) -> bool:
    """Whether the acting user owns it; on a shared server nobody owns what has no owner."""
    user = acting()
    return user.owns_all or (owner != "" and owner == user.name)


def require_owner(owner: str, what: str) -> None:
    """Check that the acting user may do `what` ("delete this") to what this owner has.

    Raises UserError if it belongs to another user.
    """
    if not is_owner(owner):
        if not owner:
            raise UserError(f"It belongs to nobody here: only in a terminal of this server can one {what}.")
        raise UserError(f"It belongs to {owner}: only its owner may {what}.")
