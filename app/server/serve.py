"""The dashboard's server: runs `app/asgi.py` until standard input closes, which happens when `kvlab app` ends.

A killed `kvlab app` cannot stop its server, so the server watches the pipe.
"""

import ctypes
import gc
import os
import sys
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from app.server import preimport
from app.session.streamlit_internals import run_server

COLLECT_SECONDS = 10.0
# the number of `mallopt` for arenas, and how many all threads share
ARENA_MAX = -8
ARENAS = 2
# the bytes from which a block is mapped separately
MMAP_THRESHOLD = -3
OWN_PAGES = 64 << 10


def end_with_the_pipe() -> None:
    """End this process when standard input is closed."""
    sys.stdin.buffer.read()
    os._exit(0)


def glibc() -> ctypes.CDLL | None:
    """The C library if it is glibc, whose allocator can be configured; else None."""
    try:
        library = ctypes.CDLL("libc.so.6")
        return library if hasattr(library, "malloc_trim") and hasattr(library, "mallopt") else None
    except OSError:
        return None


def collect_periodically() -> None:
    """Collect garbage every few seconds in which pages ran, and return free memory to the system.

    Streamlit's collection after every run took 70 % of a busy server's time.
    """
    last = 0
    library = glibc()
    while True:
        time.sleep(COLLECT_SECONDS)
        if (young := gc.get_stats()[1]["collections"]) != last:
            gc.collect()
            if library is not None:
                library.malloc_trim(0)
            last = young


if __name__ == "__main__":
    # Uvicorn would replace the client's address by X-Forwarded-For; the gate needs that of the connection.
    os.environ["FORWARDED_ALLOW_IPS"] = ""
    # An arena for each of some thirty threads would retain freed memory, as would fragmentation by large arrays: glibc
    # raises the threshold for separate mappings with each freed block unless it is set.
    if (library := glibc()) is not None:
        library.mallopt(ARENA_MAX, ARENAS)
        library.mallopt(MMAP_THRESHOLD, OWN_PAGES)
    for work in (end_with_the_pipe, collect_periodically):
        threading.Thread(target=work, daemon=True).start()
    preimport.begin()
    sys.argv = ["streamlit", "run", str(ROOT / "app" / "asgi.py"), *sys.argv[1:]]
    sys.exit(run_server())
