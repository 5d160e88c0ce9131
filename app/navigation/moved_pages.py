"""Former pages, by their place in links, and where these lead now."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from app.base.links import go
from app.session.url_state import params


@dataclass(frozen=True)
class Moved:
    """The page that took the place of a former one, which parameters have other names there, and which are added."""

    page: str
    renamed: Mapping[str, str] = field(default_factory=dict)
    added: Mapping[str, str] = field(default_factory=dict)


MOVED = {
    "difference": Moved("two_runs", renamed={"a": "run"}, added={"panes": "text,kl"}),
    "killed": Moved("restore"),
}


def current_place(page: str, query: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """The page and parameters that a link to `page`, of today or before, means."""
    if page not in MOVED:
        return page, dict(query)
    moved = MOVED[page]
    # A new name wins over an old parameter of that name, as the run that a difference begins with.
    kept = {name: value for name, value in query.items() if name not in moved.renamed}
    renamed = {moved.renamed[name]: value for name, value in query.items() if name in moved.renamed}
    return current_place(moved.page, {**kept, **renamed, **moved.added})


def open_moved(name: str) -> None:
    """Open what took the place of a former page."""
    page, query = current_place(name, params())
    go(page, **query)
