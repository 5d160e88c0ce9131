"""Lists that take seconds to make, because torch or every task is imported, as files that are made on first use."""

import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from kvlab.common.atomic_write import replace_text
from kvlab.core.assets import cache_folder
from kvlab.core.errors import UserError
from kvlab.core.plugins.load import files_named, packages_named

PACKAGE = Path(__file__).resolve().parents[1]


def stored_list(name: str, registry: str, make: Callable[[], Any]) -> Any:
    """What `make` returns, as JSON data: read from a file where this code made it before.

    With plug-ins, or where the module `registry` is loaded already, the list is made anew. A folder that cannot be
    written costs the time alone.
    """
    if registry in sys.modules or files_named() or packages_named():
        return make()
    try:
        file = cache_folder("lists") / f"{name}-{_stamp()}.json"
        with suppress(OSError, ValueError):
            return json.loads(file.read_text(encoding="utf-8"))
        made = make()
        with suppress(OSError):
            file.parent.mkdir(parents=True, exist_ok=True)
            for older in file.parent.glob(f"{name}-*.json"):
                older.unlink(missing_ok=True)
            replace_text(file, json.dumps(made))
    except UserError:  # no home folder
        return make()
    return made


def _stamp() -> str:
    """A digest of the names, sizes and times of kvlab's sources: another version or an edit makes another list."""
    digest = hashlib.sha256(sys.version.encode())
    for path, status in _sources(PACKAGE):
        digest.update(f"{path} {status.st_size} {status.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:16]


def _sources(folder: Path) -> Iterator[tuple[str, os.stat_result]]:
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        if entry.is_dir() and entry.name not in ("browser", "__pycache__"):
            yield from _sources(Path(entry.path))
        elif entry.name.endswith((".py", ".toml")):
            yield entry.path, entry.stat()
