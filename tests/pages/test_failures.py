"""A page that fails: a box without the server's folders, and the traceback where the server's log is written."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from streamlit import config
from streamlit.testing.v1 import AppTest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def as_served() -> Iterator[None]:
    """Errors as the server's own settings have them; a test's process does not read these."""
    settings = tomllib.loads((ROOT / "app" / ".streamlit" / "config.toml").read_text())
    before = {name: config.get_option(name) for name in ("client.showErrorDetails", "logger.enableRich")}
    for name in before:
        section, option = name.split(".")
        config.set_option(name, settings[section][option])
    yield
    for name, value in before.items():
        config.set_option(name, value)


def test_the_traceback_is_said_to_the_log_and_not_to_the_reader(
    runs_root: Path,
    open_page: Callable[..., AppTest],
    as_served: None,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def broken(_root: Path) -> None:
        raise RuntimeError("in a folder of the server")

    monkeypatch.setattr("app.new_run.model_section.local_models", broken)
    page = open_page("new_run")
    (box,) = page.exception
    assert "recorded in the logs" in box.message and "folder of the server" not in box.message
    assert not "".join(box.stack_trace)
    (said,) = [record for record in caplog.records if record.exc_info]
    assert "in a folder of the server" in caplog.text and "Traceback (most recent call last)" in caplog.text
    assert "new_run.py" in caplog.text and said.name.startswith("streamlit")
