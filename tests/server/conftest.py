"""What these tests share: lab files, and who acts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kvlab.common.lab import ALONE, VARIABLE, User, acting_for, set_current_user

PEOPLE = """
[people]
way = "proxy"
header = "X-Forwarded-User"
"""


@pytest.fixture
def write_lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Puts a lab file in force for this test."""

    def written(text: str = PEOPLE) -> Path:
        file = tmp_path / "lab.toml"
        file.write_text(text)
        monkeypatch.setenv(VARIABLE, str(file))
        return file

    return written


@pytest.fixture(autouse=True)
def nobody_acts() -> Iterator[None]:
    """Undo, for this test, what a page opened by an earlier test of this process has set: who acts."""
    with acting_for(ALONE):
        yield


@pytest.fixture
def act_as() -> Iterator[Callable[..., None]]:
    """From now on this person acts; the terminal of the server is "", and owns all."""
    yield lambda name: set_current_user(lambda: User(name, owns_all=not name))
    set_current_user(lambda: ALONE)
