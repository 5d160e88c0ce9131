"""Registry of one kind of objects by name; reading it loads the plug-ins first."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from difflib import get_close_matches

from kvlab.core.errors import UserError
from kvlab.core.plugins.load import load_plugins
from kvlab.core.plugins.origin import Registrations, T
from kvlab.core.validation import quote_value

# names listed in full, and of similar ones
MOST_NAMED = 12
MOST_MEANT = 4
LISTED_BY = {"method": "kvlab methods", "task": "kvlab tasks", "loader": "kvlab tasks", "view": "kvlab view RUN"}


class Registry(Registrations[T], Mapping[str, T]):
    """Objects of one kind by name, in display order. Reading it loads the plug-ins first.

    With `only_of_plugins_with`, plug-ins whose code does not match that regular expression are not loaded for it.
    """

    def __init__(self, kind: str, own: Mapping[str, T] | None = None, *, only_of_plugins_with: str = "") -> None:
        super().__init__(kind, own)
        self._word = only_of_plugins_with

    def registering(self, name: str) -> Callable[[T], T]:
        """Decorator version of `add`."""

        def register(thing: T) -> T:
            self.add(name, thing)
            return thing

        return register

    def all(self) -> dict[str, T]:
        """Everything by name; looks for plug-ins once, while the mapping looks at every access."""
        load_plugins(self._word)
        return dict(self._things)

    def unknown(self, name: object, known: Iterable[str] = ()) -> UserError:
        """The error for an unknown name, with failed plug-ins and the closest known names.

        `known` are all valid names, if there are more than this registry's.
        """
        names = [*(known or self)]
        failed = [plugin.failure for plugin in load_plugins(self._word) if plugin.failure]
        return UserError(
            " ".join([*failed, f"There is no {self.kind} called {quote_value(name)}{self._instead(str(name), names)}"])
        )

    def _instead(self, name: str, names: list[str]) -> str:
        listing = f"; `{LISTED_BY[self.kind]}` lists all" if self.kind in LISTED_BY else ""
        if len(names) <= MOST_NAMED:
            return f"; choose one of {', '.join(names)}."
        alike = get_close_matches(name.lower(), names, MOST_MEANT)
        alike += [one for one in names if len(name) > 2 and name.lower() in one and one not in alike]
        if alike:
            return f" (do you mean {' or '.join(alike[:MOST_MEANT])}?){listing}."
        return f"{listing}." if listing else f"; choose one of {', '.join(names)}."

    def __getitem__(self, name: str) -> T:
        load_plugins(self._word)
        return self._things[name]

    def __iter__(self) -> Iterator[str]:
        load_plugins(self._word)
        return iter(list(self._things))

    def __len__(self) -> int:
        load_plugins(self._word)
        return len(self._things)
