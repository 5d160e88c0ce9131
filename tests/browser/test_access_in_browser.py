"""Every page of the menu: WCAG 2.1 AA as far as axe-core can tell, nothing cut, and no markup of a prompt."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any

import pytest

from app.navigation.menu import GLOSSARY, MENU
from tests.browser.conftest import RUN
from tests.browser.settle import IS_QUIET, turn, until

RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"]
MOST_SECONDS = 2  # to wait for a page: the atlas draws its pictures for longer, each into a place that is there at once
GRAVE = {"serious", "critical"}
STREAMLITS_OWN = {
    "list": "the menu of pages has a div around each section's items",
    "listitem": "the same",
}
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
        if page.evaluate("typeof axe") == "undefined":
            page.evaluate(axe.axe_script)
        options = {"runOnly": rules, "resultTypes": ["violations"]}
        result = page.evaluate("([inside, options]) => axe.run(inside ?? document, options)", [inside, options])
        return [
            f"{rule['id']}: {node['html'][:200]} {node['failureSummary']}"
            for rule in result["violations"]
            if rule["impact"] in GRAVE and rule["id"] not in STREAMLITS_OWN
            for node in rule["nodes"]
        ]

    return found


def test_no_page_of_the_menu_shuts_anybody_out_or_is_cut(
    visit: Callable[..., Any], violations: Callable[..., list[str]]
):
    """In a window as wide as one of 1280 pixels at 125 percent, on a run whose prompt is full of markup."""
    page = visit("runs?comparison=nasty&token=3", width=1024, height=720)
    page.get_by_test_id("stSidebarNavLink").last.wait_for()
    grave, titles = {}, []
    names = [name for entry in MENU for name, _ in entry.views] + [GLOSSARY]
    for number, name in enumerate(names):
        turn(page, f"{name}?comparison=nasty&token=3")
        page.locator("h1:visible").first.wait_for()
        if found := violations(page, inside="[data-testid=stMain]" if number else None):  # the menu stays the same
            grave[name] = found
        titles.append(page.title())  # a script in a prompt would have changed it by now
        assert page.locator("[data-testid=stException]").all_inner_texts() == [], name
        assert page.locator("img[src='x']").count() == 0, name
        assert page.evaluate("document.documentElement.scrollWidth") <= 1024, f"{name} is cut on the right"
        assert page.get_by_role("button", name=ICONS).count() == 0, "an icon's name is no part of a label"
    assert not grave, "\n".join(f"{name}\n  " + "\n  ".join(found) for name, found in grave.items())
    assert len(set(titles)) == len(titles) > 20 and "broken into" not in titles


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_captions_icons_and_dropped_words_are_readable_in_both_themes(visit: Callable[..., Any], scheme: str):
    asked = "run=sample-h2o-25pc-0&layer=0&head=0&step=6"
    page = visit(f"timeline?{asked}", scheme=scheme)
    dropped_words_are_readable(page, ".kv-strip .text .s6")
    turn(page, f"wall?{asked}")
    dropped_words_are_readable(page, ".kv-text-panel .text [data-cue=strike]")


def dropped_words_are_readable(page: Any, words: str) -> None:
    """Check the contrast of the first match of `words`, the first caption and the first icon."""
    page.locator(words).first.wait_for()
    assert "line-through" in page.locator(words).first.evaluate("word => getComputedStyle(word).textDecorationLine")
    for text in (words, "[data-testid=stCaptionContainer] p", "[data-testid=stSidebarNavLink] [translate=no]"):
        assert contrast(page.locator(text).first.evaluate(COLOURS)) >= 4.5, text


def test_no_text_of_a_form_is_too_faint_on_the_dark_ground(
    visit: Callable[..., Any], violations: Callable[..., list[str]]
):
    page = visit("", scheme="dark")
    until(page, "getComputedStyle(document.querySelector('.stApp')).backgroundColor === 'rgb(18, 21, 28)'")
    turn(page, "live")
    page.get_by_role("button", name="Read the context").wait_for()
    assert violations(page, ["color-contrast"]) == []
    turn(page, "heads?run=sample-h2o-25pc-0")
    page.get_by_test_id("stSliderThumbValue").first.wait_for()
    assert violations(page, ["color-contrast"]) == []


# The colours from a text's own to the page's ground: (red, green, blue, alpha) of 0 to 1, read from a painted canvas.
COLOURS = """text => {
  const canvas = Object.assign(document.createElement("canvas"), { width: 1, height: 1 }).getContext("2d");
  const read = (colour) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data].map(value => value / 255);
  };
  const grounds = [];
  let opacity = 1;
  for (let node = text; node; node = node.assignedSlot ?? node.parentElement ?? node.getRootNode().host) {
    grounds.push(read(getComputedStyle(node).backgroundColor));
    opacity *= Number(getComputedStyle(node).opacity);
  }
  const own = read(getComputedStyle(text).color);
  return [[own[0], own[1], own[2], own[3] * opacity], ...grounds];
}"""


def contrast(colours: list[list[float]]) -> float:
    """The contrast ratio of a text with what is behind it, by the equations of WCAG 2."""
    ground = [1.0, 1.0, 1.0]
    for *colour, alpha in reversed(colours[1:]):
        ground = [alpha * above + (1 - alpha) * below for above, below in zip(colour, ground, strict=True)]
    *own, alpha = colours[0]
    text = [alpha * above + (1 - alpha) * below for above, below in zip(own, ground, strict=True)]

    def luminance(colour: list[float]) -> float:
        linear = [value / 12.92 if value <= 0.03928 else ((value + 0.055) / 1.055) ** 2.4 for value in colour]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    dark, light = sorted((luminance(text), luminance(ground)))
    return (light + 0.05) / (dark + 0.05)


def test_contrast_is_wcags():
    assert contrast([[0, 0, 0, 1], [1, 1, 1, 1]]) == pytest.approx(21)
    assert contrast([[0x76 / 255] * 3 + [1], [1, 1, 1, 1]]) == pytest.approx(4.54, abs=0.01)


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


@pytest.mark.parametrize(("width", "height"), [(720, 450), (640, 800)])
def test_nothing_at_the_top_of_a_page_lies_under_the_header_of_a_small_window(
    visit: Callable[..., Any], width: int, height: int
):
    """A window of 1,440 pixels at 200 % zoom: the pickers are what a pointer meets where they are."""
    page = visit(f"autopsy?run={RUN}", width, height)
    pickers = page.locator("[data-testid=stMain] [data-testid=stSelectbox] [role=combobox]")
    pickers.nth(2).wait_for()
    met = page.evaluate(MET_BY_POINTER, "[data-testid=stMain] [data-testid=stSelectbox] [role=combobox]")
    assert len(met) >= 3 and all(met), met
    pickers.first.click()
    page.wait_for_selector("[role=option]")


MET_BY_POINTER = """(pickers) => [...document.querySelectorAll(pickers)].slice(0, 4).map((one) => {
  const box = one.getBoundingClientRect();
  const met = document.elementFromPoint(box.x + box.width / 2, box.y + box.height / 2);
  return Boolean(met) && (one.contains(met) || met.contains(one) && met.closest("[data-testid=stSelectbox]") !== null);
})"""
