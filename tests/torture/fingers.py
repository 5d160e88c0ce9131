"""Fast fingers: random keys, clicks, lists and sliders on page after page, and what breaks of it in the browser."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import cycle
from pathlib import Path
from typing import Any

from tests.dashboard_speed.server import Dashboard, chromium_at_home
from tests.synthetic.runs import write_synthetic_run
from tests.torture.browsers import BOX, ENTRIES, LINK, PAGES
from tests.torture.table import Row

KEYS = ("j", "k", "]", "[", "ArrowLeft", "ArrowRight", "Home", "End", "n", " ", "?", "Escape")
CLICKED = "button, summary, [role=tab], [role=radio], label:has(input[type=checkbox])"
LISTS = '[data-testid="stSelectbox"] [data-baseweb="select"]'
SLIDERS = "[role=slider], input[type=range]"
LEFT_ALONE = ("delete", "download", "print", "copy")  # what would take the runs away, or open windows of the system's
AT_ONCE = (1, 1, 3, 7)  # presses of one key
PAUSES_MS = (0, 30, 80, 150, 250, 400, 700)
A_PAGE = (8, 24)  # things done before the page is looked at
CLICK_MS, REST_SECONDS = 1500, 60.0
APP = "document.querySelector('[data-testid=\"stApp\"]')?.dataset"
Act = Callable[[Any, random.Random], str]  # does one thing to a page, and says what
CALM = 4  # looks in a row, a tenth of a second apart, that find no script running


def fingers(root: Path, minutes: float, seed: int = 0) -> Row:
    """The row of one browser that is never left in peace; seconds are those until a page came to rest."""
    chance = random.Random(seed)
    for name in "ab":
        for method in ("full", "h2o", "keepkv"):
            write_synthetic_run(root, method=method, comparison_id=name)
    row = Row(f"fast fingers in Chromium, {minutes:g} min: keys, clicks, lists, sliders")
    until, doubtful = time.monotonic() + 60 * minutes, 0
    with Dashboard(root) as dashboard, chromium_at_home(1280, 1000) as browser:
        for name in cycle(PAGES):
            if time.monotonic() > until:
                break
            doubtful += not _page(browser, dashboard.address, name, chance, row)
    row.exceptions = len(row.faults)
    row.note = f"seed {seed}; {doubtful} pages whose last script did not end in {REST_SECONDS:g} s" if doubtful else ""
    return row


def _page(browser: Any, address: str, name: str, chance: random.Random, row: Row) -> bool:
    """Open a page, do things, and put into the row what broke; whether it came to rest."""
    page = browser.new_page()
    broken = listen(page)
    page.goto(f"{address}/{name}")
    rests(page)
    done = [name, *play(page, chance, chance.randint(*A_PAGE))]
    row.attempts += len(done)
    begun = time.monotonic()
    page.keyboard.press("Escape")
    rested = rests(page)
    row.seconds.append(time.monotonic() - begun)
    broken += seen_on(page)
    page.close()
    row.faults += [f"{' '.join(fault.split())} after {', '.join(done)}" for fault in broken]
    return rested


def listen(page: Any) -> list[str]:
    """What breaks on the page from now on, which the list is filled with: scripts, the connection, the server."""
    broken = list[str]()
    page.on("pageerror", lambda error: broken.append(f"script: {error}"))
    page.on("console", lambda said: broken.append(said.text) if "Client Error" in said.text else None)
    page.on("response", lambda answer: broken.append(f"{answer.status} {answer.url}") if answer.status >= 500 else None)
    return broken


def play(page: Any, chance: random.Random, times: int, acts: Mapping[Act, float] | None = None) -> list[str]:
    """Do so many things to the page, each as often as its weight says, and return those that could be done."""
    done, acts = list[str](), acts or ACTS
    for what in chance.choices(list(acts), list(acts.values()), k=times):
        with suppress(_error()):  # what was chosen is covered, or gone meanwhile
            try:
                done.append(what(page, chance))
            except Nothing as none:
                done.append(str(none))
        page.wait_for_timeout(chance.choice(PAUSES_MS))
    return done


def seen_on(page: Any) -> list[str]:
    """What is broken on the page as it is."""
    found = [f"box: {box.inner_text()}" for box in page.query_selector_all(BOX)]
    state = page.evaluate(f"{APP}.testConnectionState")
    return found if state == "CONNECTED" else [*found, f"the page has lost its server: {state}"]


def rests(page: Any) -> bool:
    """Whether the page came to rest in time."""
    calm, until = 0, time.monotonic() + REST_SECONDS
    while calm < CALM and time.monotonic() < until:
        calm = calm + 1 if page.evaluate(f"{APP}?.testScriptState") == "notRunning" else 0
        page.wait_for_timeout(100)
    return calm == CALM


def _error() -> type[Exception]:
    from playwright.sync_api import Error

    return Error  # a timeout is one, and so is an element that is no longer in the page


def press(page: Any, chance: random.Random) -> str:
    key, times = chance.choice(KEYS), chance.choice(AT_ONCE)
    for _ in range(times):
        page.keyboard.press(key)
        page.wait_for_timeout(chance.choice(PAUSES_MS[:4]))
    return f"{times} x {key}"


class Nothing(Exception):
    """The page has none of what was to be acted on."""


def _one(page: Any, chance: random.Random, what: str, name: str) -> Any:
    if not (found := _seen(page, what)):
        raise Nothing(f"no {name}")
    return chance.choice(found)


def _seen(page: Any, what: str) -> list[Any]:
    return [found for found in page.query_selector_all(what) if found.is_visible()]


def _words(found: Any) -> str:
    words = found.inner_text() or found.get_attribute("title") or found.get_attribute("aria-label") or ""
    return " ".join(words.split())[:40]


def click(page: Any, chance: random.Random) -> str:
    named = [(found, _words(found)) for found in _seen(page, CLICKED)]
    allowed = [(found, words) for found, words in named if not any(word in words.lower() for word in LEFT_ALONE)]
    if not allowed:
        raise Nothing("nothing to click")
    found, words = chance.choice(allowed)
    found.click(timeout=CLICK_MS)
    return f"click {words!r}"


def choose(page: Any, chance: random.Random) -> str:
    _one(page, chance, LISTS, "list").click(timeout=CLICK_MS)
    page.wait_for_timeout(150)
    options = _seen(page, "[role=option]")
    if not options:
        page.keyboard.press("Escape")
        return "an empty list"
    option = chance.choice(options)
    words = _words(option)
    option.click(timeout=CLICK_MS)
    return f"choose {words!r}"


def slide(page: Any, chance: random.Random) -> str:
    _one(page, chance, SLIDERS, "slider").focus()
    keys = [chance.choice(("ArrowRight", "ArrowLeft", "Home", "End")) for _ in range(chance.choice((1, 3, 9)))]
    for key in keys:
        page.keyboard.press(key)
    page.evaluate("document.activeElement.blur()")
    return f"slide {' '.join(keys)}"


def go(page: Any, chance: random.Random) -> str:
    name = chance.choice(ENTRIES)
    page.click(LINK.format(name), timeout=CLICK_MS)
    return f"to {name}"


def point(page: Any, chance: random.Random) -> str:
    box = _one(page, chance, ".js-plotly-plot", "figure").bounding_box()
    page.mouse.click(box["x"] + box["width"] * chance.random(), box["y"] + box["height"] * chance.random())
    return "a point of a figure"


ACTS: dict[Act, float] = {press: 6, click: 6, choose: 2, slide: 2, go: 1, point: 2}
