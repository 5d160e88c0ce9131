"""The folder for files that kvlab can make or download again, `~/.cache/kvlab` unless `KVLAB_CACHE` names another."""

from __future__ import annotations

import os
from pathlib import Path

from kvlab.common.errors import UserError

FOLDER = "KVLAB_CACHE"


def cache_folder(*parts: str) -> Path:
    """A folder of this cache, which may not exist yet. Raises UserError if this user has no home."""
    if named := os.environ.get(FOLDER):
        return Path(named).joinpath(*parts)
    try:
        home = os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
    except RuntimeError:
        raise UserError(f"There is no home folder to keep downloads in: name a folder in {FOLDER}.") from None
    return Path(home).joinpath("kvlab", *parts)
