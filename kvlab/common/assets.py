"""Paths of files that are not Python: the dashboard, the sample prompts, the embedded model."""

from __future__ import annotations

from pathlib import Path

from kvlab.common.errors import UserError

PACKAGE = Path(__file__).resolve().parents[1]
SHIPPED = PACKAGE / "shipped"


def project_root() -> Path:
    """The folder with `app/`, `pages/` and `assets/`: the checkout, or the copy in an installed package."""
    return SHIPPED if SHIPPED.is_dir() else PACKAGE.parent


def asset_path(name: str) -> Path:
    """The path of `assets/<name>`, such as `mini` or `prompts/samples`.

    Raises UserError if there is no such file or folder.
    """
    path = project_root() / "assets" / name
    if not path.exists():
        raise UserError(f"kvlab's own file {path} is missing: install kvlab again.")
    return path
