"""Folders that cannot be written to can be looked at: read-only, or on a full disk."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from kvlab.core.errors import UserError
from kvlab.trace import catalogue, index
from kvlab.trace.record import read_record
from kvlab.trace.writer import RunWriter
from tests.synthetic.runs import write_synthetic_run

PAGES = ("start", "runs", "compare", "new_run")


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A small disk of its own with a comparison, without an index."""
    root = tmp_path / "disk"
    root.mkdir()
    if (
        not shutil.which("mount")
        or subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(root)], capture_output=True, check=False
        ).returncode
    ):
        pytest.skip("no small disk can be mounted here: only root of a machine or container with that right may")
    for method in ("full", "h2o"):
        write_synthetic_run(root, method=method, comparison_id="one", prompt_tokens=16, steps=2)
    for file in root.glob("catalogue*"):
        file.unlink()
    monkeypatch.setenv("KVLAB_RUNS", str(root))
    yield root
    subprocess.run(["umount", str(root)], check=True)


def made_read_only(root: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(root)], check=True)


def filled(root: Path) -> None:
    with (root / "filler").open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(b"x" * 4096)


@pytest.mark.parametrize("spoilt", [made_read_only, filled])
def test_what_is_there_is_listed_and_shown_and_nothing_is_left_behind(
    disk: Path, spoilt: Callable[[Path], None], open_page: Callable
):
    record = read_record(disk / catalogue.list_runs(disk)[0].run_id)
    for file in disk.glob("catalogue*"):
        file.unlink()
    spoilt(disk)
    there = sorted(os.listdir(disk))
    assert len(catalogue.list_runs(disk)) == 2
    for name in PAGES:
        page = open_page(name, comparison="one")
        assert not page.exception, name
        said = [element.value for element in page.warning]
        assert any("is not writable" in sentence for sentence in said), name
        if name == "start":
            assert any("h2o" in element.value for element in page.caption), "comparisons are listed without a queue"
    with pytest.raises(UserError, match=r"full|Read-only"):
        RunWriter(disk, record.model_copy(update={"run_id": "refused"}))
    assert [name for name in sorted(os.listdir(disk)) if name not in (*there, ".jobs", index.FILE)] == []


def test_an_index_that_was_kept_in_memory_is_written_once_there_is_room(disk: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(index, "AGAIN_SECONDS", 0.0)
    filled(disk)
    assert len(catalogue.list_runs(disk)) == 2 and index.index_note(disk)
    (disk / "filler").unlink()
    assert len(catalogue.list_runs(disk)) == 2 and not index.index_note(disk)
    assert (disk / index.FILE).exists()
