"""When a page's first picture is there, by the browser's own clock, and what it cost the processors."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import Any

import psutil

from kvlab.core.errors import UserError
from tests.dashboard_speed.plain import Room

PATIENCE_SECONDS = 300.0
LOOK_SECONDS = 0.2  # how seldom this side asks: asking costs the browser time
IDLE_MS = 10.0  # of processor time in one look: less, and a browser is at rest
# Components live in shadow trees, which a query of the document does not enter.
WATCH = """
(() => {
  const find = () => document.querySelector(%(selector)s)
    ?? [...document.querySelectorAll("div")].map((node) => node.shadowRoot?.querySelector(%(selector)s)).find(Boolean);
  const timer = setInterval(() => {
    if (!find()) return;
    clearInterval(timer);
    requestAnimationFrame(() => requestAnimationFrame(() => { window.kvPainted = performance.now(); }));
  }, 10);
})();
"""


@dataclass(frozen=True)
class Sight:
    """Milliseconds from navigation to the painted picture, and the processor time both sides took until then."""

    wall: float
    server: float
    browser: float


def first_picture(context: Any, address: str, selector: str, server: psutil.Process) -> Sight:
    """Opens `address` in a new tab and waits until what `selector` names is painted.

    `context` is of `pages_plain`, or of playwright where one browser runs.
    """
    browser = psutil.Process(context.process.pid) if isinstance(context, Room) else _chromium()
    page = context.new_page()
    page.set_default_timeout(1000 * PATIENCE_SECONDS)
    page.add_init_script(WATCH % {"selector": json.dumps(selector)})
    _rest(browser)
    before = _busy_ms(server), _busy_ms(browser)
    page.goto(address, wait_until="commit")
    wall = _painted(page, address)
    taken = Sight(wall, _busy_ms(server) - before[0], _busy_ms(browser) - before[1])
    page.close()
    time.sleep(0.5)  # so that closing the tab is not counted with the next one
    return taken


def _rest(browser: psutil.Process) -> None:
    """Wait until the window is there as a person has it: its own bar and menus are a second's work."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    busy = _busy_ms(browser)
    while time.monotonic() < deadline:
        time.sleep(LOOK_SECONDS)
        before, busy = busy, _busy_ms(browser)
        if busy - before < IDLE_MS:
            return


def _painted(page: Any, address: str) -> float:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        if (painted := page.evaluate("window.kvPainted")) is not None:
            return float(painted)
        time.sleep(LOOK_SECONDS)
    raise UserError(f"{address} showed no picture in {PATIENCE_SECONDS:.0f} seconds: open it to see why.")


def _chromium() -> psutil.Process:
    children = psutil.Process().children(recursive=True)
    return next(child for child in children if "chrom" in child.name() and "--type" not in " ".join(child.cmdline()))


def _busy_ms(process: psutil.Process) -> float:
    """Processor time of a process and its children, those that have ended too."""
    total = 0.0
    for one in (process, *process.children(recursive=True)):
        try:
            times = one.cpu_times()
        except psutil.Error:
            continue
        total += times.user + times.system + times.children_user + times.children_system
    return 1000 * total
