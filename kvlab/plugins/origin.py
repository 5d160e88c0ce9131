"""Where a registered thing came from: kvlab itself, a file, or an installed package."""

from __future__ import annotations

from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass

from kvlab.common.context_value import meanwhile


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
