"""Download a hub model's files with progress reports.

The hub's client runs in a separate process (`python -m kvlab.models.downloads`), so that it can be stopped at any time;
it also counts in threads, which cannot report to a queue. Complete files are kept.
"""

from __future__ import annotations

import contextlib
import io
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from huggingface_hub import snapshot_download, try_to_load_from_cache
from huggingface_hub.errors import HfHubHTTPError
from tqdm.auto import tqdm

if TYPE_CHECKING:
    from kvlab.models.sources import Source

WEIGHTS = "model.safetensors"
PARTS = "model.safetensors.index.json"
WANTED = (WEIGHTS, "model-*-of-*.safetensors", "*.json", "*.jinja", "tokenizer*", "*.model", "merges.txt", "vocab.txt")
SECONDS = 0.5  # between two progress reports
STOP_SECONDS = 10.0  # for the client to clean up
COMMAND = (sys.executable, "-P", "-m", "kvlab.models.downloads")

Report = Callable[[str, float, float], None]  # model name, bytes done, total bytes known so far


def fetch(source: Source, report: Report) -> None:
    """Download the files of a hub name if they are missing, reporting bytes done and total to `report`.

    Failed downloads are reported by the code that reads the files next. `report` is called every half second; an
    exception in it ends the download, and complete files are kept.
    """
    if source.folder is not None or is_here(source):
        return
    report(source.name, 0, 0)
    arguments = [source.where, json.dumps({"revision": source.revision, "cache_dir": source.cache_dir})]
    process = subprocess.Popen([*COMMAND, *arguments], stdout=subprocess.PIPE, text=True)
    reported = [0.0, 0.0]  # bytes done and total, the latest of the process
    assert process.stdout is not None
    listener = threading.Thread(target=_read_progress, args=(process.stdout, reported), daemon=True)
    listener.start()
    try:
        while process.poll() is None:
            time.sleep(SECONDS)
            report(source.name, *reported)
        report(source.name, *reported)
    finally:
        if process.poll() is None:
            process.terminate()  # the client then removes partial files
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(STOP_SECONDS)
        process.kill()
        process.wait()
        listener.join()


def _read_progress(lines: IO[str], reported: list[float]) -> None:
    for line in lines:
        with contextlib.suppress(ValueError):  # two of the client's threads may write at once
            done, total = (float(number) for number in line.split())
            reported[:] = done, total


def download(where: str, revision: str | None, cache_dir: str | None, tell: Callable[[float, float], None]) -> None:
    """Download the files of a hub name, reporting bytes done and total; unavailable files are skipped."""
    # The hub's client counts bytes on one or several bars, which are silent.
    bars: dict[int, tuple[float, float]] = {}
    reported = [0.0, 0.0]  # time and total of the last report

    class Bar(tqdm):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            kwargs.pop("name", None)  # only the hub's own bars have it
            super().__init__(*args, **(kwargs | {"file": io.StringIO(), "disable": False}))

        def update(self, n: float | None = 1) -> bool | None:
            shown = super().update(n)
            self._report()
            return shown

        def refresh(self, *args: Any, **kwargs: Any) -> bool:
            self._report()  # the total grew
            return super().refresh(*args, **kwargs)

        def _report(self) -> None:
            if self.unit == "B" and self.total:
                bars[id(self)] = (self.n, self.total)
                done, total = max(bars.values())
                if time.monotonic() - reported[0] > SECONDS or done >= total or total != reported[1]:
                    reported[:] = time.monotonic(), total
                    tell(done, total)

    with contextlib.suppress(HfHubHTTPError, OSError, ValueError):
        snapshot_download(where, revision=revision, cache_dir=cache_dir, allow_patterns=list(WANTED), tqdm_class=Bar)


def is_here(source: Source) -> bool:
    """Whether all weights of a hub name are on this disk."""
    weights, listed = (
        try_to_load_from_cache(source.where, file, source.cache_dir, source.revision) for file in (WEIGHTS, PARTS)
    )
    if not isinstance(listed, str):
        return isinstance(weights, str)
    parts = Path(listed)
    try:
        named = set(json.loads(parts.read_text(encoding="utf-8"))["weight_map"].values())
    except (OSError, ValueError, KeyError, AttributeError):
        return False
    return all((parts.parent / part).is_file() for part in named)


if __name__ == "__main__":
    asked_to_stop = threading.Event()

    def stop(*_: object) -> None:
        asked_to_stop.set()
        raise KeyboardInterrupt

    def tell(done: float, total: float) -> None:
        if asked_to_stop.is_set():
            raise KeyboardInterrupt  # in the download threads, which are not interrupted otherwise
        print(f"{done} {total}", flush=True)

    signal.signal(signal.SIGTERM, stop)
    with contextlib.suppress(KeyboardInterrupt):
        download(sys.argv[1], **json.loads(sys.argv[2]), tell=tell)
