"""Loading each plug-in once: one that fails is taken back whole, with a sentence, and the others go on."""

from __future__ import annotations

import hashlib
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.metadata import EntryPoint
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path

from kvlab.common.errors import UserError
from kvlab.plugins.requested import files_named, named, packages_named
from kvlab.plugins.shelf import Origin, Shelf, registering, undo


@dataclass(frozen=True)
class Plugin:
    """A plug-in that was loaded, or the sentence that says why not."""

    origin: Origin
    failure: str = ""

    @property
    def brought(self) -> dict[str, list[str]]:
        """Names of what it registered, by kind."""
        return {shelf.kind: names for shelf in Shelf.every if (names := shelf.of(self.origin))}


_lock = threading.RLock()
_loaded: dict[str, Plugin] = {}
_loading: list[str] = []
_answered: set[tuple[str, ...]] = set()


def load_plugins(word: str = "") -> list[Plugin]:
    """Load whatever this process was told to load and has not yet; all that is loaded, what failed included.

    Only plug-ins with `word` in their code, if one is given. One that fails is reported once on standard error and
    leaves nothing behind.
    """
    asked = (*named(), word)
    if asked in _answered:  # registries are read often, and looking for installed packages takes a while
        return list(_loaded.values())
    with _lock:
        if not _loading:  # a plug-in that reads a registry sees what is there so far
            for path in files_named():
                _once(str(path), _code(path), word, partial(_load_file, path))
            for point in packages_named():
                _once(f"{point.name}={point.value}", _code(_source(point.module)), word, partial(_load_package, point))
            _answered.add(asked)
        return list(_loaded.values())


def stamps() -> dict[str, str]:
    """`plugin:NAME` with version and hash of every plug-in that works, as runs and rows keep them."""
    return {f"plugin:{plugin.origin.name}": plugin.origin.stamp for plugin in load_plugins() if not plugin.failure}


def _once(key: str, code: bytes, word: str, load: Callable[[bytes], Plugin]) -> None:
    if key in _loaded or word.encode() not in code:
        return
    _loading.append(key)
    try:
        _loaded[key] = load(code)
    finally:
        _loading.remove(key)
    if _loaded[key].failure:
        print(f"kvlab: {_loaded[key].failure}", file=sys.stderr)


def _code(path: Path | None) -> bytes:
    try:
        return path.read_bytes() if path else b""
    except OSError:
        return b""


def _source(module: str) -> Path | None:
    try:
        spec = find_spec(module)
    except (ImportError, ValueError):
        return None
    return Path(spec.origin) if spec and spec.origin else None


def _digest(code: bytes, path: Path | None) -> str:
    """SHA-256 of code, followed by the settings file of its name beside it where there is one."""
    return hashlib.sha256(code + _code(path.with_suffix(".toml") if path else None)).hexdigest()


def _load_file(path: Path, code: bytes) -> Plugin:
    origin = Origin(path.stem, "", _digest(code, path), str(path))

    def run() -> str:
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
        return str(getattr(module, "__version__", ""))

    return _guarded(origin, run)


def _load_package(point: EntryPoint, code: bytes) -> Plugin:
    name = point.dist.metadata["Name"] if point.dist is not None else point.name
    version = point.dist.version if point.dist is not None else ""
    origin = Origin(name, version, _digest(code, _source(point.module)), point.value)
    return _guarded(origin, lambda: str(getattr(point.load(), "__version__", "")))


def _guarded(origin: Origin, run: Callable[[], str]) -> Plugin:
    """Run a plug-in's code as `origin`; on any failure all that it registered is forgotten."""
    try:
        with registering(origin):
            version = run()
    except Exception as error:
        undo(origin)
        told = str(error) if isinstance(error, UserError) else _first_line(error)
        return Plugin(origin, f"The plug-in {origin} was left out: {told}")
    return Plugin(_with_version(origin, version))


def _with_version(origin: Origin, version: str) -> Origin:
    """The origin with the version that the module itself states, in the registries too."""
    if origin.version or not version:
        return origin
    known = Origin(origin.name, version, origin.sha256, origin.place)
    for shelf in Shelf.every:
        shelf.renamed(origin, known)
    return known


def _first_line(error: Exception) -> str:
    line = (str(error).strip().splitlines() or ["no message"])[0]
    return f"{type(error).__name__}: {line}{'' if line.endswith(('.', '!', '?')) else '.'}"
