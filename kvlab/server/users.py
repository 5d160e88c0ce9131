"""Who asks, and what they may do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from enum import Enum
from functools import total_ordering

from kvlab.common.context_value import meanwhile
from kvlab.common.errors import UserError


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
_here: ContextVar[Person | None] = ContextVar("acting", default=None)


def ask_who(who: Callable[[], Person]) -> None:
    """From now on `who` says for whom this process acts: the dashboard's server sets it, nothing else does."""
    global _asks
    _asks = who


@contextmanager
def acting_for(person: Person) -> Iterator[None]:
    """What is made meanwhile is this person's."""
    before = _asks
    ask_who(lambda: person)
    try:
        yield
    finally:
        ask_who(before)


def in_place_of(person: Person) -> AbstractContextManager[None]:
    """What this thread does meanwhile it does for this person, whoever the others act for."""
    return meanwhile(_here, person)


def acting() -> Person:
    """The person for whom this process acts now."""
    return _here.get() or _asks()


def viewer() -> str:
    """For keys of what is kept over people: equal where the same runs may be seen."""
    person = acting()
    return "" if person.role is Role.ADMINISTER else f"{person.role.value} {person.name}"


def may_see(owner: str, private: bool) -> bool:
    """Whether the person who acts may look at what this owner has, private or not."""
    person = acting()
    return person.role is Role.ADMINISTER or (person.role >= Role.LOOK and (not private or is_owner(owner)))


def is_owner(owner: str) -> bool:
    """Whether it belongs to the person who acts; to an administrator all does, and what has no owner to them alone."""
    person = acting()
    return person.role is Role.ADMINISTER or (person.role >= Role.RUN and owner != "" and owner == person.name)


def require_owner(owner: str, what: str) -> None:
    """Nothing, where the person who acts may do `what` ("delete this") to what belongs to this owner.

    Raises:
        UserError: it belongs to another person.
    """
    if not is_owner(owner):
        whose = f"It belongs to {owner}" if owner else "It belongs to nobody here"
        raise UserError(f"{whose}: only its owner and an administrator may {what}.")


def require(role: Role, what: str) -> Person:
    """The person who acts, if they may do `what` ("start runs").

    Raises:
        UserError: their role is lower.
    """
    person = acting()
    if person.role < role:
        raise UserError(f"You may not {what} on this server: ask an administrator for the role {role.value!r}.")
    return person
