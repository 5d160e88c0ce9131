"""What pages are made of is read by one thread, and no page runs before: two that read at once see half a module."""

from __future__ import annotations

import ast
import threading
import time
from collections.abc import Iterable, Iterator
from importlib import import_module
from pathlib import Path

from streamlit import runtime

MAIN = Path(__file__).parents[1] / "main.py"
PAGES = Path(__file__).resolve().parents[2] / "pages"
LONGEST_SECONDS = 60.0  # then a page reads for itself

_started, _finished = threading.Event(), threading.Event()


def begin() -> None:
    """Read in a thread of its own, once the server is there; call before it starts."""
    _started.set()
    threading.Thread(target=_work, daemon=True).start()


def wait() -> None:
    """Until all is read; at once where nobody began, as under `streamlit run`, and ever after."""
    if _started.is_set():
        _finished.wait(LONGEST_SECONDS)


def _work() -> None:
    try:
        while not runtime.exists():
            time.sleep(0.02)
        from kvlab.catalogue import methods

        methods.prefetch()
        read([MAIN, *sorted(PAGES.glob("*.py"))])
    finally:
        _finished.set()


def read(scripts: Iterable[Path]) -> None:
    """Import what these scripts import from when they begin, each module once."""
    for name in dict.fromkeys(name for script in scripts for name in imported(script)):
        import_module(name)


def imported(script: Path) -> Iterator[str]:
    """The modules that a script imports from when it begins."""
    for line in ast.parse(script.read_text(encoding="utf-8")).body:
        if isinstance(line, ast.ImportFrom) and line.module and not line.level:
            yield line.module
        elif isinstance(line, ast.Import):
            yield from (one.name for one in line.names)
