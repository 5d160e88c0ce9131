"""`kvlab app` as a person starts it: serves, keeps a worker alive, stops with everything it started."""

from __future__ import annotations

import http.client
import importlib
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from kvlab.core.errors import UserError
from kvlab.jobs import device_shares as worker_slots
from kvlab.jobs import queue_db
from tests.synthetic.runs import write_synthetic_run

command = importlib.import_module("kvlab.cli.app")  # the package also has an object of this name
PATIENCE_SECONDS = 60


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.1)


def worker_of(root: Path) -> int | None:
    with queue_db.database(root) as connection:
        return next((row["pid"] for row in worker_slots.live_workers(connection)), None)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[subprocess.Popen, int]]:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]
    line = [
        sys.executable,
        "-P",
        "-m",
        "kvlab",
        "app",
        "--runs",
        str(tmp_path / "runs"),
        "--port",
        str(port),
        "--headless",
    ]
    process = subprocess.Popen(
        line, cwd=tmp_path, stdout=subprocess.PIPE, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"}
    )
    yield process, port
    for child in psutil.Process(process.pid).children() if process.poll() is None else []:
        child.kill()
    process.kill()
    process.wait()


def answers(port: int) -> list[float]:
    """Seconds of each answer after the first on one connection."""
    taken, connection = [], http.client.HTTPConnection("localhost", port, timeout=10)
    for _ in range(9):
        begun = time.perf_counter()
        connection.request("GET", "/_stcore/host-config")
        connection.getresponse().read()
        taken.append(time.perf_counter() - begun)
    connection.close()
    return taken[1:]


def test_it_serves_restarts_a_killed_worker_and_stops_what_it_started(
    served: tuple[subprocess.Popen, int], tmp_path: Path
):
    process, port = served
    assert process.stdout is not None
    assert process.stdout.readline() == f"kvlab is at http://localhost:{port}/\n"
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"http://localhost:{port}/new_run", timeout=10) as page:
        assert b"<title>" in page.read()
        assert page.headers["X-Content-Type-Options"] == "nosniff" and page.headers["X-Frame-Options"] == "SAMEORIGIN"
        assert "script-src 'self'" in page.headers["Content-Security-Policy"]
    assert min(answers(port)) < 0.03  # a delayed acknowledgement takes 0.04
    until(lambda: worker_of(tmp_path / "runs") is not None)
    first = worker_of(tmp_path / "runs")
    assert first is not None
    os.kill(first, signal.SIGKILL)
    until(lambda: worker_of(tmp_path / "runs") not in (None, first))
    children = psutil.Process(process.pid).children()
    assert len(children) >= 2
    process.send_signal(signal.SIGINT)
    assert process.wait(PATIENCE_SECONDS) == 0
    until(lambda: not any(child.is_running() and child.status() != psutil.STATUS_ZOMBIE for child in children))
    assert worker_of(tmp_path / "runs") is None


def test_killed_outright_it_leaves_no_server_and_no_worker(served: tuple[subprocess.Popen, int], tmp_path: Path):
    process, port = served
    assert process.stdout is not None
    process.stdout.readline()
    until(lambda: worker_of(tmp_path / "runs") is not None)
    children = psutil.Process(process.pid).children()
    process.kill()
    process.wait()
    until(lambda: not any(child.is_running() and child.status() != psutil.STATUS_ZOMBIE for child in children))
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("localhost", port))
    assert "You can now view" in (tmp_path / "runs" / ".jobs" / "server.log").read_text()


def test_what_the_server_says_of_a_failure_is_in_its_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """With a stand-in for the server; that a page's traceback is said at all is in tests/pages/test_failures.py."""
    script = tmp_path / "app" / "server" / "serve.py"
    script.parent.mkdir(parents=True)
    script.write_text("print('it serves', flush=True)\nraise RuntimeError('of the page')\n")
    monkeypatch.setattr("kvlab.common.binding.project_root", lambda: tmp_path)
    root = tmp_path / "runs"
    root.mkdir()
    server = command._start_server(root, "localhost", 8501)
    assert server.wait(PATIENCE_SECONDS) == 1
    server.stdin.close()
    said = command.server_log(root).read_text()
    assert said.startswith("it serves\nTraceback (most recent call last)") and "RuntimeError: of the page" in said
    assert command._last_words(root) == f"RuntimeError: of the page (the log is {root / '.jobs' / 'server.log'})."


def test_a_run_or_a_comparison_can_be_named_by_id_or_folder(tmp_path: Path):
    path = write_synthetic_run(tmp_path, comparison_id="mine")
    assert command._page_for(tmp_path, "") == "/"
    assert (
        command._page_for(tmp_path, path.name)
        == command._page_for(tmp_path, f"{path}/")
        == f"/timeline?run={path.name}"
    )
    assert command._page_for(tmp_path, "mine") == "/compare?comparison=mine"
    with pytest.raises(UserError, match="There is no run or comparison nope"):
        command._page_for(tmp_path, "nope")


def test_a_port_that_is_taken_or_no_port_is_one_sentence():
    with socket.socket() as taken:
        taken.bind(("localhost", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=f"Port {port} of localhost is in use"):
            command._choose_port("localhost", port)
    for port in (0, -1, 70_000):
        with pytest.raises(UserError, match="choose one from 1 to 65535"):
            command._choose_port("localhost", port)
    assert command._choose_port("localhost", None) >= command.FIRST_PORT


def test_a_runs_folder_that_cannot_be_made_is_one_sentence(tmp_path: Path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="cannot be created"):
        command._make_folder(tmp_path / "file" / "runs")
