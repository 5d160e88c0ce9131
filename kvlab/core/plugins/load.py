"""Which plug-ins this process should load, and loading each once: one that fails is undone completely and reported."""

import hashlib
import os
import re
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import partial
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from kvlab.core.errors import UserError
from kvlab.core.plugins.origin import Origin, Registrations, T, registering, undo
from kvlab.core.validation import quote_value

# names listed in full, and of similar ones
MOST_NAMED = 12
MOST_MEANT = 4
LISTED_BY = {"method": "kvlab methods", "task": "kvlab tasks", "loader": "kvlab tasks", "view": "kvlab view RUN"}


class Registry(Registrations[T], Mapping[str, T]):
    """Objects of one kind by name, in display order. Reading it loads the plug-ins first."""

    def registering(self, name: str) -> Callable[[T], T]:
        """Decorator version of `add`."""

        def register(thing: T) -> T:
            self.add(name, thing)
            return thing

        return register

    def all(self) -> dict[str, T]:
        """Everything by name at one moment; looks for plug-ins once, while the mapping looks at every access."""
        load_plugins(self.word)
        return dict(self._things)

    def unknown(self, name: object, known: Iterable[str] = ()) -> UserError:
        """The error for an unknown name, with failed plug-ins and the closest known names.

        `known` are all valid names, if there are more than this registry's.
        """
        names = [*(known or self)]
        failed = [plugin.failure for plugin in load_plugins(self.word) if plugin.failure]
        listing = f"; `{LISTED_BY[self.kind]}` lists all" if self.kind in LISTED_BY else ""
        lower = str(name).lower()
        alike = get_close_matches(lower, names, MOST_MEANT)
        alike += [one for one in names if len(lower) > 2 and lower in one and one not in alike]
        instead = f"; choose one of {', '.join(names)}"
        if len(names) > MOST_NAMED and alike:
            instead = f" (do you mean {' or '.join(alike[:MOST_MEANT])}?){listing}"
        elif len(names) > MOST_NAMED and listing:
            instead = listing
        return UserError(" ".join([*failed, f"There is no {self.kind} called {quote_value(name)}{instead}."]))

    def __getitem__(self, name: str) -> T:
        load_plugins(self.word)
        return self._things[name]

    def __iter__(self) -> Iterator[str]:
        load_plugins(self.word)
        return iter(list(self._things))

    def __len__(self) -> int:
        load_plugins(self.word)
        return len(self._things)


FILES = "KVLAB_PLUGINS"  # absolute paths, separated as PATH is: other processes have another current folder
ALLOWED = "KVLAB_PLUGIN_ALLOW"  # entry points by name, separated by commas; unset: all that are installed
GROUP = "kvlab.plugins"


def name_files(paths: Iterable[Path]) -> None:
    """Add plug-in files for this process and every process it starts.

    Raises UserError if one is no Python file, or its path cannot be passed on.
    """
    files = files_named()
    for path in paths:
        whole = path.expanduser().absolute()
        if not whole.is_file() or whole.suffix != ".py":
            raise UserError(f"There is no Python file {path}: --plugin takes the path of one, such as my_method.py.")
        if os.pathsep in str(whole):
            raise UserError(f"The path of {path} has a {os.pathsep!r} in it: move the plug-in to another folder.")
        files += [whole] if whole not in files else []
    os.environ[FILES] = os.pathsep.join(map(str, files))


def files_named() -> list[Path]:
    """The files in `KVLAB_PLUGINS`, in order."""
    return [Path(text) for text in os.environ.get(FILES, "").split(os.pathsep) if text]


def packages_named() -> Sequence[EntryPoint]:
    """Entry points of installed packages by name, restricted by `KVLAB_PLUGIN_ALLOW`."""
    allowed = os.environ.get(ALLOWED)
    wanted = None if allowed is None else {name.strip() for name in allowed.split(",")}
    points = sorted(entry_points(group=GROUP), key=lambda point: point.name)
    return [point for point in points if wanted is None or point.name in wanted]


@dataclass(frozen=True)
class Plugin:
    """A loaded plug-in, or the reason why it failed."""

    origin: Origin
    failure: str = ""

    @property
    def brought(self) -> dict[str, list[str]]:
        """Names of what it registered, by kind."""
        return {
            registrations.kind: names
            for registrations in Registrations.every
            if (names := registrations.names_of(self.origin))
        }

    @property
    def description(self) -> str:
        """The same as text."""
        brought = "; ".join(f"{kind} {', '.join(names)}" for kind, names in self.brought.items())
        return brought or "registers nothing"


_lock = threading.RLock()
_loaded: dict[str, Plugin] = {}
_loading: list[str] = []
_answered: set[tuple[str, ...]] = set()


def load_plugins(word: str = "") -> list[Plugin]:
    """Load every requested plug-in that is not loaded yet; returns all plug-ins, failed ones included.

    With `word`, a regular expression, only plug-ins whose code matches it are loaded. A failure is reported once on
    standard error.
    """
    key = (*(os.environ.get(FILES, ""), os.environ.get(ALLOWED, "all")), word)
    if key in _answered:  # registries are read often, and looking for installed packages takes a while
        return list(_loaded.values())
    with _lock:
        if not _loading:  # a plug-in that reads a registry sees what is there so far
            for path in files_named():
                code = _code(path)
                origin = Origin(path.stem, "", hashlib.sha256(code).hexdigest(), str(path))
                _once(str(path), code, word, origin, partial(_module_of, path, code))
            for point in packages_named():
                code = _code(point.module)
                name = point.dist.metadata["Name"] if point.dist is not None else point.name
                version = point.dist.version if point.dist is not None else ""
                origin = Origin(name, version, hashlib.sha256(code).hexdigest(), point.value)
                _once(f"{point.name}={point.value}", code, word, origin, point.load)
            _answered.add(key)
        return list(_loaded.values())


def stamps() -> dict[str, str]:
    """`plugin:NAME` with version and hash of every working plug-in, as stored in runs and rows."""
    return {f"plugin:{plugin.origin.name}": plugin.origin.stamp for plugin in load_plugins() if not plugin.failure}


def _once(key: str, code: bytes, word: str, origin: Origin, run: Callable[[], Any]) -> None:
    """Run a plug-in's code as `origin`; on failure everything it registered is removed."""
    if key in _loaded or not re.search(word.encode(), code):
        return
    _loading.append(key)
    try:
        with registering(origin):
            version = str(getattr(run(), "__version__", ""))
        if version and not origin.version:  # what the module states, in the registries too
            stated = replace(origin, version=version)
            undo(origin, stated)
            origin = stated
        _loaded[key] = Plugin(origin)
    except Exception as error:
        undo(origin)
        line = (str(error).strip().splitlines() or ["no message"])[0]
        line = f"{type(error).__name__}: {line}{'' if line.endswith(('.', '!', '?')) else '.'}"
        reason = str(error) if isinstance(error, UserError) else line
        _loaded[key] = Plugin(origin, f"The plug-in {origin} was left out: {reason}")
        print(f"kvlab: {_loaded[key].failure}", file=sys.stderr)
    finally:
        _loading.remove(key)


def _code(place: Path | str) -> bytes:
    """Code of a file, or of a module by its name; empty where there is none."""
    try:
        if isinstance(place, str):
            spec = find_spec(place)
            return Path(spec.origin).read_bytes() if spec and spec.origin else b""
        return place.read_bytes()
    except (OSError, ImportError, ValueError):
        return b""


def _module_of(path: Path, code: bytes) -> ModuleType:
    """The module that a file's code makes; raises UserError for a missing file."""
    if not path.is_file():
        raise UserError("there is no such file.")
    name = f"kvlab_plugin_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    spec = spec_from_file_location(name, path)
    assert spec is not None
    module = module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pydantic look their module up there
    try:
        exec(compile(code, str(path), "exec"), module.__dict__)
    except BaseException:
        del sys.modules[name]
        raise
    return module
