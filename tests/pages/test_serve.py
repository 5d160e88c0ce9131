"""What the server does beside pages."""

from __future__ import annotations

import ctypes
import platform
from importlib.util import find_spec
from pathlib import Path

import pytest

from app import serve


def test_what_a_page_begins_with_is_read_ahead(tmp_path: Path):
    script = tmp_path / "page.py"
    script.write_text("import json, os.path\nfrom app.parts import page\ndef late():\n    import torch\nimport csv\n")
    assert list(serve.imported(script)) == ["json", "os.path", "app.parts", "csv"]


def test_every_page_names_modules_that_are_there():
    names = {name for page in serve.PAGES.glob("*.py") for name in serve.imported(page)}
    assert "app.parts.paper" in names and len(names) > 20
    assert all(find_spec(name) for name in names)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library keeps memory in its own way")
def test_glibc_takes_the_setting_of_its_heaps_and_gives_free_memory_back():
    library = serve.glibc()
    assert isinstance(library, ctypes.CDLL)
    assert library.mallopt(serve.ARENA_MAX, serve.ARENAS) == 1
    assert library.malloc_trim(0) in (0, 1)
