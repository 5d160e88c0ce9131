"""What was registered, by name and by who brought it: a name is given once, and all that one origin brought can go."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Generic, TypeVar

from kvlab.common.context_value import meanwhile
from kvlab.common.errors import UserError

Thing = TypeVar("Thing")


class Shelf(Generic[Thing]):
    """Things of one kind by name, in the order they are shown. `kind` names one in sentences, such as "method"."""

    every: list[Shelf] = []  # type: ignore[type-arg]  # noqa: RUF012  (all of this process, so that a failed plug-in is undone)

    def __init__(self, kind: str, own: Mapping[str, Thing] | None = None) -> None:
        self.kind = kind
        self._things: dict[str, Thing] = dict(own or {})
        self._origins: dict[str, Origin] = dict.fromkeys(self._things, KVLAB)
        Shelf.every.append(self)

    def add(self, name: str, thing: Thing) -> None:
        """Make `thing` known; raises UserError, naming both origins, where the name is taken by another's."""
        taken, here = self._origins.get(name), self.origin_of(thing)
        if taken is not None and not self._is_again(name, thing):
            raise UserError(
                f"There is a {self.kind} called {name!r} already, from {taken}; that of {here} needs another name."
            )
        self._things[name], self._origins[name] = thing, here

    def _is_again(self, name: str, thing: Thing) -> bool:
        """Whether this is the same definition met a second time, as when a module is reloaded."""
        there = self._things[name]
        ours, theirs = (f"{getattr(it, '__module__', '')}.{getattr(it, '__qualname__', '')}" for it in (there, thing))
        return there is thing or (ours == theirs != "." and self._origins[name] == self.origin_of(thing))

    def origin(self, name: str) -> Origin:
        """Who registered it."""
        return self._origins[name]

    @staticmethod
    def origin_of(thing: object) -> Origin:
        """Who defines it; kvlab's own rooms may be imported for the first time by a plug-in, and stay kvlab's."""
        is_own = hasattr(thing, "__qualname__") and str(getattr(thing, "__module__", "")).split(".")[0] == "kvlab"
        return KVLAB if is_own else current()

    def of(self, origin: Origin) -> list[str]:
        """Names of all that `origin` registered."""
        return [name for name, theirs in self._origins.items() if theirs == origin]

    def renamed(self, origin: Origin, known: Origin) -> None:
        """What `origin` registered is `known`'s from now on."""
        self._origins |= dict.fromkeys(self.of(origin), known)

    def forget(self, origin: Origin) -> None:
        """Nothing of `origin`'s is known any more."""
        for name in self.of(origin):
            del self._things[name], self._origins[name]


def undo(origin: Origin) -> None:
    """Forget everything that `origin` registered, of every kind."""
    for shelf in Shelf.every:
        shelf.forget(origin)


@dataclass(frozen=True)
class Origin:
    """A plug-in by name (a file's stem or a distribution's name), its version, and the SHA-256 of its code.

    `place` is what a person would look for: the file's path, or the entry point's value. A package's hash is of the
    module that its entry point names. A TOML file of the module's name beside it
    (`kvlab.methods.core.published_settings`) counts.
    """

    name: str
    version: str = ""
    sha256: str = ""
    place: str = ""

    def __str__(self) -> str:
        return f"{self.name} ({self.place})" if self.place else self.name

    @property
    def stamp(self) -> str:
        """What a run or a row keeps of it: version, where it has one, and the first 16 digits of the hash."""
        return " ".join(part for part in (self.version, f"sha256:{self.sha256[:16]}") if part)


KVLAB = Origin("kvlab itself")
_current: ContextVar[Origin] = ContextVar("origin", default=KVLAB)


def current() -> Origin:
    """Whose code is being imported now; kvlab's own, or a caller's outside any plug-in, is `KVLAB`."""
    return _current.get()


def registering(origin: Origin) -> AbstractContextManager[None]:
    """What is registered inside belongs to `origin`."""
    return meanwhile(_current, origin)
