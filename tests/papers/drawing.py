"""Drawing an exhibit in both themes, with the checks that every exhibit must pass."""

from __future__ import annotations

import json
import re

from kvlab.papers.exhibit import Choice, Drawn, Exhibit
from kvlab.results.sources import Sources
from tests.papers.test_every_exhibit import is_sound


def drawn(exhibit: Exhibit, sources: Sources, choice: Choice | None = None) -> tuple[Drawn, ...]:
    """What the exhibit draws in light, after checking that it is sound and the same but for colours in dark."""
    choice = choice or Choice()
    light, dark = exhibit.draw(sources, choice, "light"), exhibit.draw(sources, choice, "dark")
    assert isinstance(light, tuple) and isinstance(dark, tuple), light
    for one, other in zip(light, dark, strict=True):
        is_sound(one)
        assert _without_colours(one) == _without_colours(other), one.name
    return light


def _without_colours(drawn: Drawn) -> object:
    return json.loads(re.sub(r'"#[0-9A-Fa-f]{6}"', '"#"', drawn.figure.to_json()))
