"""Named views of the table of runs: filters, order and columns, one JSON file each."""

from __future__ import annotations

import re
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from kvlab.common.atomic_write import replace_text
from kvlab.common.errors import UserError
from kvlab.common.validation import check_text
from kvlab.server.users import Role, require

FOLDER = "views"
LONGEST_NAME = 80


class SavedView(BaseModel):
    """A name and URL parameters."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    name: str = Field(min_length=1, max_length=LONGEST_NAME)
    query: dict[str, str] = Field(default_factory=dict)


def saved_views(root: Path) -> list[SavedView]:
    """All readable views, by name."""
    found = []
    for file in (Path(root) / FOLDER).glob("*.json"):
        try:
            found.append(SavedView.model_validate_json(file.read_bytes()))
        except (OSError, ValidationError):
            continue
    return sorted(found, key=lambda view: view.name.casefold())


def save_view(root: Path, name: str, query: dict[str, str]) -> SavedView:
    """Save a view, replacing one of the same name. Raises UserError for an invalid name."""
    require(Role.RUN, "save a view")
    check_text(name, "The name")
    view = SavedView(name=name.strip()[:LONGEST_NAME] or "view", query=query)
    replace_text(_path(root, view.name), view.model_dump_json(indent=1))
    return view


def remove_view(root: Path, name: str) -> None:
    """Delete a view."""
    require(Role.RUN, "delete a view")
    _path(root, name).unlink(missing_ok=True)


def _path(root: Path, name: str) -> Path:
    slug = re.sub(r"[^\w]+", "-", name.casefold()).strip("-")
    if not slug:
        raise UserError("Give the view a name with at least one letter or digit.")
    return Path(root) / FOLDER / f"{slug[:LONGEST_NAME]}.json"
