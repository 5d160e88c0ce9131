"""A button that opens an HTML page with scripts of its own in a new tab."""

from __future__ import annotations

from app.base.component import component

_present = component("present", '<button class="kv-present" type="button">Present</button>', "present.css")


def present_button(page: str, key: str) -> None:
    """The button; `page` is the HTML, which the browser receives now."""
    _present(key=key, data={"html": page})
