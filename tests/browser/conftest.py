"""One dashboard and one Chromium for all tests of this folder."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kvlab.core.assets import project_root
from kvlab.trace.stories import Story, View, save_story
from tests.dashboard_speed.server import chromium_at_home, one_process_without_windows
from tests.synthetic.runs import write_synthetic_run

PATIENCE_SECONDS = 90
RUN = "some-keepkv-25pc-0"
NASTY = (
    "<script>document.title = 'broken into'</script><img src=x onerror=\"document.title = 'broken into'\"> &amp; end. "
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.e2e)
            item.add_marker(pytest.mark.skipif(shutil.which("chromium") is None, reason="Chromium is not installed"))


@pytest.fixture(scope="package")
def served(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of runs: `sample`, `linked`, `some` and `budgets` of more tokens, `papers`, `nasty`; and a story."""
    root = tmp_path_factory.mktemp("runs")
    for method in ("full", "h2o", "keepkv"):
        write_synthetic_run(root, method=method, comparison_id="sample", title="a sample comparison")
        write_synthetic_run(root, method=method, prompt_tokens=90, steps=6, comparison_id="linked")
        write_synthetic_run(root, method=method, prompt_tokens=60, steps=6, comparison_id="some")
    for method, budget in (("full", 1.0), ("keepkv", 0.25), ("keepkv", 0.5)):
        write_synthetic_run(root, method=method, budget=budget, prompt_tokens=60, steps=6, comparison_id="budgets")
    for method in ("h2o", "zsmerge"):
        write_synthetic_run(root, method=method, comparison_id="papers", title="what the papers' figures need")
    write_synthetic_run(root, comparison_id="nasty", prompt=NASTY, steps=4)
    views = (
        View(page="sag", query={"run": RUN, "layer": "1", "head": "1"}, caption="First, the sag."),
        View(page="memory", query={"run": RUN}, caption="Then <b>bytes</b>."),
        View(page="memory", query={"run": RUN, "shape": "lines"}, caption="As lines."),
        View(page="memory", query={"run": RUN}, caption="As before."),
    )
    save_story(root, Story(name="Two views", views=views))
    return root


@pytest.fixture(scope="package")
def address(served: Path) -> Iterator[str]:
    """Where a server of these runs answers, with a worker that runs the stand-in."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    paths = os.pathsep.join(str(path) for path in (project_root() / "tests" / "jobs", project_root()))
    environment = os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    worker = [
        sys.executable,
        "-m",
        "kvlab.jobs.worker",
        "--nice",
        "0",
        "--runs",
        str(served),
        "--compare",
        "stand_in:compare",
    ]
    server = [sys.executable, "-P", "-m", "kvlab", "app", "--runs", str(served), "--port", str(port), "--headless"]
    started = [subprocess.Popen(line, env=environment, stdout=subprocess.DEVNULL) for line in (worker, server)]
    wait_for(f"http://localhost:{port}/_stcore/health")
    yield f"http://localhost:{port}"
    for process in started:
        process.terminate()
        process.wait(PATIENCE_SECONDS)


def wait_for(address: str) -> None:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            opener.open(address, timeout=2)
            return
        except OSError:
            assert time.monotonic() < deadline, "the server did not answer"
            time.sleep(0.3)


@pytest.fixture(scope="package")
def browser() -> Iterator[Any]:
    """A Chromium that keeps files and compiled scripts from page to page, and moves nothing for show."""
    pytest.importorskip("playwright.sync_api")
    with chromium_at_home(1280, 1000, **one_process_without_windows()) as home:
        yield home


@pytest.fixture
def visit(browser: Any, address: str) -> Iterator[Callable[..., Any]]:
    """`visit(path)` opens a page of the dashboard in a tab of its own, and each is closed behind the test.

    No page may ask for what the content policy forbids.
    """
    opened, forbidden = [], []

    def go(path: str, width: int = 1280, height: int = 1000, scheme: str = "light") -> Any:
        page = browser.new_page()
        opened.append(page)
        page.on("console", lambda said: forbidden.append(said.text) if "Content Security Policy" in said.text else None)
        page.set_default_timeout(PATIENCE_SECONDS * 1000)
        page.set_viewport_size({"width": width, "height": height})
        page.emulate_media(color_scheme=scheme)
        page.goto(f"{address}/{path}")
        page.wait_for_selector("h1")
        return page

    yield go
    for page in opened:
        page.close()
    assert not forbidden, forbidden
