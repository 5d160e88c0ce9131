"""Of mode `pages`: on an open page, milliseconds from a key or a choice to the picture of what was asked for.

`Mark`s name what one looks at: expressions of the browser, whose value is another one once the new picture is drawn.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

SETTLE_SECONDS = 0.6
# Components live in shadow trees, which a query of the document does not enter.
IN_COMPONENT = (
    "[...document.querySelectorAll('div')].map((node) => node.shadowRoot?.querySelector('%s')).find(Boolean)?.%s"
)
CHART = "document.querySelector('.st-key-%s .js-plotly-plot')?.data"  # another object with each figure that is drawn
STRIP = IN_COMPONENT % (".kv-strip", "dataset.identity")
KEYS = IN_COMPONENT % (".kv-keys", "isConnected")  # from then on a key is heard
MAP = IN_COMPONENT % (".kv-map", "dataset.identity")
TEXT = IN_COMPONENT % (".kv-text-panel [data-part=legend]", "firstChild")


@dataclass(frozen=True)
class Mark:
    """What is another picture for another head or layer of a page, and for another step; "" where neither is asked."""

    place: str
    step: str
    asked: str = ""


# `similarity` shows no step. A step moves within what the strip of `timeline` has; all others ask the server for it.
MARKS = {
    "timeline": Mark(STRIP, IN_COMPONENT % (".kv-strip", "dataset.step")),
    "similarity": Mark(MAP, ""),
    "merges": Mark(CHART % "merges-alike", "", "&scope=one+head"),
    "sag": Mark("document.querySelector('.js-plotly-plot')?.layout?.meta?.place", TEXT),
    "regret": Mark(TEXT, CHART % "regret-map"),
    "lineage": Mark(CHART % "lineage-river", TEXT),
    "wall": Mark(TEXT, IN_COMPONENT % (".kv-wall", "dataset.step")),
    "autopsy": Mark(TEXT, ""),
    "memory": Mark("", CHART % "memory-layers"),
}


def changes(visit: Callable[[str], Any], name: str, layers: int, repeats: int) -> Iterator[tuple[str, list[float]]]:
    """Figures and milliseconds of changes on a page, which `visit` opens given what its address says beyond the run.

    The first change of each kind is not counted: the page may still be busy with having been opened.
    """
    mark = MARKS[name]
    page = visit("&layer=0&head=0" + mark.asked)
    for known in filter(None, (mark.place, mark.step, KEYS)):
        page.wait_for_function(known)
    if mark.step:
        page.keyboard.press("Home")
        time.sleep(2 * SETTLE_SECONDS)
        yield f"change of step, {name}", [_step(page, mark.step) for _ in range(repeats + 1)][1:]
    if mark.place:
        yield f"change of head, {name}", [_turn(page, mark.place) for _ in range(repeats + 1)][1:]
    page.close()
    if mark.place and layers > 1:
        page = visit("&layer=0&head=0" + mark.asked)  # the keys may have turned into another layer
        page.wait_for_function(mark.place)
        places = [place % layers for place in range(1, repeats + 2)]
        yield f"change of layer, {name}", [_layer(page, mark.place, place) for place in places][1:]
        page.close()


def until_changed(page: Any, mark: str, act: Callable[[], None]) -> float:
    """Measured in the browser's own clock, looked at with every frame."""
    page.evaluate(f"() => {{ window.kvBefore = {mark}; window.kvBegun = performance.now(); }}")
    act()
    changed = f"() => {{ const now = {mark}; return now && now !== window.kvBefore && performance.now() - kvBegun; }}"
    taken = float(page.wait_for_function(changed, polling="raf").json_value())
    time.sleep(SETTLE_SECONDS)
    return taken


def _turn(page: Any, mark: str) -> float:
    """From the key to the picture of the next head."""
    return until_changed(page, mark, lambda: page.keyboard.press("j"))


def _step(page: Any, mark: str) -> float:
    """From the key to the picture of the next step."""
    return until_changed(page, mark, lambda: page.keyboard.press("ArrowRight"))


def _layer(page: Any, mark: str, layer: int) -> float:
    """From the choice to the picture of a layer that was not read before."""
    page.locator("[class*='st-key-pick_layer'] input").fill(str(layer))
    time.sleep(SETTLE_SECONDS)  # the list that opens is not part of the choice
    taken = until_changed(page, mark, lambda: page.keyboard.press("Enter"))
    page.locator("h1").first.click()
    return taken
