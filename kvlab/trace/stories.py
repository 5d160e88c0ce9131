"""Stories: views saved one after the other, each with a caption, as one JSON file a story in the folder of runs.

On a shared server a story is its maker's and private until they share it: its slides outlive the runs they show.
"""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from kvlab.common.atomic_write import replace_text
from kvlab.common.errors import UserError
from kvlab.server.users import Role, is_owner, require
from kvlab.trace.labels import change_labels, load_labels, may_look_at, take_name

FOLDER = "stories"
LARGEST_FIGURE = 8 << 20


Kind = Literal["figure", "table", "text", "history", "passages"]


class Slide(BaseModel):
    """One figure, table or text as it was seen: it stays when its run is gone."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    title: str
    reading: str = ""
    of: str = Field("", description="what it is of, to be read: method and budget, model, prompt, layer, head, words")
    source: str = Field("", description="where it came from: run id, settings, device, versions")
    kind: Kind = "figure"
    figure: str = Field(
        description="JSON of a plotly figure, or of the view in kvlab.report.views that `kind` names",
        max_length=LARGEST_FIGURE,
    )
    theme: Literal["light", "dark"] = Field("light", description="the ground that its colours were chosen for")


class View(BaseModel):
    """One view: the page's name, its address parameters, what to say about it, and, of a slide, its figure."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    page: str = Field(pattern=r"^[a-z_0-9]*$")
    query: dict[str, str] = Field(default_factory=dict)
    caption: str = ""
    slide: Slide | None = None

    @property
    def title(self) -> str:
        """What a slide is called, or the page."""
        return self.slide.title if self.slide else self.page.replace("_", " ").capitalize() or "Start"


class Story(BaseModel):
    """A named sequence of views."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    views: tuple[View, ...] = ()

    def with_view(self, view: View) -> Story:
        """The story with one more view at its end."""
        return self.model_copy(update={"views": (*self.views, view)})

    def moved(self, at: int, by: int) -> Story:
        """The story with one view moved earlier (`by` -1) or later (1); at the ends it stays."""
        to = min(max(at + by, 0), len(self.views) - 1)
        views = list(self.views)
        views.insert(to, views.pop(at))
        return self.model_copy(update={"views": tuple(views)})

    def without(self, at: int) -> Story:
        """The story without one of its views."""
        return self.model_copy(update={"views": self.views[:at] + self.views[at + 1 :]})

    def twice(self, at: int) -> Story:
        """The story with one of its views a second time, behind the first."""
        return self.model_copy(update={"views": (*self.views[: at + 1], *self.views[at:])})

    def retitled(self, at: int, title: str) -> Story:
        """The story with another title for one of its slides."""
        view = self.views[at]
        slide = view.slide.model_copy(update={"title": title}) if view.slide else None
        changed = view.model_copy(update={"slide": slide})
        return self.model_copy(update={"views": (*self.views[:at], changed, *self.views[at + 1 :])})

    def recaptioned(self, at: int, caption: str) -> Story:
        """The story with another caption for one of its views."""
        changed = self.views[at].model_copy(update={"caption": caption})
        return self.model_copy(update={"views": (*self.views[:at], changed, *self.views[at + 1 :])})


@lru_cache(maxsize=64)
def _parsed(file: Path, stamp: tuple[int, int]) -> Story:
    # The stamp is part of the key only; every page lists the stories, and slides make them large.
    return parse_story(file.read_bytes())


def story_path(root: Path, name: str) -> Path:
    """The file of a story; raises UserError for a name that makes no file name."""
    slug = re.sub(r"[^a-z0-9]+", "-", name.casefold()).strip("-")
    if not slug:
        raise UserError("Give the story a name with at least one letter or digit.")
    return Path(root) / FOLDER / f"{slug[:80]}.json"


def list_stories(root: Path, own: bool = False) -> list[str]:
    """The names of all readable stories that the person who acts may see, or of their `own`, in alphabetical order."""
    names = []
    for file in sorted((Path(root) / FOLDER).glob("*.json")):
        if not may_look_at(root, file.stem, "story") or (own and not is_owner(owner_of_story(root, file.stem))):
            continue
        try:
            names.append(_read(file).name)
        except UserError:
            continue
    return names


def load_story(root: Path, name: str) -> Story:
    """The story of this name, empty where there is none yet, or none that the person who acts may see.

    Raises:
        UserError: its file is damaged.
    """
    file = story_path(root, name)
    return _read(file) if file.exists() and may_look_at(root, file.stem, "story") else Story(name=name.strip())


def owner_of_story(root: Path, name: str) -> str:
    """Whose the story of this name is; "" where nobody's, of which those on a shared server are its administrators'."""
    return load_labels(root, story_path(root, name).stem, "story").owner


def is_private(root: Path, name: str) -> bool:
    """Whether its owner and administrators alone see the story."""
    return load_labels(root, story_path(root, name).stem, "story").private


def make_private(root: Path, name: str, private: bool) -> None:
    """Hide the story from others, or share it; raises UserError where it is not the person's who acts."""
    change_labels(root, story_path(root, name).stem, "story", private=private)


def save_story(root: Path, story: Story) -> Path:
    """Write the story, whole or not at all; returns its file.

    Raises:
        UserError: the person who acts may not, or another's is kept under this name.
    """
    person = require(Role.RUN, "change a story")
    file = story_path(root, story.name)
    is_new = not file.exists()
    if not is_new and not is_owner(owner_of_story(root, story.name)):
        raise UserError("Another person's story has this name: only they and an administrator may change it.")
    if person.name:
        take_name(root, file.stem, "story", private=is_new)
    replace_text(file, story.model_dump_json(indent=2))
    return file


def take_in(root: Path, story: Story) -> Story:
    """Save a story from elsewhere, under another name where one is kept under its own; returns it as saved."""
    name, number = story.name, 1
    while story_path(root, story.name).exists():
        number += 1
        story = story.model_copy(update={"name": f"{name[:70]} {number}"})
    save_story(root, story)
    return story


def parse_story(text: str | bytes) -> Story:
    """A story from the text of its file; raises UserError where it is none."""
    try:
        return Story.model_validate_json(text)
    except ValidationError as error:
        raise UserError("This is not a story: take a JSON file that the page Story exported.") from error


def _read(file: Path) -> Story:
    try:
        found = file.stat()
        return _parsed(file, (found.st_mtime_ns, found.st_ino))
    except (OSError, UserError) as error:
        raise UserError(f"{file} is damaged: remove it, or export the story again.") from error
