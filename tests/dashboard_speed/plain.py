"""A Chromium as a person's: told over its debugging port where to go, and asked for one number, nothing else.

Playwright turns on what tells of a page's messages and exceptions. For each exception that a script throws and catches
Chromium then reads the functions on its stack once more, the module of the charts of 4.7 MB among them: on two cores a
page's first chart comes half a second later than in a browser that nobody watches.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from kvlab.core.errors import UserError
from tests.dashboard_speed.server import FLAGS, READY_SECONDS, chromium_path

PORT_FILE = "DevToolsActivePort"


class Connection:
    """One end of the DevTools protocol: a call, and what it returns."""

    def __init__(self, address: str) -> None:
        try:
            from websockets.sync.client import connect
        except ImportError:
            raise UserError("Mode pages asks Chromium over a socket: install kvlab's dev extra.") from None
        self.socket = connect(address, max_size=None, proxy=None)
        self.calls = 0

    def call(self, method: str, **given: object) -> dict[str, Any]:
        """Call a method of the protocol and wait for its answer."""
        self.calls += 1
        self.socket.send(json.dumps({"id": self.calls, "method": method, "params": given}))
        while True:
            answer = json.loads(self.socket.recv())
            if answer.get("id") == self.calls:
                return answer.get("result", {})

    def close(self) -> None:
        """Hang up."""
        self.socket.close()


class Tab:
    """As much of playwright's page as `pages_clock.first_picture` needs."""

    def __init__(self, browser: Connection, address: str, room: dict[str, object]) -> None:
        self.browser = browser
        self.target = browser.call("Target.createTarget", url="about:blank", **room)["targetId"]
        self.connection = Connection(f"{address}/devtools/page/{self.target}")

    def add_init_script(self, script: str) -> None:
        """Run a script in every document before its own."""
        self.connection.call("Page.enable")
        self.connection.call("Page.addScriptToEvaluateOnNewDocument", source=script)

    def goto(self, address: str, wait_until: str = "commit") -> None:
        """Go there, and do not wait for more than that."""
        self.connection.call("Page.navigate", url=address)

    def evaluate(self, expression: str) -> Any:
        """The value of an expression; None where it has none."""
        return self.connection.call("Runtime.evaluate", expression=expression)["result"].get("value")

    def set_default_timeout(self, milliseconds: float) -> None:
        """Nothing here waits."""

    def close(self) -> None:
        """Close the tab."""
        self.connection.close()
        self.browser.call("Target.closeTarget", targetId=self.target)


class Room:
    """Tabs that share what they keep; `process` is their browser's."""

    def __init__(self, process: subprocess.Popen, connection: Connection, address: str, **own: object) -> None:
        self.process, self.connection, self.address, self.own = process, connection, address, own

    def new_page(self) -> Any:
        """A new tab."""
        return Tab(self.connection, self.address, self.own)

    def never_here(self) -> Room:
        """Another room in the same browser, in which nothing is kept yet."""
        made = self.connection.call("Target.createBrowserContext")["browserContextId"]
        return Room(self.process, self.connection, self.address, browserContextId=made)


@contextmanager
def plain_chromium(width: int, height: int) -> Iterator[Room]:
    """A headless Chromium with a profile on disk of its own.

    Raises:
        UserError: Chromium or websockets is missing, or Chromium does not start.
    """
    with tempfile.TemporaryDirectory(prefix="kvlab-bench-", ignore_cleanup_errors=True) as profile:
        own = (f"--user-data-dir={profile}", f"--window-size={width},{height}", "--remote-debugging-port=0")
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        process = subprocess.Popen([chromium_path(), *FLAGS, *own, "about:blank"], **quiet)
        try:
            port, path = _door(process, Path(profile) / PORT_FILE)
            address = f"ws://127.0.0.1:{port}"
            with closing(Connection(address + path)) as connection:
                yield Room(process, connection, address)
        finally:
            process.terminate()
            process.wait(READY_SECONDS)


def _door(process: subprocess.Popen, file: Path) -> tuple[int, str]:
    """The port that Chromium took, and the path of the browser's own end."""
    deadline = time.monotonic() + READY_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        lines = file.read_text(encoding="utf-8").split() if file.exists() else []
        if len(lines) == 2:
            return int(lines[0]), lines[1]
        time.sleep(0.1)
    raise UserError("Chromium did not start: run `chromium --headless` to see why.")
