"""The plug-ins this process should load: files in `KVLAB_PLUGINS`, and packages by their entry points."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

from kvlab.common.errors import UserError

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


def named() -> tuple[str, str]:
    """The environment's settings; plug-ins are looked for again when they change."""
    return os.environ.get(FILES, ""), os.environ.get(ALLOWED, "all")


def files_named() -> list[Path]:
    """The files in `KVLAB_PLUGINS`, in order."""
    return [Path(text) for text in os.environ.get(FILES, "").split(os.pathsep) if text]


def packages_named() -> Sequence[EntryPoint]:
    """Entry points of installed packages by name, restricted by `KVLAB_PLUGIN_ALLOW`."""
    allowed = os.environ.get(ALLOWED)
    wanted = None if allowed is None else {name.strip() for name in allowed.split(",")}
    points = sorted(entry_points(group=GROUP), key=lambda point: point.name)
    return [point for point in points if wanted is None or point.name in wanted]
