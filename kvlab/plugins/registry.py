"""One kind of thing by name, whoever brought it: whoever reads it has the plug-ins loaded first."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from kvlab.plugins.load import load_plugins
from kvlab.plugins.shelf import Shelf, Thing


class Registry(Shelf[Thing], Mapping[str, Thing]):
    """Things of one kind by name, in the order they are shown. Reading it loads the plug-ins first.

    With `only_of_plugins_with` no plug-in is loaded for it whose code lacks that word.
    """

    def __init__(self, kind: str, own: Mapping[str, Thing] | None = None, *, only_of_plugins_with: str = "") -> None:
        super().__init__(kind, own)
        self._word = only_of_plugins_with

    def registering(self, name: str) -> Callable[[Thing], Thing]:
        """Decorator: as `add`."""

        def register(thing: Thing) -> Thing:
            self.add(name, thing)
            return thing

        return register

    def all(self) -> dict[str, Thing]:
        """Everything by name; one look for plug-ins, where the mapping itself takes one a name."""
        load_plugins(self._word)
        return dict(self._things)

    def __getitem__(self, name: str) -> Thing:
        load_plugins(self._word)
        return self._things[name]

    def __iter__(self) -> Iterator[str]:
        load_plugins(self._word)
        return iter(list(self._things))

    def __len__(self) -> int:
        load_plugins(self._word)
        return len(self._things)
