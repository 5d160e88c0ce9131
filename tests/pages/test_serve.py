"""What the server does beside pages."""

from __future__ import annotations

import ctypes
import platform
import threading
from importlib.util import find_spec
from pathlib import Path

import pytest

from app.server import preimport, serve


def test_what_a_page_begins_with_is_read_ahead(tmp_path: Path):
    script = tmp_path / "page.py"
    script.write_text("import json, os.path\nfrom app.parts import page\ndef late():\n    import torch\nimport csv\n")
    assert list(preimport.imported_modules(script)) == ["json", "os.path", "app.parts", "csv"]


@pytest.mark.parametrize("error", [None, ImportError("a page that cannot be read")])
def test_no_page_runs_before_all_is_read(monkeypatch: pytest.MonkeyPatch, error: Exception | None):
    """Two threads that import the same at once get half a module; a page that fails says so itself, in its place."""
    preimport.wait()  # nobody began: pages of these tests, and of `streamlit run`, wait for nothing
    begun, go_on, ran = threading.Event(), threading.Event(), threading.Event()

    def read(name: str) -> None:
        begun.set()
        go_on.wait(10)
        if error:
            raise error

    monkeypatch.setattr(preimport, "_started", threading.Event())
    monkeypatch.setattr(preimport, "_finished", threading.Event())
    monkeypatch.setattr(preimport, "import_module", read)
    monkeypatch.setattr(preimport, "server_is_running", lambda: True)
    monkeypatch.setattr(threading, "excepthook", lambda told: None)
    preimport.begin()
    assert begun.wait(10)
    page = threading.Thread(target=lambda: (preimport.wait(), ran.set()))
    page.start()
    assert not ran.wait(0.1)
    go_on.set()
    assert ran.wait(10)


def test_every_page_names_modules_that_are_there():
    names = {name for page in preimport.ENTRIES.glob("*.py") for name in preimport.imported_modules(page)}
    assert "app.base.links" in names and len(names) > 20
    assert all(find_spec(name) for name in names)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library keeps memory in its own way")
def test_glibc_takes_the_setting_of_its_heaps_and_gives_free_memory_back():
    library = serve.glibc()
    assert isinstance(library, ctypes.CDLL)
    assert library.mallopt(serve.ARENA_MAX, serve.ARENAS) == 1
    assert library.malloc_trim(0) in (0, 1)
