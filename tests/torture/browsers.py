"""Many readers on one dashboard for minutes, with a job running: how long a first picture takes, and what memory."""

from __future__ import annotations

import asyncio
import os
import random
import re
import shutil
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from app.navigation.menu import MENU, page_names
from tests.dashboard_speed.pages import PICTURES
from tests.dashboard_speed.server import BROWSERS, FLAGS
from tests.synthetic.runs import write_synthetic_run
from tests.torture.light import Light
from tests.torture.table import Row, at

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted({*page_names()} - {"start"})
BOX = '[data-testid="stException"]'
ENTRIES = [entry.views[0][0] for entry in MENU[1:]]  # of the sidebar, but the first page
LINK = '[data-testid="stSidebarNavLink"][href$="/{}"]'
OLD = "data-of-the-page-before"
MARK = f"(nodes) => nodes.forEach((node) => node.setAttribute('{OLD}', ''))"
# Of a page that has no picture of its own: what it has to say is there.
SEEN = (
    "() => document.querySelector('[data-testid=\"stMainBlockContainer\"]')?.innerText.trim().length > 40 && "
    "!document.querySelector('[data-testid=\"stSkeleton\"]') && "
    "document.querySelector('[data-testid=\"stApp\"]')?.dataset.testScriptState === 'notRunning'"
)
PATIENCE_MS = 120_000
OWN_FILE = re.compile(r'\s+File ".*/((?:app|pages|kvlab)/[^"]+)", line (\d+), in (.*)')  # in a traceback
WENT_WRONG = re.compile(r"\w[\w.]*(?:Error|Exception)\b.*")  # its last line
FIRST_LOADS = 300
LEVEL_LOADS = 100  # whose middle says where memory stands, whatever is being drawn
BAR_SECONDS = 8.0  # for 95 of 100 first pictures with 20 readers
BAR_GROWTH = 0.10  # of memory after the first loads
REAL = 2  # of the readers that hurry so many are browsers
COMING = 120.0  # seconds in which those who read come: each needs cores for a browser that was never there
HURRIED, READING = (0.5, 3.0), (20.0, 60.0)  # seconds between two pages
LONGEST_VISIT = 20  # pages that a hurried reader opens by the menu until the next link


def hurried(root: Path, count: int, minutes: float, port: int = 8795) -> list[Row]:
    """Rows of readers who all come at once and look at a page for a second or two: most need no browser for it."""
    people = f"{count - REAL} of {count} hurried readers, without a browser"
    light = Row(f"{people}, {minutes:g} min, a job running: whole pages")
    real = Row(f"{REAL} of the {count} hurried readers, in Chromium: first pictures")
    return _measured([light, real], root, port, minutes, lambda stay, at: _hurried(stay, at, count, light, real))


def reading(root: Path, count: int, minutes: float, port: int = 8796) -> list[Row]:
    """The row of as many browsers, whose people come one after another and read what they open."""
    seconds = f"{READING[0]:g} to {READING[1]:g} s"
    people = f"{count} Chromium that come within {COMING:g} s, a page read for {seconds}"
    row = Row(f"{people}, {minutes:g} min, a job running: first pictures")
    return _measured([row], root, port, minutes, lambda stay, at: _reading(stay, at, count, row))


def _measured(
    rows: list[Row], root: Path, port: int, minutes: float, read: Callable[[Stay, str], Coroutine[Any, Any, None]]
) -> list[Row]:
    """The rows, judged by the last: it is of browsers, and of pictures."""
    found = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if found is None:
        rows[-1].note = "left out: no Chromium here"
        return rows[-1:]
    with _dashboard(root, port, minutes) as stay:
        asyncio.run(read(stay, found))
        rows[0].memory = stay.growth()
    for row in rows:
        row.note = stay.slow(row)
    rows[0].faults += _logged(root)
    rows[-1].note = f"bar of {BAR_SECONDS:g} s {_met(rows[-1])}; {rows[-1].note}"
    return rows


def _met(row: Row) -> str:
    return "met" if row.seconds and at(row.seconds, 0.95) < BAR_SECONDS else "missed"


@dataclass
class Stay:
    """What the readers share while they are there."""

    address: str
    runs: list[str]
    until: float
    server: psutil.Process
    memory: list[int] = field(default_factory=list)
    slowest: dict[str, dict[str, float]] = field(default_factory=dict)  # by part and page

    def note(self, row: Row, page: str, seconds: float) -> None:
        """A page was opened."""
        row.attempts += 1
        row.seconds.append(seconds)
        slowest = self.slowest.setdefault(row.part, {})
        slowest[page] = max(slowest.get(page, 0.0), seconds)
        self.memory.append(self.server.memory_info().rss)

    def slow(self, row: Row) -> str:
        """The pages that took longest at their worst, in words."""
        worst = self.slowest.get(row.part, {})
        return "slowest " + ", ".join(
            f"{name} {worst[name]:.1f} s" for name in sorted(worst, key=lambda n: -worst[n])[:3]
        )

    def any_run(self, chance: random.Random, page: str) -> str:
        """A run that has something to show there."""
        return chance.choice([run for run in self.runs if "keepkv" in run] if page in PICTURES else self.runs)

    def growth(self) -> str:
        """Of the server's memory, in words."""
        early = self.memory[: min(FIRST_LOADS, len(self.memory) // 2)]
        late = self.memory[len(early) :]
        if not early:
            return ""
        grown = max(late) / early[-1] - 1
        first, most, then, top, last = (
            f"{number / 1e6:.0f}" for number in (early[0], max(early), early[-1], max(late), late[-1])
        )
        said = f"{first} MB, at most {most} in {len(early)} loads, then {then}, at most {top} in {len(late)} more "
        said += f"({grown:+.0%}), {last} at the end"
        level, later = (statistics.median(part[-LEVEL_LOADS:]) for part in (early, late))
        said += f", in the middle of the last {LEVEL_LOADS} of each {level / 1e6:.0f} and {later / 1e6:.0f}"
        said += f" ({later / level - 1:+.0%})"
        verdict = "met" if grown < BAR_GROWTH else "missed"
        return f"{said}; bar of {BAR_GROWTH:.0%} {verdict}" if len(early) == FIRST_LOADS else said


@contextmanager
def _dashboard(root: Path, port: int, minutes: float) -> Iterator[Stay]:
    """A dashboard over six small runs, whose worker has jobs for the whole time."""
    names = [write_synthetic_run(root, method=m, comparison_id=c).name for c in "ab" for m in ("full", "h2o", "keepkv")]
    line = [sys.executable, "-m", "kvlab", "app", "--runs", str(root), "--port", str(port), "--headless"]
    started = subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=os.environ.copy())
    try:
        server = _server(started.pid)
        _keep_busy(root, minutes)
        yield Stay(f"http://localhost:{port}", names, time.monotonic() + 60 * minutes, server)
    finally:
        started.terminate()
        started.wait(60)


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
    from kvlab.forms.compare_form import sample_request

    for number in range(max(2, round(3 * minutes))):
        jobs.submit(root, sample_request(), session=f"torture {number}")


async def _hurried(stay: Stay, chromium: str, count: int, light: Row, real: Row) -> None:
    """Readers who look at a page for a second or two; all come at once."""
    async with _chromium(chromium) as browser:
        readers: list[Awaitable[None]] = [
            _light(stay, light, random.Random(number)) for number in range(max(0, count - REAL))
        ]
        readers += [_real(stay, real, browser, random.Random(-1 - number), HURRIED) for number in range(REAL)]
        await asyncio.gather(*readers)


async def _reading(stay: Stay, chromium: str, count: int, row: Row) -> None:
    """People who read what they open; they come one after another."""

    async def comes(number: int) -> None:
        await asyncio.sleep(number * COMING / count)
        await _real(stay, row, browser, random.Random(number), READING)

    async with _chromium(chromium) as browser:
        await asyncio.gather(*(comes(number) for number in range(count)))


def _chromium(path: str) -> Any:
    from contextlib import asynccontextmanager

    from playwright.async_api import async_playwright

    @asynccontextmanager
    async def started() -> Any:
        async with async_playwright() as playwright:
            browser = await playwright.chromium.launch(executable_path=path, args=list(FLAGS))
            try:
                yield browser
            finally:
                await browser.close()

    return started()


async def _light(stay: Stay, row: Row, chance: random.Random) -> None:
    """One who opens a link, goes on by the menu for a while, leaves, and comes again with another link."""
    while time.monotonic() < stay.until:
        page = chance.choice(PAGES)
        try:
            begun = time.monotonic()
            async with Light(stay.address) as reader:
                await reader.open(page, run=stay.any_run(chance, page))
                stay.note(row, page, time.monotonic() - begun)
                for _ in range(chance.randint(1, LONGEST_VISIT)):
                    await reader.rest(chance.uniform(*HURRIED))
                    if time.monotonic() > stay.until:
                        break
                    page = chance.choice(PAGES)
                    stay.note(row, page, await reader.go_on(page))
                _fell(row, page, *reader.exceptions)
        except Exception as error:
            _fell(row, page, f"{type(error).__name__} {error}")


async def _real(stay: Stay, row: Row, browser: Any, chance: random.Random, thinking: tuple[float, float]) -> None:
    """The same with a browser, whose store keeps what it fetched once."""
    context = await browser.new_context(viewport={"width": 1280, "height": 900}, bypass_csp=True)
    page, left, name = await context.new_page(), 0, ""
    while time.monotonic() < stay.until:
        name = chance.choice([one for one in ENTRIES if one != name])  # the page one is on draws no new picture
        begun = time.monotonic()
        try:
            if left:
                if name in PICTURES:  # what is still there of the page before is not what is waited for
                    await page.locator(PICTURES[name]).evaluate_all(MARK)
                begun = time.monotonic()
                await page.click(LINK.format(name), timeout=PATIENCE_MS)
                await page.wait_for_url(f"**/{name}*", wait_until="commit", timeout=PATIENCE_MS)
            else:
                run = stay.any_run(chance, "lineage")  # of those with a picture on every page, as the menu keeps it
                await page.goto(f"{stay.address}/{name}?run={run}", timeout=PATIENCE_MS)
                left = chance.randint(1, LONGEST_VISIT)
            if name in PICTURES:
                picture = f"{PICTURES[name]}:not([{OLD}])"
                await page.wait_for_selector(picture, state="attached", timeout=PATIENCE_MS)
            else:
                await page.wait_for_function(SEEN, timeout=PATIENCE_MS)
        except Exception as error:
            _fell(row, name, f"{type(error).__name__} {str(error).splitlines()[0]}", more=await _seen(page))
            left = 1
        stay.note(row, name, time.monotonic() - begun)
        left -= 1
        for box in await page.locator(BOX).all():
            _fell(row, name, repr(await box.inner_text()))
        await asyncio.sleep(chance.uniform(*thinking))
    with suppress(Exception):
        await context.close()


def _fell(row: Row, page: str, *said: str, more: str = "") -> None:
    """A page showed an exception, or nothing."""
    row.exceptions += len(said)
    row.faults += [f"{page}: {how[:200]}{more}" for how in said]


async def _seen(page: Any) -> str:
    """What a browser shows instead, as a clause."""
    with suppress(Exception):
        words = await page.locator('[data-testid="stApp"]').inner_text(timeout=5_000)
        return f"; at {page.url} stood: {' '.join(words.split())[-600:]}"
    return "; and nothing was there"


def _logged(root: Path) -> list[str]:
    """What the server's log has of failures: the line of kvlab's own that each came from, and what it was."""
    log = root / ".jobs" / "server.log"
    if not log.exists():
        return []
    found, place = Counter[str](), ""
    for line in log.read_text(errors="replace").splitlines():
        if own := OWN_FILE.match(line):
            place = ":".join(own.groups())
        elif place and WENT_WRONG.match(line):
            found[f"{place}: {line[:200]}"] += 1
            place = ""
    return [f"in the server's log, {count} times: {what}" for what, count in found.items()]
