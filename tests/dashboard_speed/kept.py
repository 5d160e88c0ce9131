"""Of mode `pages`: the page Runs over some thousand synthetic runs, its first picture and a search on it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from tests.dashboard_speed.clock import first_picture
from tests.dashboard_speed.plain import Room
from tests.dashboard_speed.server import Dashboard
from tests.synthetic.runs import write_synthetic_run

KEPT_RUNS = 5_000
METHODS = ("full", "h2o", "snapkv", "zsmerge", "keepkv")
SMALL = {"layers": 1, "heads": 1, "steps": 2, "prompt_tokens": 200, "level": "light"}
PICTURE = "[class*='st-key-runs-table'] canvas"
SEARCH = "[class*='st-key-runs_text'] input"
TABLE = "[class*='st-key-runs-table']"  # its class names the rows it has


def write_kept(root: Path, count: int) -> None:
    """Small comparisons of five methods each, over fifty different prompts."""
    for number in range(count):
        comparison, method = divmod(number, len(METHODS))
        write_synthetic_run(
            root, method=METHODS[method], comparison_id=f"kept-{comparison:05d}", title=f"prompt number {comparison}",
            seed=comparison % 50, **SMALL,
        )  # fmt: skip


def kept_pictures(
    plain: Room, browser: Any, dashboard: Dashboard, count: int, repeats: int
) -> Iterator[tuple[str, list[float], str]]:
    """Figures, milliseconds and notes, as the other pages' are."""
    server, address = psutil.Process(dashboard.process.pid), f"{dashboard.address}/runs"
    first_picture(plain, address, PICTURE, server)
    sights = [first_picture(plain, address, PICTURE, server) for _ in range(repeats)]
    yield "first picture, runs", [sight.wall for sight in sights], f"{count:,} runs"
    page = browser.new_page()
    page.set_default_timeout(60_000)
    page.goto(address)
    page.wait_for_selector(PICTURE, state="attached")
    page.wait_for_timeout(1_000)
    yield "search, runs", [_search(page, f"number {place}") for place in range(repeats)], f"{count:,} runs"
    page.close()


def _search(page: Any, words: str) -> float:
    """From the Enter key to the table of the rows that were found."""
    page.locator(SEARCH).fill(words)
    mark = f"document.querySelector({TABLE!r})?.className"
    page.evaluate(
        f"""() => {{ const before = {mark}; window.kvFound = null;
        document.addEventListener('keydown', () => {{
          const start = performance.now();
          const timer = setInterval(() => {{
            if (({mark} ?? before) === before) return;
            clearInterval(timer); window.kvFound = performance.now() - start;
          }}, 5);
        }}, {{ once: true, capture: true }}); }}"""
    )
    page.keyboard.press("Enter")
    page.wait_for_function("window.kvFound !== null")
    return float(page.evaluate("window.kvFound"))
