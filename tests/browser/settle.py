"""Waiting for a page to stand still before a pointer is moved over it."""

from __future__ import annotations

import time
from typing import Any

PATIENCE_SECONDS = 60


def settle(page: Any, selector: str) -> None:
    """Wait until what `selector` names has stayed where it is for a while: the page grows while its plots are drawn."""
    place, still, deadline = None, 0, time.monotonic() + PATIENCE_SECONDS
    while still < 8 and time.monotonic() < deadline:
        before, place = place, page.locator(selector).first.bounding_box()
        still = still + 1 if place == before else 0
        page.wait_for_timeout(100)


def until(page: Any, condition: str, argument: Any = None) -> None:
    """Wait until this expression, or function of `argument`, is true; playwright's own way, `wait_for_function`, is
    stopped by the pages' policy whenever the condition does not hold at the first look."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not page.evaluate(condition, argument):
        assert time.monotonic() < deadline, condition
        page.wait_for_timeout(50)
