"""The dashboard as people use it: served with synthetic runs and no model."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import plotly.graph_objects as go

from kvlab.trace.stories import Slide, Story, View, save_story
from tests.browser.settle import IS_QUIET, settle, turn, until

IN_A_SMALL_WINDOW = ("timeline", "merges", "regret", "memory")


def test_from_the_start_page_to_an_ended_comparison_that_another_session_can_open(
    visit: Callable[..., Any], address: str
):
    page = visit("start")  # the first page, by its own name
    page.get_by_text("Try the sample prompt").click()
    assert page.get_by_text("Page not found").count() == 0
    page.wait_for_url("**/compare?job=*")
    followed = page.url
    page.wait_for_url("**/compare?comparison=*")  # the result opens by itself where its progress was in sight
    other = visit(followed.removeprefix(f"{address}/"))
    other.get_by_role("button", name="Compare the runs").wait_for()
    other.get_by_role("button", name="Compare the runs").click()
    other.wait_for_url("**/compare?comparison=*")


def test_the_menu_keeps_what_is_looked_at(visit: Callable[..., Any], address: str):
    page = visit("timeline?run=sample-keepkv-25pc-0&layer=1&head=1")
    page.get_by_test_id("stSidebar").get_by_role("link", name="Attention").click()
    page.wait_for_url("**/merges?**run=sample-keepkv-25pc-0**")
    page.get_by_test_id("stSidebar").get_by_role("link", name="Cache").click()
    page.wait_for_url("**/wall?**")
    until(page, IS_QUIET)
    page.locator(".st-key-page-tabs").get_by_role("link", name="One slot").click()
    page.wait_for_url(re.compile(r"/lineage\?.*layer=1.*head=1"))


def test_a_tab_marks_its_entry_of_the_menu_and_the_buttons_below_it_stay_visible(visit: Callable[..., Any]):
    page = visit("regret")
    button = page.get_by_role("button", name="Copy link")
    settle(page, "button:has-text('Copy link')")
    box = button.bounding_box()
    assert box["y"] + box["height"] <= page.viewport_size["height"], "below the menu, not below the window"
    links = page.locator("[data-testid=stSidebarNavLink]")
    assert links.count() <= 12
    until(
        page,
        "[...document.querySelectorAll('[data-testid=stSidebarNavLink]')].filter(link =>"
        " getComputedStyle(link).backgroundColor !== 'rgba(0, 0, 0, 0)').map(link => link.innerText).join()"
        ".endsWith('Attention')",
    )
    page.locator(".st-key-top-tools").get_by_role("link", name="?").click()
    page.wait_for_url("**/glossary*")


def test_the_bar_stays_in_sight_while_the_page_scrolls_and_a_small_window_has_room(visit: Callable[..., Any]):
    page = visit("regret?run=sample-keepkv-25pc-0", 1440, 900)
    the_bar_stays_and_a_small_window_has_room(page, "regret")
    for name in ("memory", "timeline", "merges", "compare", "keepkv"):
        page.set_viewport_size({"width": 1440, "height": 900})
        turn(page, f"{name}?run=sample-keepkv-25pc-0")
        the_bar_stays_and_a_small_window_has_room(page, name)


def the_bar_stays_and_a_small_window_has_room(page: Any, name: str) -> None:
    """The bar while the page scrolls; in a small window the run is named and a chart has its width."""
    bar = page.locator(".st-key-context-bar")
    bar.wait_for()
    until(page, "!document.querySelector('[data-testid=stStatusWidget]')")
    page.get_by_test_id("stPopoverButton").first.wait_for()
    assert "keepkv" in bar.inner_text()
    for down in (0, 700):
        page.evaluate("down => document.querySelector('[data-testid=stMain]').scrollTo(0, down)", down)
        until(
            page,
            "() => { const bar = document.querySelector('.st-key-context-bar').getBoundingClientRect();"
            " return bar.top >= 0 && bar.top < 40 && bar.bottom < 180; }",
        )
    until(  # what scrolls under it does not show through; the page may be drawing it anew
        page,
        "() => getComputedStyle(document.querySelector('.st-key-context-bar').parentElement).backgroundColor"
        " === 'rgb(255, 255, 255)'",
    )
    if name in IN_A_SMALL_WINDOW:
        page.evaluate("document.querySelector('[data-testid=stMain]').scrollTo(0, 0)")
        page.set_viewport_size({"width": 853, "height": 480})
        _small_window_has_room(page)


def _small_window_has_room(page: Any) -> None:
    page.locator(".st-key-context-line p", has_text="keepkv").wait_for()
    page.locator(".js-plotly-plot:visible").first.wait_for()
    until(  # no two beside each other; a chart in a tab that is not open has no width yet
        page,
        "() => [...document.querySelectorAll('.js-plotly-plot')].filter(chart => chart.checkVisibility())"
        ".every(chart => 853 / 2 < chart.getBoundingClientRect().width && chart.getBoundingClientRect().width <= 853)",
    )
    logo, switch = page.locator("[data-testid=stSidebarHeader] img").first, page.locator(".kv-theme")
    left, right = logo.bounding_box(), switch.bounding_box()
    assert left and right and left["x"] + left["width"] <= right["x"] + 1 and right["y"] + right["height"] < 60
    until(page, "(main => main.scrollWidth - main.clientWidth)(document.querySelector('[data-testid=stMain]')) <= 1")


def test_a_click_on_a_cell_of_a_map_goes_there(visit: Callable[..., Any], address: str):
    page = visit("regret?run=sample-keepkv-25pc-0&layer=0&head=1&step=3")
    settle(page, ".st-key-regret-map .nsewdrag")
    until(page, "document.querySelector('.st-key-regret-map .nsewdrag').style.cursor === 'pointer'")
    plot = page.locator(".st-key-regret-map .nsewdrag").first.bounding_box()
    page.mouse.click(plot["x"] + 0.5 * plot["width"], plot["y"] + 0.75 * plot["height"])
    page.wait_for_url(re.compile("layer=1"))
    assert re.search("head=1", page.url) and not re.search("step=3(&|$)", page.url)


def test_from_the_atlas_to_an_exhibit_that_plays_its_steps(visit: Callable[..., Any], address: str):
    page = visit("atlas?comparison=papers&search=zsmerge")
    page.get_by_text("can be drawn").wait_for()
    # Cards come one by one, not always the first one first.
    card = page.locator("a[href*='paper=zsmerge&exhibit=fig-1']").first
    card.wait_for()
    link = card.get_attribute("href")
    assert page.get_by_role("link", name="Fig 1 · Evicting against merging").first.get_attribute("href") == link
    page.goto(f"{address}/{link}")
    page.get_by_text("What to look for.").wait_for()
    page.locator(".js-plotly-plot .updatemenu-button").first.wait_for()
    last = page.evaluate("document.querySelector('.js-plotly-plot')._transitionData._frames.length - 1")
    assert last > 1
    page.locator(".js-plotly-plot .updatemenu-button", has_text="play").click()
    until(page, "last => document.querySelector('.js-plotly-plot')._fullLayout.sliders[0].active < last", last)
    page.get_by_role("combobox", name="Figure or table").click()
    page.get_by_role("option", name="Tab 2 · ").click()
    page.wait_for_url("**exhibit=tab-2**")
    page.get_by_text("What would change the verdict").wait_for()
    page.get_by_role("button", name="Command").click()
    page.get_by_text("kvlab eval", exact=False).first.wait_for()


def test_a_row_of_the_list_opens_its_exhibit(visit: Callable[..., Any]):
    page = visit("atlas?comparison=papers&search=throughput+zsmerge")
    page.get_by_text("1 of 81 figures and tables").wait_for()
    page.locator(".st-key-atlas-csv").wait_for()
    settle(page, "[data-testid=stDataFrame] canvas")
    rows = page.locator("[data-testid=stDataFrame] canvas").first.bounding_box()
    page.mouse.click(rows["x"] + 18, rows["y"] + 52)
    page.wait_for_url("**exhibit=tab-1**")
    page.get_by_text("Tab 1 · Throughput by length").wait_for()


def test_a_page_of_the_atlas_is_one_file(visit: Callable[..., Any], address: str):
    page = visit("pyramid_pool?exhibit=fig-1&kv_batch=64")
    page.locator("p", has_text="batch 64").wait_for()
    with page.expect_download() as waiting:
        page.get_by_role("button", name="This page as one HTML file").click()
    written = Path(waiting.value.path()).read_text(encoding="utf-8")
    assert "Size of the uncompressed cache" in written
    assert "batch 64" in written
    assert 'src="http' not in written


def test_a_talk_is_presented_in_a_tab_of_its_own(visit: Callable[..., Any], served: Path):
    drawn = str(go.Figure(go.Scatter(y=[1, 2, 4])).to_json())
    views = tuple(View(page="sag", slide=Slide(title=title, figure=drawn)) for title in ("First", "Second"))
    save_story(served, Story(name="Talk", views=views))
    page = visit("story?story=Talk")
    with page.context.expect_page() as opened:
        page.get_by_role("button", name="Present").click()
    talk = opened.value
    talk.locator("#slide-0.shown .cartesianlayer .trace").wait_for()
    talk.keyboard.press("ArrowRight")
    talk.locator("#slide-1.shown .cartesianlayer .trace").wait_for()
    talk.close()


def test_a_theme_that_is_chosen_is_taken_at_once_and_kept_on_every_page(visit: Callable[..., Any], address: str):
    page = visit("compare?comparison=sample")
    ground = "getComputedStyle(document.querySelector('.stApp')).backgroundColor"
    ink = "document.querySelector('.js-plotly-plot')?._fullLayout?.font?.color"
    until(page, f"{ink} === '#1F2430'")
    try:
        page.evaluate("window.kept = 1")
        page.locator(".kv-theme [data-theme=Dark]").click()
        until(page, f"{ground} === 'rgb(18, 21, 28)'")
        until(page, f"{ink} && {ink} !== '#1F2430'")  # figures are drawn anew
        assert page.evaluate("window.kept") == 1, "nothing that was typed is lost"
        page.goto(f"{address}/runs")
        until(page, f"document.querySelector('.stApp') && {ground} === 'rgb(18, 21, 28)'")
        switch = page.locator(".kv-theme [aria-checked=true]")
        switch.wait_for()
        assert switch.get_attribute("data-theme") == "Dark"
        box = switch.bounding_box()
        for _ in range(100):  # the page may still be laid out
            if box and box["y"] < 100:
                break
            page.wait_for_timeout(200)
            box = switch.bounding_box()
        assert box and 0 < box["y"] < 100, "it stands beside the logo"
    finally:
        page.evaluate("localStorage.clear()")
