"""Time the dashboard's pages on a large synthetic run in real Chromium, and read the memory of its web process.

Run as `python -m tests.dashboard_speed`.

The run is synthetic and as large as a real one: 32 layers x 8 KV heads, 32,768 tokens, about a million events.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import psutil

from kvlab.bench.device import spread
from kvlab.bench.rows import Row
from kvlab.library.find import list_all
from tests.dashboard_speed.changes import IN_COMPONENT, MARKS, SETTLE_SECONDS, changes, until_changed
from tests.dashboard_speed.clock import Sight, first_picture
from tests.dashboard_speed.kept import KEPT_RUNS, kept_pictures, write_kept
from tests.dashboard_speed.plain import Room, plain_chromium
from tests.dashboard_speed.server import Dashboard, chromium_at_home
from tests.synthetic.large import LARGE_RUNS, write_large_runs

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
    "wall": ".kv-wall[data-step]",
    "memory": ".js-plotly-plot .main-svg",
    "heads": ".js-plotly-plot .main-svg",
    "autopsy": ".kv-text-panel .t",
    "compare": ".js-plotly-plot .main-svg",
}
WINDOW = IN_COMPONENT % (".kv-map", "dataset.window")
TARGETS = {
    "first picture": 2000.0,
    "change of head": 350.0,
    "change of layer": 350.0,
    "change of step": 350.0,
    "zoom": 350.0,
    "search": 300.0,
    "memory": 1e9,
}


def measure(tokens: int, layers: int, repeats: int, stored_runs: int = KEPT_RUNS) -> Iterator[Row]:
    """Rows of first pictures, changes of head, layer and step, zooms, and the server's memory with three runs open."""
    known = Row(mode="pages", figure="", model="synthetic", method="", batch=1, context=tokens, unit="ms")
    with ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kvlab-bench-")))
        begun = time.perf_counter()
        runs = write_large_runs(root, layers=layers, tokens=tokens, count=repeats + LARGE_RUNS)
        written = sum(file.stat().st_size for file in (root / runs[0]).rglob("*") if file.is_file())
        yield replace(known, figure="writing one run", unit="s", repeats=1, median=time.perf_counter() - begun, iqr=0.0)
        yield replace(known, figure="size of one run", unit="bytes", repeats=1, median=float(written), iqr=0.0)
        (root / "blank.py").write_text(BLANK)
        blank = stack.enter_context(Dashboard(root, root / "blank.py"))
        dashboard = stack.enter_context(Dashboard(root))
        plain = stack.enter_context(plain_chromium(WIDTH, HEIGHT))
        fresh = _never_here(plain, dashboard, runs, layers, repeats)
        pictures = _first_pictures(plain, dashboard, blank, runs, layers, repeats)
        browser = stack.enter_context(chromium_at_home(WIDTH, HEIGHT, bypass_csp=True))
        turned = _changes(browser, dashboard, runs, layers, repeats)
        for figure, taken, note in chain(fresh, pictures, turned):
            measured = spread(taken)
            row = replace(known, figure=figure, repeats=measured.repeats, median=measured.median, iqr=measured.iqr)
            yield replace(row, note="; ".join(filter(None, (_verdict(figure, measured.median), note))))
        for name in PICTURES:
            for run in runs[:LARGE_RUNS]:
                _open(browser, dashboard, name, run).close()
        used = float(dashboard.memory())
        yield from _kept(known, plain, browser, stored_runs, repeats)
        figure = f"memory with {LARGE_RUNS} runs open"
        yield replace(
            known, figure=figure, unit="bytes", repeats=1, median=used, iqr=0.0, note=_verdict("memory", used)
        )


def _kept(known: Row, plain: Room, browser: Any, count: int, repeats: int) -> Iterator[Row]:
    """The page Runs, in a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="kvlab-bench-") as folder:
        write_kept(Path(folder), count)
        list_all(Path(folder)).read(float("inf"))
        with Dashboard(Path(folder)) as dashboard:
            for figure, taken, note in kept_pictures(plain, browser, dashboard, count, repeats):
                found = spread(taken)
                row = replace(
                    known, figure=figure, repeats=found.repeats, median=found.median, iqr=found.iqr, context=0
                )
                yield replace(row, note=f"{_verdict(figure, found.median)}; {note}")


def _never_here(
    plain: Room, dashboard: Dashboard, runs: list[str], layers: int, repeats: int
) -> Iterator[tuple[str, list[float], str]]:
    """Figures, milliseconds and notes of a browser that has nothing, on layers the server never read."""
    server = psutil.Process(dashboard.process.pid)
    for turn, (name, picture) in enumerate(PICTURES.items(), start=layers // 2):
        address = f"{dashboard.address}/{name}?run={{}}&layer={{}}".format
        # The server's own imports are not the page's.
        first_picture(plain.never_here(), address(runs[-1], turn % layers), picture, server)
        seen = [
            first_picture(plain.never_here(), address(run, turn % layers), picture, server) for run in runs[:repeats]
        ]
        spent = (statistics.median(getattr(sight, of) for sight in seen) for of in ("server", "browser"))
        note = "CPU {:,.0f} ms server, {:,.0f} ms browser".format(*spent)
        yield f"first picture in a browser that was never here, {name}", [sight.wall for sight in seen], note


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
    """Milliseconds from a key or a choice to its picture, on open pages; each looks at a run of its own if it can."""
    for turn, name in enumerate(MARKS):
        visit = partial(_open, browser, dashboard, name, runs[turn % len(runs)])
        for figure, taken in changes(visit, name, layers, repeats):
            yield figure, taken, _load()
    page = _open(browser, dashboard, "similarity", runs[0])
    zooms = [_zoom(page, act) for _ in range(repeats) for act in ("in", "in", "out", "whole")]
    yield "zoom of the similarity map", zooms, _load()
    page.close()


def _open(browser: Any, dashboard: Dashboard, name: str, run: str, asked: str = "") -> Any:
    page = browser.new_page()
    page.set_default_timeout(60_000)
    page.goto(f"{dashboard.address}/{name}?run={run}{asked}")
    page.wait_for_selector(PICTURES[name], state="attached")
    page.wait_for_function("!document.querySelector('[data-testid=stStatusWidget]')")
    time.sleep(SETTLE_SECONDS)
    return page


def _zoom(page: Any, act: str) -> float:
    """From the button to the sharp tile."""
    return until_changed(page, WINDOW, lambda: page.click(f".kv-map [data-act={act}]"))


def _verdict(figure: str, value: float) -> str:
    target = next((limit for name, limit in TARGETS.items() if name in figure), None)
    if target is None:
        return "no target"
    shown = f"{target / 1e9:g} GB" if target >= 1e9 else f"{target:,.0f} ms"
    return f"{'within' if value <= target else 'above'} {shown}"
