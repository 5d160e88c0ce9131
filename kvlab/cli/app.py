"""`kvlab app`: the dashboard and the worker behind it, on this machine."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
import webbrowser
from pathlib import Path
from typing import Annotated
from urllib.parse import urlencode

import psutil
import typer

from kvlab.cli.models import Folders, offer
from kvlab.common.binding import check_serving, server_command
from kvlab.common.lab import VARIABLE, Lab
from kvlab.common.lab import lab as lab_settings
from kvlab.core.errors import UserError
from kvlab.jobs import ensure_worker, release_workers
from kvlab.jobs.client import tail
from kvlab.jobs.device_shares import WORKERS, server_shares
from kvlab.jobs.queue_db import FOLDER, queue_note
from kvlab.planning.plan import visible_gpus
from kvlab.trace.catalogue import list_runs

EVERY_ADDRESS = ("0.0.0.0", "::")
FIRST_PORT = 8501
PORTS_TRIED = 50
READY_SECONDS = 60.0
LOOK_AFTER_SECONDS = 2.0
STOP_SECONDS = 15.0
LONGEST_LOG = 5_000_000
LEAST_FREE = 1_000_000


def app_command(
    runs: Annotated[Path, typer.Option("--runs", help="the folder of runs")] = Path("runs"),
    port: Annotated[int | None, typer.Option("--port", help="default: the first free port from 8501")] = None,
    host: Annotated[str, typer.Option("--host", help="address to serve on; 0.0.0.0 for all")] = "localhost",
    open_: Annotated[
        str, typer.Option("--open", metavar="RUN_OR_COMPARISON", help="open the dashboard on this run or comparison")
    ] = "",
    headless: Annotated[bool, typer.Option("--headless", help="do not open a browser")] = False,
    models: Folders = None,
    lab: Annotated[
        Path | None,
        typer.Option("--lab", metavar="TOML", help="sign-in and models of a shared server, see docs/shared-lab.md"),
    ] = None,
    open_to_everyone: Annotated[
        bool, typer.Option("--open-to-everyone", help="serve other machines without authentication")
    ] = False,
    workers: Annotated[
        int | None,
        typer.Option("--workers", help="worker processes, each with its share of the GPUs; default: see below"),
    ] = None,
) -> None:
    """Open the dashboard; its jobs run in a worker process that ends with it.

    One worker uses all devices, so that a model can be distributed over them; with --workers N each gets a share. A
    server with a lab file starts one worker per GPU.
    """
    root = runs.absolute()
    if lab is not None:  # server and workers, started by this process, find the file through the environment
        os.environ[VARIABLE] = str(lab.absolute())
    settings = lab_settings()
    if note := check_serving(host, settings, open_to_everyone):
        typer.echo(f"kvlab: {note}", err=True)
    offer(models)
    _make_folder(root)
    if workers is None and WORKERS not in os.environ and os.environ.get(VARIABLE):
        workers = max(1, len(visible_gpus()))
    if workers is not None:
        os.environ[WORKERS] = str(workers)
    server_shares()  # raises if there are fewer GPUs
    port = _choose_port(host, port)
    address = f"http://{'localhost' if host in EVERY_ADDRESS else host}:{port}"
    url = address + _page_for(root, open_)
    for stop in (signal.SIGINT, signal.SIGTERM):  # set explicitly, as a job started with & ignores Ctrl-C
        signal.signal(stop, signal.default_int_handler)
    server = _start_server(root, host, port, settings)
    try:
        _wait_until_ready(server, address, root)
        typer.echo(f"kvlab is at {url}\nRuns are in {root}, the server's log is {server_log(root)}. Stop with Ctrl-C.")
        if note := queue_note(root):
            typer.echo(note)
        if not headless:
            webbrowser.open(url)
        _look_after(server, root)
    except KeyboardInterrupt:
        typer.echo("\nStopping.")
    finally:
        server.terminate()
        try:
            server.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            server.kill()
        # Stop the workers unless another dashboard uses them, with time to mark a running job as cancelled.
        processes = []
        with contextlib.suppress(UserError):  # the folder is gone or full
            for pid in release_workers(root):
                with contextlib.suppress(psutil.Error):  # the worker has ended by itself
                    processes.append(psutil.Process(pid))
        for worker in processes:
            with contextlib.suppress(psutil.Error):
                worker.terminate()
        _, alive = psutil.wait_procs(processes, timeout=STOP_SECONDS)
        for process in alive:
            process.kill()


def _make_folder(root: Path) -> None:
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"The runs folder {root} cannot be created ({error.strerror or error}): name another folder with --runs."
        ) from error


def _choose_port(host: str, port: int | None) -> int:
    if port is not None and not 0 < port < 65536:
        raise UserError(f"{port} is not a port: choose one from 1 to 65535.")
    candidates = [port] if port is not None else range(FIRST_PORT, FIRST_PORT + PORTS_TRIED)
    for candidate in candidates:
        with contextlib.suppress(OSError):
            family, _, _, _, address = socket.getaddrinfo(host, candidate, type=socket.SOCK_STREAM)[0]
            with socket.socket(family) as probe:
                # As the server does: a port in TIME_WAIT counts as free.
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(address)
                return candidate
    if port is not None:
        raise UserError(f"Port {port} of {host} is in use or not allowed: choose another with --port.")
    raise UserError(f"No port from {FIRST_PORT} to {FIRST_PORT + PORTS_TRIED - 1} is free: choose one with --port.")


def _page_for(root: Path, name: str) -> str:
    """The page of a run, comparison or batch, given by id or folder."""
    if not name:
        return "/"
    wanted = Path(name).name
    for run in list_runs(root):
        if wanted == run.run_id:
            return "/timeline?" + urlencode({"run": wanted})
        if wanted in (run.comparison_id, run.batch):
            return "/compare?" + urlencode({"comparison": run.comparison_id})
    raise UserError(f"There is no run or comparison {wanted} in {root}: give its id, or another --runs folder.")


def _start_server(root: Path, host: str, port: int, settings: Lab | None = None) -> subprocess.Popen:
    command, environment = server_command(root, host, port, settings)
    with server_log(root).open("ab") as log:
        # The server ends when the pipe closes, which happens however this process ends.
        return subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=log, stderr=log)


def server_log(root: Path) -> Path:
    """The server's log, including tracebacks of pages; a long log is rotated.

    For a folder that cannot be written to, it is in the temporary folder.
    """
    file = root / FOLDER / "server.log"
    try:
        file.parent.mkdir(exist_ok=True)
        if file.exists() and file.stat().st_size > LONGEST_LOG:
            file.replace(file.with_suffix(".old.log"))
        file.open("ab").close()
        if shutil.disk_usage(root).free > LEAST_FREE:  # else writing the log would end the server
            return file
    except OSError:
        pass
    return Path(tempfile.gettempdir()) / f"kvlab-server-{os.getpid()}.log"


def _wait_until_ready(server: subprocess.Popen, address: str, root: Path) -> None:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    deadline = time.monotonic() + READY_SECONDS
    while time.monotonic() < deadline:
        if server.poll() is not None:
            raise UserError(f"The dashboard's server ended while starting: {_last_words(root)}")
        with contextlib.suppress(urllib.error.URLError, OSError), opener.open(f"{address}/_stcore/health", timeout=2):
            return
        time.sleep(0.2)
    raise UserError(f"The dashboard's server did not answer within {READY_SECONDS:.0f} seconds: try again.")


def _look_after(server: subprocess.Popen, root: Path) -> None:
    """Restart the worker whenever it died, until the server ends."""
    last_error = ""
    while server.poll() is None:
        try:
            ensure_worker(root)
        except UserError as error:
            if str(error) != last_error:
                typer.echo(f"kvlab: {error}", err=True)
            last_error = str(error)
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.wait(LOOK_AFTER_SECONDS)
    raise UserError(f"The dashboard's server ended: {_last_words(root)}")


def _last_words(root: Path) -> str:
    """The last line of the server's log."""
    lines = [line.strip() for line in tail(server_log(root), 40) if line.strip()]
    return f"{lines[-1] if lines else 'no output'} (the log is {server_log(root)})."
