"""A download tells how far it is and can be stopped; the hub is a small one on this machine, or a stand-in client."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kvlab.core.errors import UserError
from kvlab.engine.progress import download_reporter
from kvlab.models import downloads
from kvlab.models.downloads import download, fetch, is_here
from kvlab.models.sources import Source
from kvlab.requests.compare import Progress
from tests.models.small_hub import PIECE, SmallHub, small_hub

GB = 10**9


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(downloads, "SECONDS", -1)


def client(monkeypatch: pytest.MonkeyPatch, error: Exception | None = None) -> list[dict[str, Any]]:
    """Counts files on one bar and bytes on two, as the hub's client does: what is received, and what is written."""
    asked: list[dict[str, Any]] = []

    def stand_in(repo: str, *, tqdm_class: Any, **options: Any) -> str:
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

    monkeypatch.setattr(downloads, "snapshot_download", stand_in)
    return asked


def test_bytes_done_and_to_come_are_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Any) -> None:
    asked, told = client(monkeypatch), list[tuple[float, float]]()
    download("somebody/large", "v2", str(tmp_path), lambda *numbers: told.append(numbers))
    assert told[-1] == (16 * GB, 16 * GB) and (12 * GB, 16 * GB) in told
    assert len(asked) == 1 and (asked[0]["repo"], asked[0]["revision"]) == ("somebody/large", "v2")
    assert capsys.readouterr() == ("", ""), "the client's own bars are not shown"


def test_what_cannot_be_had_is_left_to_the_reader(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    client(monkeypatch, OSError("no room"))
    download("somebody/large", None, str(tmp_path), lambda *_: None)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[SmallHub]:
    """Two weight files; the second comes slowly. Only processes that are started ask it."""
    first, second = "model-1-of-2.safetensors", "model-2-of-2.safetensors"
    parts = json.dumps({"weight_map": {"one": first, "two": second}}).encode()
    sizes = {first: b"1" * PIECE, second: b"2" * 40 * PIECE, "model.safetensors.index.json": parts}
    with small_hub(sizes | {"config.json": b"{}"}) as server:
        for name, value in {"HF_ENDPOINT": server.url, "HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1"}.items():
            monkeypatch.setenv(name, value)
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setattr(downloads, "SECONDS", 0.05)
        yield server


def complete(cache: Path) -> set[str]:
    snapshots = cache / "models--somebody--model" / "snapshots"
    return {file.name for file in snapshots.glob("*/*") if file.exists()}


def test_a_stopped_download_says_what_is_kept_and_the_next_goes_on(hub: SmallHub, tmp_path: Path) -> None:
    source, stop = Source("somebody/model", None, str(tmp_path)), threading.Event()
    hub.slow = {"model-2-of-2.safetensors"}
    said: list[str] = []
    threads: set[int] = set()

    def report(progress: Progress) -> None:
        said.append(progress.stage)
        threads.add(threading.get_ident())
        if len(complete(tmp_path)) == 3 and "of 41 MiB" in progress.stage:
            stop.set()

    with pytest.raises(UserError, match=r"stopped at .* of 41 MiB: complete files are kept, .* continues from them"):
        fetch(source, download_reporter(report, stop.is_set))
    assert complete(tmp_path) == {"config.json", "model-1-of-2.safetensors", "model.safetensors.index.json"}
    assert not list(tmp_path.rglob("*.incomplete")) and not is_here(source)
    assert said[0] == "downloading somebody/model" and any("of 41 MiB" in word for word in said)
    assert threads == {threading.get_ident()}, "a queue's connection belongs to the thread that asked"
    hub.slow, before = set(), len(hub.sent)
    fetch(source, download_reporter(report))
    assert is_here(source) and hub.sent[before:] == ["model-2-of-2.safetensors"]


def test_a_hub_that_is_not_there_is_left_to_the_reader(hub: SmallHub, tmp_path: Path) -> None:
    fetch(Source("nobody/model", None, str(tmp_path)), lambda *_: None)
    assert not os.listdir(tmp_path / "models--nobody--model" / "snapshots") if any(tmp_path.iterdir()) else True


def test_nothing_is_fetched_that_is_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A folder, and a hub name all of whose parts lie in the cache; with a part missing it is fetched."""
    monkeypatch.setattr(downloads, "COMMAND", ("false",))
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
    assert not told
