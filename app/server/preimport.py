"""Import the modules of all pages in one thread before any page runs: concurrent imports see half-loaded modules."""

import ast
import threading
import time
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

from app.session.streamlit_internals import server_is_running

MAIN = Path(__file__).parents[1] / "main.py"
ENTRIES = Path(__file__).parents[1] / "entries"
TIMEOUT_SECONDS = 60.0  # after which a page imports for itself

_started = threading.Event()
_finished = threading.Event()


def begin() -> None:
    """Import in a thread once the server runs; call before it starts."""
    _started.set()
    threading.Thread(target=_work, daemon=True).start()


def wait() -> None:
    """Wait until all is imported; returns at once without `begin`, as under `streamlit run`."""
    if _started.is_set():
        _finished.wait(TIMEOUT_SECONDS)


def _work() -> None:
    try:
        while not server_is_running():
            time.sleep(0.02)
        from kvlab.planning import choices

        choices.prefetch()
        scripts = [MAIN, *sorted(ENTRIES.glob("*.py"))]
        for name in dict.fromkeys(name for script in scripts for name in imported_modules(script)):
            import_module(name)
    finally:
        _finished.set()


def imported_modules(script: Path) -> Iterator[str]:
    """The modules that a script imports at the top level."""
    for node in ast.parse(script.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
