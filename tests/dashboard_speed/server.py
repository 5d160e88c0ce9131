"""The dashboard's server and the browser of mode `pages`, started and stopped with it."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil

from kvlab.common.binding import server_command, server_options
from kvlab.core.errors import UserError

FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync")
READY_SECONDS = 60.0
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")


class Dashboard:
    """The server that `kvlab app` starts, over a folder of runs and without a worker; or a script's own, if given."""

    def __init__(self, root: Path, script: Path | None = None) -> None:
        self.root, self.script = root, script

    def __enter__(self) -> Dashboard:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        line, environment = server_command(self.root, "127.0.0.1", port)
        if self.script is not None:
            flags = [f"--{name}={value}" for name, value in server_options("127.0.0.1", port, None).items()]
            line = [sys.executable, "-P", "-m", "streamlit", "run", str(self.script), *flags]
        # The dashboard's ends when the pipe closes, and the pipe closes with this process, however that ends.
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self.process = subprocess.Popen(line, env=environment, stdin=subprocess.PIPE, **quiet)
        self.address = f"http://127.0.0.1:{port}"
        self._wait()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.process.terminate()
        if self.process.stdin is not None:  # the dashboard's would wait for a connection that a browser left half open
            self.process.stdin.close()
        self.process.wait(READY_SECONDS)

    def memory(self) -> int:
        """Resident bytes of the server's process."""
        return int(psutil.Process(self.process.pid).memory_info().rss)

    def _wait(self) -> None:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        deadline = time.monotonic() + READY_SECONDS
        while True:
            try:
                opener.open(f"{self.address}/_stcore/health", timeout=2).close()
                return
            except OSError:
                if self.process.poll() is not None or time.monotonic() > deadline:
                    raise UserError("The dashboard's server did not start: try `kvlab app` to see why.") from None
                time.sleep(0.2)


@contextmanager
def chromium() -> Iterator[Any]:
    """A headless Chromium that keeps nothing.

    Raises:
        UserError: Chromium or playwright is missing.
    """
    with _playwright() as (playwright, found):
        browser = playwright.chromium.launch(executable_path=found, args=list(FLAGS))
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def chromium_at_home(width: int, height: int, **given: Any) -> Iterator[Any]:
    """The context of a headless Chromium with a profile on disk, as a person's, which keeps the files it fetched.

    `given` are further options of the context. With `bypass_csp=True` conditions can be waited for in pages of the
    dashboard, whose content policy refuses to compile them.

    Raises:
        UserError: Chromium or playwright is missing.
    """
    with _playwright() as (playwright, found), tempfile.TemporaryDirectory(prefix="kvlab-bench-") as profile:
        options = {"executable_path": found, "args": list(FLAGS), "viewport": {"width": width, "height": height}}
        context = playwright.chromium.launch_persistent_context(profile, **(options | given))
        try:
            yield context
        finally:
            context.close()


def one_process_without_windows() -> dict[str, Any]:
    """Options of `chromium_at_home` for tests, which take half the processor time with them.

    The headless shell is the same engine without the windows that nobody sees, and a process for all tabs keeps the
    compiled scripts of the tabs before. Scripts that Chromium fetches in the background are compiled at each load,
    which takes a sixth of the processor time; without that they come from its cache.
    """
    shell = shutil.which("chromium-headless-shell") or chromium_path()
    one_process = ("--process-per-site", "--renderer-process-limit=1")
    return {
        "executable_path": shell,
        "args": [*FLAGS, *one_process, "--disable-features=BackgroundResourceFetch"],
        "reduced_motion": "reduce",
    }


@contextmanager
def _playwright() -> Iterator[tuple[Any, str]]:
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        raise UserError("Mode pages drives Chromium with playwright: install kvlab's dev extra.") from None
    found = chromium_path()
    with sync_playwright() as playwright:
        yield playwright, found


def chromium_path() -> str:
    """The Chromium of this machine; raises UserError where there is none."""
    found = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if found is None:
        raise UserError("Mode pages needs Chromium: install it (Debian: apt install chromium).")
    return found
