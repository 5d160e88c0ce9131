"""Stories from elsewhere never take the place of one that is there."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvlab.core.errors import UserError
from kvlab.trace.stories import Story, View, import_story, list_stories, load_story, parse_story, save_story


def test_a_story_that_comes_in_leaves_those_that_are_there(tmp_path: Path) -> None:
    save_story(tmp_path, Story(name="Group meeting", views=(View(page="sag"),)))
    brought = [
        import_story(tmp_path, Story(name=name, views=(View(page="heads"),))).name for name in ("group meeting!",) * 2
    ]
    assert load_story(tmp_path, "Group meeting").views == (View(page="sag"),)
    assert sorted(list_stories(tmp_path)) == sorted(["Group meeting", *brought]) and len(set(brought)) == 2


@pytest.mark.parametrize("text", ["", "[]", "[" * 100_000, '{"name": "\\ud800"}', '{"name": 1, "views": 2}'])
def test_what_is_no_story_is_one_sentence(text: str) -> None:
    with pytest.raises(UserError, match="not a story"):
        parse_story(text)
