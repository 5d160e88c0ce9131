"""Somebody pastes megabytes into the form of a new run: how long another visitor waits for a page meanwhile."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import psutil

from tests.dashboard_speed.clock import first_picture
from tests.dashboard_speed.server import Dashboard, chromium
from tests.synthetic.runs import write_synthetic_run

PICTURE = ".kv-strip[data-step] .t"
LINE = "The quick brown fox jumps over the lazy dog while 48213 bands play on. "
SECONDS_AFTER = 25.0
PASTE = """(text) => {
  const area = document.querySelector('textarea');
  const set = Object.getOwnPropertyDescriptor(HTMLTextAreaElement.prototype, 'value').set;
  area.focus(); set.call(area, text);
  area.dispatchEvent(new Event('input', {bubbles: true})); area.blur();
}"""


def waits(root: Path, megabytes: float) -> tuple[float, float]:
    """(seconds of a page's first picture alone, the longest of those opened in the seconds after a paste)."""
    run = write_synthetic_run(root, method="keepkv").name
    with Dashboard(root) as dashboard, chromium() as browser:
        server = psutil.Process(dashboard.process.pid)
        one, other = (browser.new_context(viewport={"width": 1280, "height": 900}) for _ in range(2))
        address = f"{dashboard.address}/timeline?run={run}"
        first_picture(other, address, PICTURE, server)
        alone = first_picture(other, address, PICTURE, server).wall
        page = one.new_page()
        page.goto(f"{dashboard.address}/new_run?source=Paste")
        page.wait_for_selector("textarea", timeout=120_000)
        page.wait_for_timeout(3_000)
        page.evaluate(PASTE, LINE * int(megabytes * 2**20 / len(LINE)))
        begun, longest = time.monotonic(), 0.0
        while time.monotonic() < begun + SECONDS_AFTER:
            longest = max(longest, first_picture(other, address, PICTURE, server).wall)
        return alone / 1000, longest / 1000


def exceptions(page: Any) -> int:
    """Boxes of exceptions on a page."""
    return int(page.locator('[data-testid="stException"]').count())
