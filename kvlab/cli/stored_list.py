"""Lists that take seconds to make, because torch or every task is imported, as files that are made on first use."""

import hashlib
import json
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from kvlab.common.atomic_write import replace_text
from kvlab.core import UserError, cache_folder
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
    for folder, folders, names in os.walk(PACKAGE):
        folders[:] = sorted(name for name in folders if name not in ("browser", "__pycache__"))
        for name in sorted(names):
            if name.endswith((".py", ".toml")):
                path = os.path.join(folder, name)
                status = os.stat(path)
                digest.update(f"{path} {status.st_size} {status.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:16]
