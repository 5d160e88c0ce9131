"""The dashboard's server: `app/served.py`, until standard input closes, which it does with `kvlab app`.

Killed outright, `kvlab app` cannot stop what it started: so the server itself watches the pipe to it.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
from pathlib import Path

from streamlit.web import cli

COLLECT_SECONDS = 10.0


def end_with_the_pipe() -> None:
    """End this process once nobody holds the other end of standard input."""
    sys.stdin.buffer.read()
    os._exit(0)


def collect_now_and_then() -> None:
    """Look for garbage every few seconds in which pages ran.

    Streamlit does it after every run, which took seven tenths of a busy server's time.
    """
    seen = 0
    while True:
        time.sleep(COLLECT_SECONDS)
        if (young := gc.get_stats()[1]["collections"]) != seen:
            gc.collect()
            seen = young


if __name__ == "__main__":
    # Uvicorn would take the address in X-Forwarded-For for the caller's own; the gate asks for the connection's.
    os.environ["FORWARDED_ALLOW_IPS"] = ""
    threading.Thread(target=end_with_the_pipe, daemon=True).start()
    threading.Thread(target=collect_now_and_then, daemon=True).start()
    sys.argv = ["streamlit", "run", str(Path(__file__).with_name("served.py")), *sys.argv[1:]]
    sys.exit(cli.main())
