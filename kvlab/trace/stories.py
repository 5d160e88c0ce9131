"""Stories: sequences of saved views with captions, one JSON file each in the runs folder.

On a shared server a story is private to its author until shared; its slides outlive the runs they show.
"""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from kvlab.common.atomic_write import replace_text
from kvlab.common.lab import acting, is_owner
from kvlab.core.errors import UserError
from kvlab.trace.user_labels import Labels, change_labels, claim_name, load_labels, may_view

FOLDER = "stories"
LARGEST_FIGURE = 8 << 20


Kind = Literal["figure", "table", "text", "history", "passages"]


class Slide(BaseModel):
    """One figure, table or text as shown; independent of its run."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    title: str
    caption: str = ""
    of: str = Field("", description="description of its data: method and budget, model, prompt, layer, head, words")
    source: str = Field("", description="origin: run id, settings, device, versions")
    kind: Kind = "figure"
    figure: str = Field(
        description="JSON of a plotly figure, or of the view in kvlab.report.views that `kind` names",
        max_length=LARGEST_FIGURE,
    )
    theme: Literal["light", "dark"] = Field("light", description="background its colours were chosen for")

    @model_validator(mode="before")
    @classmethod
    def _take_older_caption(cls, fields: dict[str, Any]) -> dict[str, Any]:
        """Older stories name the caption `reading`, or have a `simple` sentence beside it, which is the one shown."""
        kept = {name: value for name, value in fields.items() if name not in ("simple", "reading")}
        caption = fields.get("simple") or fields.get("caption") or fields.get("reading") or ""
        return kept | {"caption": caption}


class View(BaseModel):
    """One view: page name, URL parameters, caption, and for a slide its figure."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    page: str = Field(pattern=r"^[a-z_0-9]*$")
    query: dict[str, str] = Field(default_factory=dict)
    caption: str = ""
    slide: Slide | None = None

    @property
    def title(self) -> str:
        """The slide's title, or the page name."""
        return self.slide.title if self.slide else self.page.replace("_", " ").capitalize() or "Start"


class Story(BaseModel):
    """A named sequence of views."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    views: tuple[View, ...] = ()

    def _of(self, *views: View) -> Story:
        return self.model_copy(update={"views": views})

    def with_view(self, view: View) -> Story:
        """The story with a view appended."""
        return self._of(*self.views, view)

    def moved(self, at: int, by: int) -> Story:
        """The story with one view moved earlier (`by` -1) or later (1), clamped at the ends."""
        to = min(max(at + by, 0), len(self.views) - 1)
        views = list(self.views)
        views.insert(to, views.pop(at))
        return self._of(*views)

    def without(self, at: int) -> Story:
        """The story without one of its views."""
        return self._of(*self.views[:at], *self.views[at + 1 :])

    def duplicated(self, at: int) -> Story:
        """The story with one of its views duplicated."""
        return self._of(*self.views[: at + 1], *self.views[at:])

    def reworded(self, at: int, *, title: str | None = None, caption: str | None = None) -> Story:
        """The story with another title for one of its slides, or another caption for one of its views."""
        view = self.views[at]
        if title is not None and view.slide:
            view = view.model_copy(update={"slide": view.slide.model_copy(update={"title": title})})
        if caption is not None:
            view = view.model_copy(update={"caption": caption})
        return self._of(*self.views[:at], view, *self.views[at + 1 :])


@lru_cache(maxsize=64)
def _parsed(file: Path, stamp: tuple[int, int]) -> Story:
    # Cached because every page lists the stories and slides make them large; the stamp is only part of the key.
    return parse_story(file.read_bytes())


def story_path(root: Path, name: str) -> Path:
    """The file of a story; raises UserError for an invalid name."""
    slug = re.sub(r"[^a-z0-9]+", "-", name.casefold()).strip("-")
    if not slug:
        raise UserError("Give the story a name with at least one letter or digit.")
    return Path(root) / FOLDER / f"{slug[:80]}.json"


def list_stories(root: Path, owned: bool = False) -> list[str]:
    """Sorted names of all readable stories visible to the current user, or only their `owned`."""
    names = []
    for file in sorted((Path(root) / FOLDER).glob("*.json")):
        if not may_view(root, file.stem, "story") or (owned and not is_owner(labels_of_story(root, file.stem).owner)):
            continue
        try:
            names.append(_read(file).name)
        except UserError:
            continue
    return names


def load_story(root: Path, name: str) -> Story:
    """The story of this name, empty if it does not exist or is not visible to the current user.

    Raises UserError if its file is damaged.
    """
    file = story_path(root, name)
    return _read(file) if file.exists() and may_view(root, file.stem, "story") else Story(name=name.strip())


def labels_of_story(root: Path, name: str) -> Labels:
    """Owner and privacy of a story; on a shared server nobody there owns those without an owner."""
    return load_labels(root, story_path(root, name).stem, "story")


def make_private(root: Path, name: str, private: bool) -> None:
    """Hide or share the story; raises UserError if the current user does not own it."""
    change_labels(root, story_path(root, name).stem, "story", private=private)


def save_story(root: Path, story: Story) -> Path:
    """Atomically write the story and return its file; raises UserError if the current user may not."""
    file = story_path(root, story.name)
    is_new = not file.exists()
    if not is_new and not is_owner(labels_of_story(root, story.name).owner):
        raise UserError("Another user's story has this name: only they may change it.")
    if acting().name:
        claim_name(root, file.stem, "story", private=is_new)
    replace_text(file, story.model_dump_json(indent=2))
    return file


def import_story(root: Path, story: Story) -> Story:
    """Import a story, renamed if its name is taken; returns it as saved."""
    name = story.name
    number = 1
    while story_path(root, story.name).exists():
        number += 1
        story = story.model_copy(update={"name": f"{name[:70]} {number}"})
    save_story(root, story)
    return story


def parse_story(text: str | bytes) -> Story:
    """A story from its file's text; raises UserError if invalid."""
    try:
        return Story.model_validate_json(text)
    except ValidationError as error:
        raise UserError("This is not a story: choose a JSON file exported from the page Story.") from error


def _read(file: Path) -> Story:
    try:
        found = file.stat()
        return _parsed(file, (found.st_mtime_ns, found.st_ino))
    except (OSError, UserError) as error:
        raise UserError(f"{file} is damaged: remove it, or export the story again.") from error
