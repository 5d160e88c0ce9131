"""Plug-ins in this process: what a test loads is forgotten behind it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kvlab.core.plugins import load
from kvlab.core.plugins.load import FILES
from kvlab.core.plugins.origin import undo


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Path]]:
    """`plugin(code, name)` writes a file and names it to this process."""
    monkeypatch.setenv(FILES, "")
    known, answered = dict(load._loaded), set(load._answered)

    def write(code: str, name: str = "mine") -> Path:
        from kvlab.core.plugins.load import name_files

        path = tmp_path / f"{name}.py"
        path.write_text(code)
        name_files([path])
        return path

    yield write
    load._answered.intersection_update(answered)
    for key in set(load._loaded) - set(known):
        undo(load._loaded.pop(key).origin)
