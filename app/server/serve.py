"""The dashboard's server: `app/asgi.py`, until standard input closes, which it does with `kvlab app`.

Killed outright, `kvlab app` cannot stop what it started: so the server itself watches the pipe to it.
"""

from __future__ import annotations

import ctypes
import gc
import os
import sys
import threading
import time
from pathlib import Path

from streamlit.web import cli

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from app.server import preimport

COLLECT_SECONDS = 10.0
ARENA_MAX, ARENAS = -8, 2  # glibc's name of the setting, and the heaps that all threads share
MMAP_THRESHOLD, OWN_PAGES = -3, 64 << 10  # and the bytes from which a block has pages of its own


def end_with_the_pipe() -> None:
    """End this process once nobody holds the other end of standard input."""
    sys.stdin.buffer.read()
    os._exit(0)


def glibc() -> ctypes.CDLL | None:
    """The C library where it is glibc, which can be told how to keep memory; elsewhere None."""
    try:
        found = ctypes.CDLL("libc.so.6")
        return found if hasattr(found, "malloc_trim") and hasattr(found, "mallopt") else None
    except OSError:
        return None


def collect_now_and_then() -> None:
    """Every few seconds in which pages ran look for garbage, and give the system back what is free.

    Streamlit collects after every run, which took seven tenths of a busy server's time.
    """
    seen, library = 0, glibc()
    while True:
        time.sleep(COLLECT_SECONDS)
        if (young := gc.get_stats()[1]["collections"]) != seen:
            gc.collect()
            if library is not None:
                library.malloc_trim(0)
            seen = young


if __name__ == "__main__":
    # Uvicorn would take the address in X-Forwarded-For for the caller's own; the gate asks for the connection's.
    os.environ["FORWARDED_ALLOW_IPS"] = ""
    # A heap for each thread would keep what each of some thirty has freed, and so do the holes that arrays leave in
    # one: the size from which they lie beside it grows with each that is freed, unless it is given.
    if (library := glibc()) is not None:
        library.mallopt(ARENA_MAX, ARENAS)
        library.mallopt(MMAP_THRESHOLD, OWN_PAGES)
    for work in (end_with_the_pipe, collect_now_and_then):
        threading.Thread(target=work, daemon=True).start()
    preimport.begin()
    sys.argv = ["streamlit", "run", str(ROOT / "app" / "asgi.py"), *sys.argv[1:]]
    sys.exit(cli.main())
