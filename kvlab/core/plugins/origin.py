"""Registered objects by name and origin: a name is unique, and everything of one origin can be removed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Generic, TypeVar

from kvlab.core.errors import UserError

T = TypeVar("T")


class Registrations(Generic[T]):
    """Objects of one kind by name, in display order. `kind` is its noun in messages, such as "method".

    With `only_of_plugins_with`, plug-ins whose code does not match that regular expression are not loaded for it.
    """

    every: list[Registrations] = []  # noqa: RUF012  (all of this process, so that a failed plug-in is undone)

    def __init__(self, kind: str, built_in: Mapping[str, T] | None = None, *, only_of_plugins_with: str = "") -> None:
        self.kind = kind
        self.word = only_of_plugins_with
        self._things: dict[str, T] = dict(built_in or {})
        self._origins: dict[str, Origin] = dict.fromkeys(self._things, KVLAB)
        Registrations.every.append(self)

    def add(self, name: str, thing: T) -> None:
        """Register `thing`; raises UserError, naming both origins, if the name is taken by another."""
        taken = self._origins.get(name)
        new = self.origin_of(thing)
        if taken is not None:
            # the same definition again, as when a module is reloaded
            old = self._things[name]
            ours, theirs = (f"{getattr(it, '__module__', '')}.{getattr(it, '__qualname__', '')}" for it in (old, thing))
            again = old is thing or (ours == theirs != "." and taken == new)
            if not again:
                raise UserError(
                    f"There is a {self.kind} called {name!r} already, from {taken}; that of {new} needs another name."
                )
        self._things[name] = thing
        self._origins[name] = new

    def origin(self, name: str) -> Origin:
        return self._origins[name]

    @staticmethod
    def origin_of(thing: object) -> Origin:
        """The origin that defines it; kvlab's own modules stay kvlab's even if a plug-in imports them first."""
        is_own = hasattr(thing, "__qualname__") and str(getattr(thing, "__module__", "")).split(".")[0] == "kvlab"
        return KVLAB if is_own else _current.get()

    def names_of(self, origin: Origin) -> list[str]:
        """Names of everything that `origin` registered."""
        return [name for name, theirs in self._origins.items() if theirs == origin]


def undo(origin: Origin, instead: Origin | None = None) -> None:
    """Remove everything that `origin` registered, of every kind, or assign it to the origin `instead`."""
    for registrations in Registrations.every:
        for name in registrations.names_of(origin):
            if instead is None:
                del registrations._things[name], registrations._origins[name]
            else:
                registrations._origins[name] = instead


@dataclass(frozen=True)
class Origin:
    """A plug-in's name (a file's stem or a distribution's name), its version, and the SHA-256 of its code.

    `place` is the file's path, or the entry point's value. A package's hash is of its entry point's module.
    """

    name: str
    version: str = ""
    sha256: str = ""
    place: str = ""

    def __str__(self) -> str:
        return f"{self.name} ({self.place})" if self.place else self.name

    @property
    def stamp(self) -> str:
        """As stored in a run or row: version, if any, and the first 16 digits of the hash."""
        return " ".join(part for part in (self.version, f"sha256:{self.sha256[:16]}") if part)


KVLAB = Origin("kvlab itself")
# The origin of the code being imported now; outside plug-ins `KVLAB`.
_current: ContextVar[Origin] = ContextVar("origin", default=KVLAB)


@contextmanager
def registering(origin: Origin) -> Iterator[None]:
    """Assign what is registered inside the block to `origin`."""
    token = _current.set(origin)
    try:
        yield
    finally:
        _current.reset(token)
