"""Paths of files that are not Python: what ships with kvlab, and the folder for what it can make or download again."""

import os
from pathlib import Path

from kvlab.core.errors import UserError

PACKAGE = Path(__file__).resolve().parents[1]  # kvlab
SHIPPED = PACKAGE / "shipped"
CACHE = "KVLAB_CACHE"  # variable that names the folder of `cache_folder`


def project_root() -> Path:
    """The folder with `app/` and `assets/`: the checkout, or the copy in an installed package."""
    return SHIPPED if SHIPPED.is_dir() else PACKAGE.parent


def asset_path(name: str) -> Path:
    """The path of `assets/<name>`, such as `mini` or `prompts/samples`.

    Raises UserError if there is no such file or folder.
    """
    path = project_root() / "assets" / name
    if not path.exists():
        raise UserError(f"kvlab's own file {path} is missing: install kvlab again.")
    return path


def cache_folder(*parts: str) -> Path:
    """A folder of `~/.cache/kvlab`, or of `KVLAB_CACHE`, which may not exist yet.

    Raises UserError if this user has no home.
    """
    if named := os.environ.get(CACHE):
        return Path(named).joinpath(*parts)
    try:
        home = os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
    except RuntimeError:
        raise UserError(f"There is no home folder to keep downloads in: name a folder in {CACHE}.") from None
    return Path(home).joinpath("kvlab", *parts)
