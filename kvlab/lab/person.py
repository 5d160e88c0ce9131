"""Who asks, and what they may do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import total_ordering

from kvlab.errors import UserError


@total_ordering
class Role(Enum):
    """What a person may do; each role may do what those before it may."""

    NOBODY = "nobody"
    LOOK = "look"
    RUN = "run"
    ADMINISTER = "administer"

    def __lt__(self, other: Role) -> bool:
        order = list(Role)
        return order.index(self) < order.index(other)


@dataclass(frozen=True)
class Person:
    """Somebody at the dashboard or in a terminal; the name is "" in a lab of one."""

    name: str
    role: Role


ALONE = Person("", Role.ADMINISTER)  # whoever sits at the machine: the command line, and a dashboard without a lab file
_asks: Callable[[], Person] = lambda: ALONE  # noqa: E731


def ask_who(who: Callable[[], Person]) -> None:
    """From now on `who` says for whom this process acts: the dashboard's server sets it, nothing else does."""
    global _asks
    _asks = who


def acting() -> Person:
    """The person for whom this process acts now."""
    return _asks()


def require(role: Role, what: str) -> Person:
    """The person who acts, if they may do `what` ("start runs").

    Raises:
        UserError: their role is lower.
    """
    person = acting()
    if person.role < role:
        raise UserError(f"You may not {what} on this server: ask an administrator for the role {role.value!r}.")
    return person
