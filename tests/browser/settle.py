"""Going from page to page in one tab, and waiting for a page to stand still before a pointer is moved over it."""

from __future__ import annotations

import time
from typing import Any

PATIENCE_SECONDS = 120.0  # of a busy machine; on a quiet one a second is enough
IS_QUIET = "document.querySelector('.stApp')?.dataset.testScriptState === 'notRunning'"


def settle(page: Any, selector: str) -> None:
    """Wait until what `selector` names has stayed where it is for a while: the page grows while its plots are drawn."""
    place, still, deadline = None, 0, time.monotonic() + PATIENCE_SECONDS
    while still < 8 and time.monotonic() < deadline:
        before, place = place, page.locator(selector).first.bounding_box()
        still = still + 1 if place == before else 0
        page.wait_for_timeout(100)


def bring_into_view(page: Any, selector: str) -> None:
    """Scroll to what `selector` names, and wait until it stands still.

    playwright's `scroll_into_view_if_needed` fails if the page is redrawn and its node replaced meanwhile.
    """
    page.locator(selector).first.wait_for(state="attached")
    settle(page, selector)
    page.locator(selector).first.evaluate("node => node.scrollIntoView({block: 'center'})")
    settle(page, selector)


def turn(page: Any, path: str) -> None:
    """Open another page of the dashboard in this tab, and wait for its first picture.

    This is how the browser's own way back does it: the address changes and the scripts stay, which takes half the
    processor time of a load. A test of what a fresh browser sees loads the page.
    """
    before = page.title()
    page.evaluate("to => { history.pushState({}, '', to); dispatchEvent(new PopStateEvent('popstate')); }", f"/{path}")
    until(page, "before => document.title !== before", before)
    page.locator("h1:visible").first.wait_for()
    until(page, IS_QUIET)


def until(page: Any, condition: str, argument: Any = None) -> None:
    """Wait until this expression, or function of `argument`, is true; playwright's own way, `wait_for_function`, is
    stopped by the pages' policy whenever the condition does not hold at the first look."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not page.evaluate(condition, argument):
        assert time.monotonic() < deadline, condition
        page.wait_for_timeout(50)
