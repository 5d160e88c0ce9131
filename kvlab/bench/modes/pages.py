"""Mode `pages`: how quick the dashboard is on a large run, in real Chromium, and what memory its web process takes.

The run is synthetic and as large as a real one: 32 layers x 8 KV heads, 32,768 tokens, about a million events.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import psutil

from kvlab.bench.clock import spread
from kvlab.bench.modes.pages_clock import Sight, first_picture
from kvlab.bench.modes.pages_kept import KEPT_RUNS, kept_pictures, write_kept
from kvlab.bench.modes.pages_plain import Room, plain_chromium
from kvlab.bench.modes.pages_server import Dashboard, chromium_at_home
from kvlab.bench.request import BenchRequest
from kvlab.bench.rows import Row
from kvlab.library.shelf import read_all
from kvlab.trace.large import LARGE_RUNS, write_large_runs

SETTLE_SECONDS = 0.6
WIDTH, HEIGHT = 1280, 1000
BLANK = "import streamlit as st\n\nst.title('blank')\n"
# Page, and what is there once its first picture is: an attribute of a component, or a plot that is drawn.
PICTURES = {
    "timeline": ".kv-strip[data-step] .t",
    "similarity": ".kv-map[data-window]",
    "merges": ".js-plotly-plot .main-svg",
    "sag": ".js-plotly-plot .main-svg",
    "regret": ".js-plotly-plot .main-svg",
    "lineage": ".js-plotly-plot .main-svg",
}
# Components live in shadow trees, which a query of the document does not enter.
IN_COMPONENT = (
    "[...document.querySelectorAll('div')]"
    ".map((node) => node.shadowRoot?.querySelector('%s')).find(Boolean)?.dataset.%s"
)
TARGETS = {
    "first picture": 2000.0,
    "change of head": 500.0,
    "change of layer": 500.0,
    "zoom": 350.0,
    "search": 300.0,
    "memory": 1e9,
}


def measure(request: BenchRequest) -> Iterator[Row]:
    """Rows of first pictures, changes of head and layer, zooms, and the web process's memory with three runs open."""
    tokens, layers = request.shortened(request.contexts[0]), max(1, 32 // request.scale)
    known = Row(mode="pages", figure="", model="synthetic", method="", batch=1, context=tokens, unit="ms")
    with ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kvlab-bench-")))
        begun = time.perf_counter()
        runs = write_large_runs(root, layers=layers, tokens=tokens, count=request.repeats + LARGE_RUNS)
        written = sum(file.stat().st_size for file in (root / runs[0]).rglob("*") if file.is_file())
        yield replace(known, figure="writing one run", unit="s", repeats=1, median=time.perf_counter() - begun, iqr=0.0)
        yield replace(known, figure="size of one run", unit="bytes", repeats=1, median=float(written), iqr=0.0)
        (root / "blank.py").write_text(BLANK)
        blank = stack.enter_context(Dashboard(root, root / "blank.py"))
        dashboard = stack.enter_context(Dashboard(root))
        plain = stack.enter_context(plain_chromium(WIDTH, HEIGHT))
        fresh = _never_here(plain, dashboard, runs, request.repeats)
        pictures = _first_pictures(plain, dashboard, blank, runs, layers, request.repeats)
        browser = stack.enter_context(chromium_at_home(WIDTH, HEIGHT))
        changes = _changes(browser, dashboard, runs, layers, request.repeats)
        for figure, taken, note in chain([fresh], pictures, changes):
            measured = spread(taken)
            row = replace(known, figure=figure, repeats=measured.repeats, median=measured.median, iqr=measured.iqr)
            yield replace(row, note="; ".join(filter(None, (_verdict(figure, measured.median), note))))
        for name in PICTURES:
            for run in runs[:LARGE_RUNS]:
                _open(browser, dashboard, name, run).close()
        used = float(dashboard.memory())
        yield from _kept(known, plain, browser, max(50, KEPT_RUNS // request.scale), request.repeats)
        figure = f"memory with {LARGE_RUNS} runs open"
        yield replace(
            known, figure=figure, unit="bytes", repeats=1, median=used, iqr=0.0, note=_verdict("memory", used)
        )


def _kept(known: Row, plain: Room, browser: Any, count: int, repeats: int) -> Iterator[Row]:
    """The page Runs, in a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="kvlab-bench-") as folder:
        write_kept(Path(folder), count)
        read_all(Path(folder))
        with Dashboard(Path(folder)) as dashboard:
            for figure, taken, note in kept_pictures(plain, browser, dashboard, count, repeats):
                found = spread(taken)
                row = replace(
                    known, figure=figure, repeats=found.repeats, median=found.median, iqr=found.iqr, context=0
                )
                yield replace(row, note=f"{_verdict(figure, found.median)}; {note}")


def _never_here(plain: Room, dashboard: Dashboard, runs: list[str], repeats: int) -> tuple[str, list[float], str]:
    server, picture = psutil.Process(dashboard.process.pid), PICTURES["timeline"]
    # The server's own imports are not the page's.
    first_picture(plain.never_here(), f"{dashboard.address}/timeline?run={runs[-1]}", picture, server)
    taken = [
        first_picture(plain.never_here(), f"{dashboard.address}/timeline?run={run}", picture, server).wall
        for run in runs[:repeats]
    ]
    return "timeline in a browser that was never here", taken, ""


def _first_pictures(
    browser: Room, dashboard: Dashboard, blank: Dashboard, runs: list[str], layers: int, repeats: int
) -> Iterator[tuple[str, list[float], str]]:
    """Figures, milliseconds and notes; each page takes turns with a blank one, on layers the server never read."""
    server, bare = psutil.Process(dashboard.process.pid), psutil.Process(blank.process.pid)
    empty = []
    for turn, name in enumerate(PICTURES):
        address = f"{dashboard.address}/{name}?run={{}}".format
        first_picture(browser, address(runs[-1]), PICTURES[name], server)
        pairs = []
        for run in runs[turn % 2 : turn % 2 + repeats]:
            nothing = first_picture(browser, blank.address, "h1", bare)
            pairs.append(
                (first_picture(browser, f"{address(run)}&layer={turn % layers}", PICTURES[name], server), nothing)
            )
        empty += [nothing for _, nothing in pairs]
        yield f"first picture, {name}", [sight.wall for sight, _ in pairs], _costs(pairs)
    yield "a blank Streamlit page", [nothing.wall for nothing in empty], _load()


def _costs(pairs: list[tuple[Sight, Sight]]) -> str:
    """How much longer than a blank page, and processor time until the picture: wall time alone tells of the machine."""
    ratio = statistics.median(sight.wall / nothing.wall for sight, nothing in pairs)
    server, browser = (statistics.median(getattr(sight, of) for sight, _ in pairs) for of in ("server", "browser"))
    bare = statistics.median(nothing.browser for _, nothing in pairs)
    return f"{ratio:.2f} x a blank page; CPU {server:,.0f} ms server, {browser:,.0f} ms browser (blank {bare:,.0f})"


def _load() -> str:
    return f"{psutil.getloadavg()[0]:.1f} processes at work on {psutil.cpu_count()} cores"


def _changes(
    browser: Any, dashboard: Dashboard, runs: list[str], layers: int, repeats: int
) -> Iterator[tuple[str, list[float], str]]:
    """Milliseconds from a key or a choice to its picture, on an open page."""
    for name, run in zip(("timeline", "similarity", "sag"), runs, strict=False):
        page = _open(browser, dashboard, name, run)
        yield f"change of head, {name}", [_turn(page, name, "j") for _ in range(repeats + 1)][1:], _load()
        if layers > 1:
            places = [1 + place % (layers - 1) for place in range(repeats)]
            yield f"change of layer, {name}", [_layer(page, name, place) for place in places], _load()
        page.close()
    page = _open(browser, dashboard, "similarity", runs[0])
    zooms = [_zoom(page, act) for _ in range(repeats) for act in ("in", "in", "out", "whole")]
    yield "zoom of the similarity map", zooms, _load()
    page.close()


def _open(browser: Any, dashboard: Dashboard, name: str, run: str) -> Any:
    page = browser.new_page()
    page.set_default_timeout(60_000)
    page.goto(f"{dashboard.address}/{name}?run={run}")
    page.wait_for_selector(PICTURES[name], state="attached")
    page.wait_for_function("!document.querySelector('[data-testid=stStatusWidget]')")
    time.sleep(SETTLE_SECONDS)
    return page


def _mark(name: str) -> str:
    """What names the head a page shows, once its picture is there."""
    return {
        "timeline": IN_COMPONENT % (".kv-strip", "identity"),
        "similarity": IN_COMPONENT % (".kv-map", "identity"),
        "sag": "document.querySelector('.js-plotly-plot').layout.meta.place",
    }[name]


def _turn(page: Any, name: str, key: str) -> float:
    """From the key to the picture of the next head."""
    return _until_changed(page, _mark(name), lambda: page.keyboard.press(key))


def _layer(page: Any, name: str, layer: int) -> float:
    """From the choice to the picture of a layer that was not read before."""
    page.locator("[class*='st-key-pick_layer'] input").fill(str(layer))
    taken = _until_changed(page, _mark(name), lambda: page.keyboard.press("Enter"))
    page.locator("h1").first.click()
    return taken


def _zoom(page: Any, act: str) -> float:
    """From the button to the sharp tile."""
    mark = IN_COMPONENT % (".kv-map", "window")
    return _until_changed(page, mark, lambda: page.click(f".kv-map [data-act={act}]"))


def _until_changed(page: Any, mark: str, act: Callable[[], None]) -> float:
    """Measured in the browser's own clock, looked at with every frame."""
    before = page.evaluate(mark)
    page.evaluate(f"window.kvBefore = {before!r}, window.kvBegun = performance.now()")
    act()
    done = page.wait_for_function(f"{mark} !== window.kvBefore && performance.now() - window.kvBegun", polling="raf")
    taken = float(done.json_value())
    time.sleep(SETTLE_SECONDS)
    return taken


def _verdict(figure: str, value: float) -> str:
    target = next((limit for name, limit in TARGETS.items() if name in figure), None)
    if target is None:
        return "no target"
    shown = f"{target / 1e9:g} GB" if target >= 1e9 else f"{target:,.0f} ms"
    return f"{'within' if value <= target else 'above'} {shown}"
