"""One kind of thing by name, whoever brought it: a name is given once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

from kvlab.errors import UserError
from kvlab.plugins.origin import KVLAB, Origin, current

Thing = TypeVar("Thing")


class Registry(Mapping[str, Thing]):
    """Things of one kind by name, in the order they are shown. Reading it loads the plug-ins first.

    `kind` names one in sentences, such as "method". With `only_of_plugins_with` no plug-in is loaded for it whose code
    lacks that word.
    """

    every: list[Registry] = []  # noqa: RUF012  (all registries of this process, so that a failed plug-in is undone)

    def __init__(self, kind: str, own: Mapping[str, Thing] | None = None, *, only_of_plugins_with: str = "") -> None:
        self.kind, self._word = kind, only_of_plugins_with
        self._things: dict[str, Thing] = dict(own or {})
        self._origins: dict[str, Origin] = dict.fromkeys(self._things, KVLAB)
        Registry.every.append(self)

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

    def registering(self, name: str) -> Callable[[Thing], Thing]:
        """Decorator: as `add`."""

        def register(thing: Thing) -> Thing:
            self.add(name, thing)
            return thing

        return register

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

    def __getitem__(self, name: str) -> Thing:
        _with_plugins(self._word)
        return self._things[name]

    def __iter__(self) -> Iterator[str]:
        _with_plugins(self._word)
        return iter(list(self._things))

    def __len__(self) -> int:
        _with_plugins(self._word)
        return len(self._things)


def _with_plugins(word: str) -> None:
    from kvlab.plugins.load import load_plugins  # it needs this module to undo what a failing plug-in registered

    load_plugins(word)


def undo(origin: Origin) -> None:
    """Forget everything that `origin` registered, in every registry."""
    for registry in Registry.every:
        for name in registry.of(origin):
            del registry._things[name], registry._origins[name]
