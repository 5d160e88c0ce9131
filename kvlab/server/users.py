"""The acting user and their role."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from enum import Enum
from functools import total_ordering

from kvlab.core.errors import UserError


@total_ordering
class Role(Enum):
    """A user's role; each includes the rights of those before it."""

    NOBODY = "nobody"
    LOOK = "look"
    RUN = "run"
    ADMINISTER = "administer"

    def __lt__(self, other: Role) -> bool:
        order = list(Role)
        return order.index(self) < order.index(other)


@dataclass(frozen=True)
class User:
    """A user of the dashboard or a terminal; the name is "" in a single-user lab."""

    name: str
    role: Role


ALONE = User("", Role.ADMINISTER)  # of the command line, and of a dashboard without a lab file
_asks: Callable[[], User] = lambda: ALONE  # noqa: E731
_here: ContextVar[User | None] = ContextVar("acting", default=None)


def set_current_user(who: Callable[[], User]) -> None:
    """Set the function that returns the acting user; only the dashboard's server calls it."""
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
    """The user for whom this process acts now."""
    return _here.get() or _asks()


def viewer() -> str:
    """Cache key of the acting user: equal for users who may see the same runs."""
    user = acting()
    return "" if user.role is Role.ADMINISTER else f"{user.role.value} {user.name}"


def may_see(owner: str, private: bool) -> bool:
    """Whether the acting user may see what this owner has, private or not."""
    user = acting()
    return user.role is Role.ADMINISTER or (user.role >= Role.LOOK and (not private or is_owner(owner)))


def is_owner(owner: str) -> bool:
    """Whether the acting user owns it; administrators own everything, and alone what has no owner."""
    user = acting()
    return user.role is Role.ADMINISTER or (user.role >= Role.RUN and owner != "" and owner == user.name)


def require_owner(owner: str, what: str) -> None:
    """Check that the acting user may do `what` ("delete this") to what this owner has.

    Raises UserError if it belongs to another user.
    """
    if not is_owner(owner):
        reason = f"It belongs to {owner}" if owner else "It belongs to nobody here"
        raise UserError(f"{reason}: only its owner and an administrator may {what}.")


def require(role: Role, what: str) -> User:
    """The acting user, if they may do `what` ("start runs"). Raises UserError if their role is too low."""
    user = acting()
    if user.role < role:
        raise UserError(f"You may not {what} on this server: ask an administrator for the role {role.value!r}.")
    return user
