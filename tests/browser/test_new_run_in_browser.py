"""New run as people use it: one screen with its buttons in view, and the texts of a comparison while it runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from tests.browser.settle import settle, until
from tests.jobs.stand_in import HOLD

TEXT = (
    "The real engine reads this. It was late, the old lamp went out, and the rain came in. Then the door opened. " * 3
)


def test_the_buttons_stay_in_view_and_a_plain_comparison_fits_a_laptop(visit: Callable[..., Any]):
    page = visit("new_run", 1440, 900)
    page.locator(".st-key-run button:not([disabled])").wait_for()
    the_buttons_stay_in_view(page, 1440, 900)
    for width, height in ((1024, 768), (853, 480)):
        page.set_viewport_size({"width": width, "height": height})
        settle(page, ".st-key-run button")
        the_buttons_stay_in_view(page, width, height)


def the_buttons_stay_in_view(page: Any, width: int, height: int) -> None:
    """In a window of this size; in a wide one all of the form, in a narrow one in one column."""
    main = "document.querySelector('[data-testid=stMain]')"
    for down in (0, 400):
        page.evaluate(f"{main}.scrollTo(0, {down})")
        for key in ("run", "ask-full"):
            box = page.locator(f".st-key-{key} button").bounding_box()
            assert box and box["y"] >= 0 and box["y"] + box["height"] <= height, "the bar is in view"
    assert "fits" in page.locator(".st-key-run-sentence").inner_text()
    page.evaluate(f"{main}.scrollTo(0, 0)")
    left, right = (page.locator(".st-key-new-run [data-testid=stColumn]").nth(place) for place in (0, 1))
    if width < 1180:
        assert page.evaluate(f"{main}.scrollWidth - {main}.clientWidth") <= 1
        assert left.bounding_box()["width"] > 0.8 * (width - 220), "the columns are stacked"
        return
    bar = page.get_by_test_id("stBottom").bounding_box()
    until(page, f"{main}.scrollHeight <= {main}.clientHeight + 1")
    for words in ("Budgets", "New tokens", "Settings of the methods", "Device and weights", "The right answer is"):
        box = page.get_by_test_id("stMain").get_by_text(words, exact=False).first.bounding_box()
        assert box and box["y"] + box["height"] <= bar["y"], f"{words} is seen without scrolling"
    assert right.bounding_box()["x"] > left.bounding_box()["x"]


def test_the_texts_of_two_methods_are_seen_before_the_end_and_the_outcome_after_it(
    visit: Callable[..., Any], served: Path
):
    asked = {"source": "Paste", "text": TEXT, "methods": ["Full cache", "H2O"], "max_new_tokens": 120, "level": "off"}
    (served / HOLD).touch()
    page = visit(f"new_run?{urlencode(asked, doseq=True)}")
    page.locator(".st-key-run button:not([disabled])").click()
    until(
        page,
        "() => { const texts = [...document.querySelectorAll('.kv-race-writing p')].map(text => text.innerText.trim());"
        " return texts.length === 2 && texts.every(text => text.length > 3); }",
    )
    assert page.get_by_role("button", name="Compare the runs").count() == 0, "it still runs"
    followed = page.url.rsplit("/", 1)[1]
    (served / HOLD).unlink()
    page.wait_for_url("**/compare?comparison=*")  # the result opens by itself; its progress page stays
    page = visit(followed)
    page.get_by_role("button", name="Compare the runs").wait_for()
    page.get_by_text("Closest to the full cache").wait_for()
    until(page, "document.querySelectorAll('.kv-race-ended p').length === 2")
