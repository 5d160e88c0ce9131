"""The queue's SQLite file stays off shared disks."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvlab.core.errors import UserError
from kvlab.jobs import queue_db
from kvlab.jobs.queue_db import queue_folder, queue_note, shared_disk


@pytest.fixture
def mounts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A shared disk at `tmp_path/lab`, with a local one inside, and a name with a space in it."""
    lines = [
        "/dev/sda / ext4 rw 0 0",
        f"host:/x {tmp_path}/lab nfs4 rw 0 0",
        f"tmpfs {tmp_path}/lab/scratch tmpfs rw 0 0",
        f"fs {tmp_path}/with\\040space lustre rw 0 0",
    ]
    path = tmp_path / "mounts"
    path.write_text("\n".join(lines))
    monkeypatch.setattr(queue_db, "MOUNTS", path)
    return tmp_path


def test_the_innermost_mount_says_whether_a_disk_is_shared(mounts: Path) -> None:
    found = {name: shared_disk(mounts / name) for name in ("lab/runs", "lab/scratch/runs", "labour", "with space/runs")}
    assert found == {"lab/runs": "nfs4", "lab/scratch/runs": None, "labour": None, "with space/runs": "lustre"}


def test_a_queue_of_runs_on_a_shared_disk_lies_on_this_machines(mounts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(queue_db.ELSEWHERE, str(mounts / "own"))
    shared, other, plain = mounts / "lab" / "runs", mounts / "lab" / "more", mounts / "runs"
    assert queue_folder(plain) == plain / ".jobs" and queue_note(plain) == ""
    with queue_db.database(shared), queue_db.database(plain):
        pass
    assert (plain / ".jobs" / "queue.sqlite").is_file() and not (shared / ".jobs" / "queue.sqlite").exists()
    own = queue_folder(shared)
    assert (own / "queue.sqlite").is_file() and own.parent == mounts / "own" and own != queue_folder(other)
    assert own.stat().st_mode & 0o077 == 0
    note = queue_note(shared)
    assert "nfs4" in note and str(own) in note


def test_without_a_disk_of_its_own_it_is_a_sentence(mounts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(queue_db.ELSEWHERE, str(mounts / "with space" / "queue"))
    with pytest.raises(UserError, match=r"lustre.* name a folder on this machine's own disk in KVLAB_QUEUE"):
        queue_folder(mounts / "lab" / "runs")
