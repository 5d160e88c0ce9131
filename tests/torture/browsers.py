"""Many browsers on one dashboard for minutes, with a job running: how long a first picture takes, and what memory."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from kvlab.bench.modes.pages import PICTURES
from kvlab.bench.modes.pages_server import BROWSERS, FLAGS
from kvlab.trace.synthetic import write_synthetic_run
from tests.torture.table import Row, at

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(path.stem for path in (ROOT / "pages").glob("*.py") if path.stem != "start")
BOX = '[data-testid="stException"]'
# Of a page that has no picture of its own: what it has to say is there.
SEEN = (
    "() => document.querySelector('[data-testid=\"stMainBlockContainer\"]')?.innerText.trim().length > 40 && "
    "!document.querySelector('[data-testid=\"stSkeleton\"]') && "
    "document.querySelector('[data-testid=\"stApp\"]')?.dataset.testScriptState === 'notRunning'"
)
PATIENCE_MS = 120_000
FIRST_LOADS = 300
BAR_SECONDS = 8.0  # for 95 of 100 first pictures with 20 readers
THINKING_SECONDS = (0.5, 3.0)  # between two pages, as a reader


def browsers(root: Path, count: int, minutes: float, port: int = 8795) -> Row:
    """`count` readers who open one page after another for so many minutes."""
    row = Row(f"{count} browsers, {minutes:g} min, a job running")
    found = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if found is None:
        row.note = "left out: no Chromium here"
        return row
    names = [write_synthetic_run(root, method=m, comparison_id=c).name for c in "ab" for m in ("full", "h2o", "keepkv")]
    line = [sys.executable, "-m", "kvlab", "app", "--runs", str(root), "--port", str(port), "--headless"]
    started = subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=os.environ.copy())
    try:
        stay = Stay(row, f"http://localhost:{port}", names, time.monotonic() + 60 * minutes, _server(started.pid))
        _keep_busy(root, minutes)
        stay.memory.append(stay.server.memory_info().rss)
        asyncio.run(_all(stay, found, count))
    finally:
        started.terminate()
        started.wait(60)
    row.attempts, memory = len(row.seconds), stay.memory
    tail = memory[min(FIRST_LOADS, len(memory) // 2) :]
    row.memory = f"{memory[0] / 1e6:.0f} to {max(memory) / 1e6:.0f} MB; after {len(memory) - len(tail)} loads "
    row.memory += f"{tail[0] / 1e6:.0f} to {max(tail) / 1e6:.0f} MB ({max(tail) / tail[0] - 1:+.0%})"
    slow = sorted(stay.slowest, key=lambda name: -stay.slowest[name])[:3]
    met = "met" if row.seconds and at(row.seconds, 0.95) < BAR_SECONDS else "missed"
    row.note = f"bar of {BAR_SECONDS:g} s {met}; slowest " + ", ".join(f"{n} {stay.slowest[n]:.1f} s" for n in slow)
    return row


def _server(pid: int) -> psutil.Process:
    """The process of the dashboard's server, a child of the command."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        for child in psutil.Process(pid).children(recursive=True):
            if any(word.endswith("main.py") or word.endswith("serve.py") for word in child.cmdline()):
                time.sleep(4)
                return child
        time.sleep(0.2)
    raise RuntimeError("the server did not start")


def _keep_busy(root: Path, minutes: float) -> None:
    """Jobs for the worker, more than it can do in the time."""
    from kvlab import jobs
    from kvlab.jobs.intake import sample_request

    for number in range(max(2, round(3 * minutes))):
        jobs.submit(root, sample_request(), session=f"torture {number}")
    jobs.ensure_worker(root)


@dataclass
class Stay:
    """What the readers share while they are there."""

    row: Row
    address: str
    runs: list[str]
    until: float
    server: psutil.Process
    memory: list[int] = field(default_factory=list)
    slowest: dict[str, float] = field(default_factory=dict)

    def note(self, page: str, seconds: float) -> None:
        """A picture was seen."""
        self.row.seconds.append(seconds)
        self.slowest[page] = max(self.slowest.get(page, 0.0), seconds)
        self.memory.append(self.server.memory_info().rss)

    def fell(self, page: str, how: str, count: int = 1) -> None:
        """A page showed an exception, or nothing."""
        self.row.exceptions += count
        self.row.faults.append(f"{page}: {how[:200]}")


async def _all(stay: Stay, chromium: str, count: int) -> None:
    from playwright.async_api import async_playwright

    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=chromium, args=list(FLAGS))
        await asyncio.gather(*(_reader(stay, browser, random.Random(number)) for number in range(count)))
        await browser.close()


async def _reader(stay: Stay, browser: Any, chance: random.Random) -> None:
    context = await browser.new_context(viewport={"width": 1280, "height": 900})
    page = await context.new_page()
    while time.monotonic() < stay.until:
        name = chance.choice(PAGES)
        begun = time.monotonic()
        try:
            await page.goto(f"{stay.address}/{name}?run={chance.choice(stay.runs)}", timeout=PATIENCE_MS)
            if name in PICTURES:
                await page.wait_for_selector(PICTURES[name], state="attached", timeout=PATIENCE_MS)
            else:
                await page.wait_for_function(SEEN, timeout=PATIENCE_MS)
        except Exception as error:
            stay.fell(name, f"{type(error).__name__} {str(error).splitlines()[0]}")
        stay.note(name, time.monotonic() - begun)
        if boxes := await page.locator(BOX).count():
            stay.fell(name, repr(await page.locator(BOX).first.inner_text()), boxes)
        await asyncio.sleep(chance.uniform(*THINKING_SECONDS))
    await context.close()
