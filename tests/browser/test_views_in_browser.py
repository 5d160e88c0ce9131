"""The views in real Chromium: charts and text light each other, keys move steps and heads, a story is told."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kvlab.trace.stories import Story, save_story
from tests.browser.conftest import RUN
from tests.browser.received import Received
from tests.browser.settle import bring_into_view, settle, turn, until


def test_a_word_marks_the_chart_and_the_chart_lights_the_word(visit: Callable[..., Any]):
    page = visit(f"sag?run={RUN}&layer=1&head=0", height=1400)
    chart = page.locator(".js-plotly-plot[data-linked]").first
    chart.wait_for()
    word = page.locator(".kv-text-panel .t[data-p='62']")
    bring_into_view(page, ".kv-text-panel .t[data-p='62']")
    word.hover()
    page.wait_for_selector(".kv-token-mark", state="attached")
    bring_into_view(page, ".js-plotly-plot[data-linked]")
    box = chart.locator(".nsewdrag").first.bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + box["height"] * 0.5)
    page.mouse.move(box["x"] + box["width"] * 0.52, box["y"] + box["height"] * 0.55)
    page.wait_for_selector(".kv-text-panel .t.lit", state="attached")
    lit = int(page.locator(".kv-text-panel .t.lit").get_attribute("data-p"))
    assert 59 <= lit <= 65, "steps 0 to 6 are tokens 59 to 65"


def test_the_rest_of_a_page_follows_its_first_picture(visit: Callable[..., Any]):
    page = None
    for name, last in (
        ("merges", "Where it happened"),
        ("regret", "Budget and regret"),
        ("lineage", "Half-life"),
        ("sag", "The text at a step"),
        ("compare", "Generated texts"),
    ):
        if page is None:
            page = visit(f"{name}?run={RUN}", height=1400)
        else:
            turn(page, f"{name}?run={RUN}")
        page.locator("h2", has_text=last).wait_for()
        page.get_by_text("Drawing the rest").wait_for(state="detached")


def test_a_link_says_what_comes_after_the_first_picture_and_a_line_comes_forward(visit: Callable[..., Any]):
    page = visit("compare?comparison=some&bytes=allocated", height=1400)
    page.get_by_text("Bytes of the cache: allocated", exact=True).wait_for()
    settle(page, ".js-plotly-plot")
    assert "bytes=allocated" in page.url
    page.locator(".st-key-bytes").get_by_text("peak", exact=True).click()
    page.get_by_text("Bytes of the cache: peak", exact=True).wait_for()
    until(page, "location.search.includes('bytes=peak')")
    the_line_under_the_pointer_comes_forward_with_its_name(page)


def test_every_key_of_the_list_does_what_it_says(visit: Callable[..., Any]):
    page = visit(f"sag?run={RUN}&step=3&layer=0&head=0", height=1400)
    page.wait_for_selector(".kv-scrubber[data-step='3']")
    page.keyboard.press("ArrowRight")
    page.wait_for_url(re.compile("step=4"))
    page.wait_for_selector(".kv-scrubber[data-step='4']")
    page.locator("h1").click()  # a click beside everything gives the page itself the focus
    page.keyboard.press("ArrowLeft")
    page.wait_for_selector(".kv-scrubber[data-step='3']")
    page.keyboard.press("ArrowRight")
    page.wait_for_selector(".kv-scrubber[data-step='4']")
    page.keyboard.press("?")
    page.locator(".kv-keys dialog[open] dl").wait_for()
    assert "next head" in page.locator(".kv-keys dialog").inner_text()
    listed = page.locator(".kv-keys dialog dt").all_inner_texts()
    assert listed == ["← →", "Home, End", "n", "space", "j or ]", "k or [", "?"]
    page.keyboard.press("?")
    page.locator(".kv-keys dialog:not([open])").wait_for(state="attached")
    for key, step in (("ArrowLeft", 3), ("ArrowRight", 4), ("End", 6), ("Home", 0), ("n", 1)):
        page.keyboard.press(key)
        page.wait_for_selector(f".kv-scrubber[data-step='{step}']")
    page.keyboard.press("Space")
    page.wait_for_selector(".kv-scrubber[data-step='6']")
    # The step still follows the keys after the list was closed by its button.
    page.locator(".kv-keys button.open").click()
    page.locator(".kv-keys button.close").click()
    page.keyboard.press("ArrowLeft")
    page.wait_for_selector(".kv-scrubber[data-step='5']")
    for key, place in (("]", "0/1"), ("[", "0/0"), ("j", "0/1"), ("k", "0/0"), ("j", "0/1"), ("j", "1/0")):
        page.keyboard.press(key)
        until(page, "place => document.querySelector('.js-plotly-plot')?.layout?.meta?.place === place", place)
        layer, head = place.split("/")
        until(page, f"location.search.includes('layer={layer}') && location.search.includes('head={head}')")


def test_no_step_and_no_head_is_lost_that_is_pressed_while_another_is_drawn(visit: Callable[..., Any]):
    page = visit(f"sag?run={RUN}&step=0&layer=0&head=0", height=1400)
    page.wait_for_selector(".kv-scrubber[data-step='0']")
    for _ in range(4):
        page.keyboard.press("ArrowRight")
        page.wait_for_timeout(90)
    page.wait_for_selector(".kv-scrubber[data-step='4']")
    page.wait_for_url(re.compile("step=4"))
    for wait in (0, 40, 150):  # into each part of what a press starts
        for _ in range(3):
            page.keyboard.press("j")
            page.wait_for_timeout(wait)
    # Nine on, over two layers of two heads: two rounds and one.
    until(page, "document.querySelector('.js-plotly-plot')?.layout?.meta?.place === '0/1'")
    until(page, "/layer=0.*head=1|head=1.*layer=0/.test(location.search)")


def test_the_worst_head_is_one_click_away_and_the_rest_of_the_page_is_not_drawn_again(visit: Callable[..., Any]):
    page = visit("regret?run=some-h2o-25pc-0&layer=0&head=0&step=3", height=1400)
    came = Received(page)
    page.locator("h2", has_text="Budget and regret").wait_for()
    button = page.locator(".st-key-worst-head button")
    button.wait_for()
    layer, head = re.search(r"layer (\d+), head (\d+)", button.inner_text()).groups()
    settle(page, ".st-key-worst-head button")
    until(page, "!document.querySelector('[data-testid=stStatusWidget]')")
    top = b"is the share of a step's attention that would go to tokens already dropped"
    assert came.count(b"Budget and regret") and came.count(top)
    came.clear()
    button.click()
    page.get_by_text("This head misses the most at step 3").wait_for()
    page.locator("h2", has_text=f"Dropped tokens that layer {layer}, head {head} misses at step 3").wait_for()
    until(page, f"location.search.includes('layer={layer}') && location.search.includes('head={head}')")
    assert page.locator(".st-key-pick_head input").input_value() == head
    came.wait_for(f"Dropped tokens that layer {layer}, head {head} misses at step 3".encode())
    came.wait_for(b"Budget and regret")  # the maps outline the head in view
    assert not came.count(top), "what is of all heads stays as it was drawn"


def test_the_keys_of_the_similarity_map(visit: Callable[..., Any]):
    page = visit(f"similarity?run={RUN}", height=1400)
    page.wait_for_selector(".kv-map[data-window='0,66,0,66']")
    settle(page, ".kv-map canvas")
    for _ in range(30):  # a page that is still being drawn loses the key
        if page.locator(".kv-keys dialog[open]").count():
            break
        page.keyboard.press("?")
        page.wait_for_timeout(1000)
    page.locator(".kv-keys dialog[open] dt").first.wait_for()
    assert {"+ and -", "arrows", "0"} <= set(page.locator(".kv-keys dialog dt").all_inner_texts())
    page.keyboard.press("?")
    page.locator(".kv-map canvas").focus()
    for key, window in (
        ("+", "17,50,17,50"),
        ("ArrowRight", "17,50,21,54"),
        ("ArrowDown", "21,54,21,54"),
        ("0", "0,66,0,66"),
    ):
        page.keyboard.press(key)
        page.wait_for_selector(f".kv-map[data-window='{window}']")
    page.keyboard.press("+")
    page.wait_for_selector(".kv-map:not([data-window='0,66,0,66'])")
    page.keyboard.press("-")
    page.wait_for_selector(".kv-map[data-window='0,66,0,66']")


def test_words_are_chosen_in_the_text(visit: Callable[..., Any]):
    page = visit(f"autopsy?run={RUN}", height=1400)
    settle(page, ".kv-text-panel .t[data-p='9']")
    page.locator(".kv-text-panel .t[data-p='9']").click()
    page.wait_for_url(re.compile("span=9-9"))
    page.wait_for_selector(".kv-text-panel .t.chosen", state="attached")
    settle(page, ".kv-text-panel .t[data-p='12']")
    page.locator(".kv-text-panel .t[data-p='12']").click(modifiers=["Shift"])
    page.wait_for_url(re.compile("span=9-12"))
    page.get_by_text("What if they had been kept?").wait_for()


def test_a_story_leads_from_view_to_view(visit: Callable[..., Any]):
    page = visit("story?story=Two+views", height=1400)
    page.get_by_role("button", name="Walk through the pages").click()
    page.get_by_text("First, the sag.").wait_for()
    page.wait_for_url(re.compile(r"/sag\?.*head=1"))
    page.get_by_role("link", name="Next").click()
    page.get_by_text("Then <b>bytes</b>.").wait_for()
    page.wait_for_url(re.compile("/memory"))
    page.get_by_role("link", name="Previous").click()
    page.wait_for_url(re.compile(r"/sag\?.*head=1"))
    page.get_by_text("First, the sag.").wait_for()
    page.get_by_role("link", name="Stop").click()
    page.wait_for_url(lambda url: "telling" not in url and "head=1" in url)
    page.wait_for_selector(".kv-scrubber")
    assert not page.get_by_text("First, the sag.").count()


def test_a_view_of_a_story_keeps_nothing_of_the_view_before(visit: Callable[..., Any]):
    page = visit(f"memory?run={RUN}&telling=Two+views&place=2", height=1400)
    chosen = page.locator(".st-key-shape button[aria-checked=true]")
    first = chosen.inner_text()
    page.get_by_role("link", name="Next").click()
    page.get_by_text("As lines.").wait_for()
    until(
        page, "first => document.querySelector('.st-key-shape button[aria-checked=true]')?.innerText !== first", first
    )
    page.get_by_role("link", name="Next").click()
    page.get_by_text("As before.").wait_for()
    chosen.wait_for()
    assert chosen.inner_text() == first


def test_stories_live_beside_the_runs(tmp_path: Path):
    file = save_story(tmp_path, Story(name="A b!"))
    assert file == tmp_path / "stories" / "a-b.json"


def test_a_click_on_a_cell_of_the_board_opens_its_map_and_pales_nothing(visit: Callable[..., Any]):
    page = visit("compare?comparison=some", height=1400)
    word = page.locator(".kv-text").first.inner_text().split()[0]
    page.get_by_label("Expected answer").fill(word)
    page.get_by_role("button", name="Score the runs").click()
    page.get_by_text("Is the answer still right?", exact=True).wait_for()
    board = ".st-key-board-chart .js-plotly-plot"
    settle(page, board)
    chart = page.locator(board)
    words = chart.locator(".annotation-text")
    clear = [words.nth(index).evaluate("text => getComputedStyle(text).opacity") for index in range(words.count())]
    for method, index in (("keepkv", 1), ("h2o", 0)):
        settle(page, board)
        chart.scroll_into_view_if_needed()
        card = chart.locator(".barlayer .point path").nth(0).bounding_box()
        plot = chart.locator(".nsewdrag").first.bounding_box()
        page.mouse.click(card["x"] + 4, plot["y"] + plot["height"] * (0.25 + 0.5 * index))
        until(page, "name => location.search.includes(`cell=some-${name}`)", method)
        page.get_by_text(re.compile(f"{method}.*: fate of the fact's tokens by head")).first.wait_for()
    settle(page, board)
    after = [words.nth(index).evaluate("text => getComputedStyle(text).opacity") for index in range(words.count())]
    assert clear == after == ["1"] * len(clear)
    assert len(clear) == 6, "two runs, each with its verdict, bytes and KL"


def test_the_cache_wall_scrubs_zooms_selects_and_puts_a_head_into_focus(visit: Callable[..., Any]):
    page = visit(f"wall?run={RUN}&step=0&layer=0&head=0&panes=text", height=1400)
    page.wait_for_selector(".kv-wall[data-step='0']")
    totals = page.locator(".kv-wall").get_attribute("data-totals")
    page.keyboard.press("End")
    page.wait_for_selector(".kv-wall[data-step='6']")
    assert page.locator(".kv-wall").get_attribute("data-totals") != totals
    page.wait_for_url(re.compile("step=6"))
    page.get_by_text("After step 6, over all heads").wait_for()
    settle(page, ".kv-wall canvas")
    canvas = page.locator(".kv-wall canvas")
    box = canvas.bounding_box()
    right, low = box["x"] + 0.75 * box["width"], box["y"] + 0.75 * box["height"]  # layer 1, head 1
    page.mouse.move(right, low)
    page.locator(".kv-wall .detail", has_text="layer 1, KV head 1, token").wait_for()
    page.mouse.click(right, low)
    page.wait_for_url(re.compile("layer=1"))
    until(page, "/head=1/.test(location.search) && /token=/.test(location.search)")
    page.locator(".kv-text-panel .t").first.wait_for()
    settle(page, ".kv-wall canvas")
    box = canvas.bounding_box()
    page.keyboard.down("Shift")
    page.mouse.move(box["x"] + 45, box["y"] + 30)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] - 10, box["y"] + 60, steps=4)
    page.mouse.up()
    page.keyboard.up("Shift")
    page.locator(".kv-wall .detail", has_text="2 selected heads:").wait_for()
    canvas.focus()
    page.keyboard.press("f")  # the head in focus fills the wall: every point of it is of that head
    page.mouse.move(box["x"] + 0.3 * box["width"], box["y"] + 0.4 * box["height"])
    page.locator(".kv-wall .detail", has_text="layer 1, KV head 1").wait_for()


def test_a_link_to_the_former_page_of_two_runs_opens_their_difference(visit: Callable[..., Any]):
    page = visit("difference?comparison=some&a=some-h2o-25pc-0&b=some-keepkv-25pc-0&step=3", height=1400)
    page.wait_for_selector(".kv-wall[data-step='3']")
    page.wait_for_url(re.compile("/two_runs"))
    page.get_by_text("only in keepkv").first.wait_for()
    page.get_by_text("A and B diverge").wait_for()


def the_line_under_the_pointer_comes_forward_with_its_name(page: Any) -> None:
    """On the page Compare, which draws its three runs over the steps."""
    place = ".st-key-compare-memory .js-plotly-plot"
    until(page, f"document.querySelectorAll({place!r}).length === 1")  # the one before it leaves when this one is there
    chart = page.locator(place)
    bring_into_view(page, place)
    lines = chart.locator(".scatterlayer .trace")
    assert lines.count() == chart.locator(".annotation").count() == 3
    opacities = f"kind => [...document.querySelectorAll('{place} ' + kind)].map(node => node.style.opacity)"
    mark = lines.first.locator(".points path").first.bounding_box()
    page.mouse.move(mark["x"] + 40, mark["y"] + 40)
    page.mouse.move(mark["x"] + mark["width"] / 2, mark["y"] + mark["height"] / 2, steps=4)
    for kind in (".scatterlayer .trace", ".annotation"):
        until(page, f"kind => ({opacities})(kind).join() === ',0.2,0.2'", kind)
    page.mouse.move(2, 2)
    until(page, f"kind => ({opacities})(kind).join() === ',,'", ".annotation")


def test_the_budget_is_dragged_and_the_board_the_charts_and_the_link_follow(visit: Callable[..., Any]):
    page = visit("compare?comparison=budgets", height=1400)
    slider = page.locator(".st-key-budget input")
    slider.wait_for(state="attached")
    names = page.locator(".st-key-compare-memory .annotation-text")
    page.get_by_text("This page as one HTML file").wait_for()
    assert names.all_text_contents() == ["full", "keepkv 25 %", "keepkv 50 %"]
    slider.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    until(page, "new URLSearchParams(location.search).get('budget') === '50 %'")
    until(page, "document.querySelectorAll('.st-key-compare-memory .annotation-text').length === 2")
    assert names.all_text_contents() == ["full", "keepkv"]
    link = visit(page.url.split("/", 3)[3], height=1400)
    until(link, "document.querySelectorAll('.st-key-compare-memory .annotation-text').length === 2")
