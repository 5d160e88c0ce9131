"""A download tells how far it is; a stand-in for the hub's client gives the bytes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvlab.engine.watch import before_steps
from kvlab.models import downloads
from kvlab.models.downloads import fetch, is_here
from kvlab.models.sources import Source
from kvlab.requests import Progress

GB = 10**9


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(downloads, "SECONDS", -1)


def client(monkeypatch: pytest.MonkeyPatch, asked: list[dict[str, Any]], error: Exception | None = None) -> None:
    """Counts files on one bar and bytes on two, as the hub's client does: what is received, and what is written."""

    def download(repo: str, *, tqdm_class: Any, **options: Any) -> str:
        asked.append({"repo": repo, **options})
        received, written = (
            tqdm_class(total=0, unit="B", unit_scale=True, desc=name, name=f"hub.{name}") for name in ("get", "put")
        )
        files = tqdm_class(total=2, desc="Fetching 2 files")
        for _ in range(2):
            for bar in (received, written):
                bar.total += 8 * GB
                bar.update(4 * GB)
            if error is not None:
                raise error
            for bar in (received, written):
                bar.update(4 * GB)
            files.update(1)
        return "there"

    monkeypatch.setattr(downloads, "snapshot_download", download)


def test_bytes_done_and_to_come_are_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Any) -> None:
    asked: list[dict[str, Any]] = []
    client(monkeypatch, asked)
    said: list[Progress] = []
    fetch(Source("somebody/large", "v2", str(tmp_path)), before_steps(said.append))
    told = [progress.stage for progress in said]
    assert told[0] == "downloading somebody/large" and told[-1] == "downloading somebody/large: 16.0 GB of 16.0 GB"
    assert "downloading somebody/large: 12.0 GB of 16.0 GB" in told
    assert len(asked) == 1 and (asked[0]["repo"], asked[0]["revision"]) == ("somebody/large", "v2")
    assert capsys.readouterr() == ("", ""), "the client's own bars are not shown"


def test_what_cannot_be_had_is_left_to_the_reader_and_a_stop_passes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    source = Source("somebody/large", None, str(tmp_path))
    client(monkeypatch, [], OSError("no room"))
    fetch(source, lambda *_: None)

    class Stop(Exception):
        pass

    def stop(*_: object) -> None:
        raise Stop

    with pytest.raises(Stop):
        fetch(source, stop)


def test_nothing_is_fetched_that_is_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A folder, and a hub name all of whose parts lie in the cache; with a part missing it is fetched."""
    asked: list[dict[str, Any]] = []
    client(monkeypatch, asked)
    told: list[Any] = []

    def report(*words: object) -> None:
        told.append(words)

    fetch(Source(str(tmp_path)), report)
    cache = tmp_path / "cache"
    snapshot = cache / "models--somebody--small" / "snapshots" / ("a" * 40)
    snapshot.mkdir(parents=True)
    refs = cache / "models--somebody--small" / "refs"
    refs.mkdir()
    (refs / "main").write_text("a" * 40)
    parts = {"weight_map": {"one": "model-1-of-2.safetensors", "two": "model-2-of-2.safetensors"}}
    (snapshot / "model.safetensors.index.json").write_text(json.dumps(parts))
    (snapshot / "model-1-of-2.safetensors").touch()
    source = Source("somebody/small", None, str(cache))
    assert not is_here(source)
    (snapshot / "model-2-of-2.safetensors").touch()
    assert is_here(source)
    fetch(source, report)
    assert not told and not asked
