"""WCAG 2.1 AA on every page of the menu, as far as axe-core can tell: names, contrast, alternative texts, roles."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.browser.settle import until

RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"]
MOST_SECONDS = 4  # to wait for a page: the atlas draws its pictures for longer, each into a place that is there at once
GRAVE = {"serious", "critical"}
STREAMLITS_OWN = {
    "list": "the menu of pages has a div around each section's items",
    "listitem": "the same",
}
IS_QUIET = "document.querySelector('.stApp')?.dataset.testScriptState === 'notRunning'"
ICONS = re.compile("download|expand_more|arrow_|_add|content_copy")


@pytest.fixture
def violations() -> Callable[..., list[str]]:
    """Grave violations of a page: rule, element, and what is wrong with it."""
    axe = pytest.importorskip(
        "axe_playwright_python.sync_playwright", reason="axe-playwright-python, of the extra dev, is not installed"
    ).Axe()

    def found(page: Any, rules: list[str] = RULES, inside: str | None = None) -> list[str]:
        deadline = time.monotonic() + MOST_SECONDS
        while not page.evaluate(IS_QUIET) and time.monotonic() < deadline:
            page.wait_for_timeout(100)
        page.wait_for_timeout(300)  # the front end draws what the script sent last
        result = axe.run(page, inside, options={"runOnly": rules, "resultTypes": ["violations"]}).response
        return [
            f"{rule['id']}: {node['html'][:200]} {node['failureSummary']}"
            for rule in result["violations"]
            if rule["impact"] in GRAVE and rule["id"] not in STREAMLITS_OWN
            for node in rule["nodes"]
        ]

    return found


def test_no_page_of_the_menu_shuts_anybody_out(visit: Callable[..., Any], violations: Callable[..., list[str]]):
    page = visit("runs")
    links = page.get_by_test_id("stSidebarNavLink")
    links.last.wait_for()
    grave, titles = {}, []
    for number in range(links.count()):
        name = links.nth(number).inner_text().splitlines()[-1]  # the icon's name is before it
        links.nth(number).click()
        until(page, "name => document.title === `${name} · kvlab`", name)
        page.locator("h1:visible").first.wait_for()
        if found := violations(page, inside="[data-testid=stMain]" if number else None):  # the menu stays the same
            grave[name] = found
        titles.append(page.title())
        assert page.get_by_role("button", name=ICONS).count() == 0, "an icon's name is no part of a label"
    assert not grave, "\n".join(f"{name}\n  " + "\n  ".join(found) for name, found in grave.items())
    assert len(set(titles)) == len(titles) > 20


@pytest.mark.parametrize("path", ["timeline", "wall", "live"])
def test_text_on_the_dark_ground_is_readable(
    visit: Callable[..., Any], violations: Callable[..., list[str]], path: str
):
    page = visit(f"{path}?comparison=sample", scheme="dark")
    until(page, "getComputedStyle(document.querySelector('.stApp')).backgroundColor === 'rgb(18, 21, 28)'")
    assert violations(page, ["color-contrast"]) == []


def test_every_menu_of_a_figure_names_the_figure(visit: Callable[..., Any]):
    page = visit("compare?comparison=sample")
    menus = page.locator("[class*='st-key-menu-'] button:visible")
    menus.first.wait_for()
    until(page, IS_QUIET)
    named = page.get_by_role("button", name=re.compile("^Export: ."))
    assert named.count() == menus.count() > 1
    titles = named.all_inner_texts()
    assert len(set(titles)) == len(titles)
    title = titles[0].replace("download", "").replace("expand_more", "").strip().removeprefix("Export: ")
    named.first.click()
    page.get_by_role("button", name=f"Add to story ({title})", exact=True).wait_for()
    page.get_by_role("button", name=f"CSV of {title}", exact=True).wait_for()
