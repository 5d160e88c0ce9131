"""Mode `pages`: how quick the dashboard is on a large run, in real Chromium, and what memory its web process takes.

The run is synthetic and as large as a real one: 32 layers x 8 KV heads, 32,768 tokens, about a million events.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from kvlab.bench.clock import spread
from kvlab.bench.modes.pages_server import Dashboard, chromium
from kvlab.bench.request import BenchRequest
from kvlab.bench.rows import Row
from kvlab.trace.large import LARGE_RUNS, write_large_runs

SETTLE_SECONDS = 0.6
# Page, and what is there once its first picture is: an attribute of a component, or a plot that is drawn.
PICTURES = {
    "timeline": ".kv-strip[data-step] .t >> nth=0",
    "similarity": ".kv-map[data-window]",
    "merges": ".js-plotly-plot .main-svg >> nth=0",
    "sag": ".js-plotly-plot .main-svg >> nth=0",
    "regret": ".js-plotly-plot .main-svg >> nth=0",
    "lineage": ".js-plotly-plot .main-svg >> nth=0",
}
# Components live in shadow trees, which a query of the document does not enter.
IN_COMPONENT = (
    "[...document.querySelectorAll('div')]"
    ".map((node) => node.shadowRoot?.querySelector('%s')).find(Boolean)?.dataset.%s"
)
TARGETS = {"first picture": 2000.0, "change of head": 500.0, "change of layer": 500.0, "zoom": 350.0, "memory": 1e9}


def measure(request: BenchRequest) -> Iterator[Row]:
    """Rows of first pictures, changes of head and layer, zooms, and the web process's memory with three runs open."""
    tokens, layers = request.shortened(request.contexts[0]), max(1, 32 // request.scale)
    known = Row(mode="pages", figure="", model="synthetic", method="", batch=1, context=tokens, unit="ms")
    with ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kvlab-bench-")))
        begun = time.perf_counter()
        runs = write_large_runs(root, layers=layers, tokens=tokens)
        written = sum(file.stat().st_size for file in (root / runs[0]).rglob("*") if file.is_file())
        yield replace(known, figure="writing one run", unit="s", repeats=1, median=time.perf_counter() - begun, iqr=0.0)
        yield replace(known, figure="size of one run", unit="bytes", repeats=1, median=float(written), iqr=0.0)
        dashboard, browser = stack.enter_context(Dashboard(root)), stack.enter_context(chromium())
        for figure, seconds in _timings(browser, dashboard, runs, request.repeats):
            measured = spread([1000 * second for second in seconds])
            row = replace(known, figure=figure, repeats=measured.repeats, median=measured.median, iqr=measured.iqr)
            yield replace(row, note=_verdict(figure, measured.median))
        for name in PICTURES:
            for run in runs:
                _open(browser, dashboard, name, run).context.close()
        used = float(dashboard.memory())
        figure = f"memory with {LARGE_RUNS} runs open"
        yield replace(
            known, figure=figure, unit="bytes", repeats=1, median=used, iqr=0.0, note=_verdict("memory", used)
        )


def _timings(browser: Any, dashboard: Dashboard, runs: list[str], repeats: int) -> Iterator[tuple[str, list[float]]]:
    _open(browser, dashboard, "timeline", runs[0]).context.close()  # the server's own imports are not the page's
    fresh = [_first_picture(_context(browser), dashboard, "timeline", runs[0]) for _ in range(repeats)]
    yield "timeline in a browser that was never here", fresh
    known = _context(browser)  # as most people's: it has the dashboard's own files
    for name in PICTURES:
        _first_picture(known, dashboard, name, runs[-1])
        yield f"first picture, {name}", [_first_picture(known, dashboard, name, runs[0]) for _ in range(repeats)]
    for name in ("timeline", "similarity", "sag"):
        page = _open(browser, dashboard, name, runs[0])
        yield f"change of head, {name}", [_turn(page, name, "j") for _ in range(repeats + 1)][1:]
        page.context.close()
    page = _open(browser, dashboard, "similarity", runs[0])
    zooms = [_zoom(page, act) for _ in range(repeats) for act in ("in", "in", "out", "whole")]
    yield "zoom of the similarity map", zooms
    page.context.close()


def _open(browser: Any, dashboard: Dashboard, name: str, run: str) -> Any:
    page = _context(browser).new_page()
    page.set_default_timeout(60_000)
    page.goto(f"{dashboard.address}/{name}?run={run}")
    page.wait_for_selector(PICTURES[name], state="attached")
    page.wait_for_function("!document.querySelector('[data-testid=stStatusWidget]')")
    time.sleep(SETTLE_SECONDS)
    return page


def _context(browser: Any) -> Any:
    return browser.new_context(viewport={"width": 1280, "height": 1000})


def _first_picture(context: Any, dashboard: Dashboard, name: str, run: str) -> float:
    page = context.new_page()
    page.set_default_timeout(60_000)
    begun = time.perf_counter()
    page.goto(f"{dashboard.address}/{name}?run={run}", wait_until="commit")
    page.wait_for_selector(PICTURES[name], state="attached")
    seconds = time.perf_counter() - begun
    page.close()
    return seconds


def _turn(page: Any, name: str, key: str) -> float:
    """From the key to the picture of the next head."""
    mark = {
        "timeline": IN_COMPONENT % (".kv-strip", "identity"),
        "similarity": IN_COMPONENT % (".kv-map", "identity"),
        "sag": "document.querySelector('.js-plotly-plot').layout.meta.place",
    }[name]
    return _until_changed(page, mark, lambda: page.keyboard.press(key))


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
    seconds = float(done.json_value()) / 1000
    time.sleep(SETTLE_SECONDS)
    return seconds


def _verdict(figure: str, value: float) -> str:
    target = next((limit for name, limit in TARGETS.items() if name in figure), None)
    if target is None:
        return "no target: loads the dashboard's files too"
    shown = f"{target / 1e9:g} GB" if target >= 1e9 else f"{target:,.0f} ms"
    return f"{'within' if value <= target else 'above'} {shown}"
