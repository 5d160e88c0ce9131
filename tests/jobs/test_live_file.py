"""The texts of a running job as a file: whole or not there for a reader, gone with the job, never an error."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from kvlab import jobs
from kvlab.core.choice import MethodChoice
from kvlab.jobs import queue_db, worker
from kvlab.jobs.job_reporter import live_path, read_live, remove_live, write_live
from kvlab.requests.compare import CompareRequest, Progress
from kvlab.requests.live_texts import LiveText, LiveTexts
from tests.jobs.by_hand import work_off

LIVE = LiveTexts(title="1 of 3: a lamp", texts=(LiveText(label="h2o 20 %", method="h2o", text="It is é.", held=0.2),))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / queue_db.FOLDER).mkdir()
    return tmp_path


def test_what_is_written_is_read_and_removed(root: Path):
    assert read_live(root, "job") is None
    write_live(root, "job", LIVE)
    assert read_live(root, "job") == LIVE
    assert [path.name for path in (root / queue_db.FOLDER).iterdir()] == ["job.live.json"]
    remove_live(root, "job")
    remove_live(root, "job")
    assert read_live(root, "job") is None


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b'{"texts": [{"label": 3}]}', b"\xff\xfe", b"\0" * 100])
def test_a_damaged_file_is_no_text(root: Path, damage: bytes):
    live_path(root, "job").write_bytes(damage)
    assert read_live(root, "job") is None


def test_a_file_cut_anywhere_is_no_text(root: Path):
    whole = LIVE.model_dump_json().encode()
    for length in range(len(whole)):
        live_path(root, "job").write_bytes(whole[:length])
        assert read_live(root, "job") is None


def test_a_reader_sees_only_whole_files_while_they_are_replaced(root: Path):
    texts = [LIVE.model_copy(update={"title": "x" * length}) for length in (10, 100_000)]
    write_live(root, "job", texts[0])
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            for live in texts:
                write_live(root, "job", live)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        assert all(read_live(root, "job") in texts for _ in range(200))
    finally:
        stop.set()
        writer.join()


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path: Path):
    write_live(tmp_path / "nowhere", "job", LIVE)
    assert read_live(tmp_path / "nowhere", "job") is None


def test_a_job_tells_its_texts_until_it_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    seen: list[LiveTexts | None] = []

    def compare(request: CompareRequest, root: Path, *, progress: Any, comparison_id: str, **_: Any) -> list[Path]:
        seen.append(read_live(tmp_path, comparison_id))
        progress(Progress(stage="decoding", done=1, total=2, live=LIVE))
        seen.append(read_live(tmp_path, comparison_id))
        progress(Progress(stage="decoding", done=1, total=2))  # nothing new: the last texts stay
        seen.append(read_live(tmp_path, comparison_id))
        return []

    monkeypatch.setattr(worker, "load_function", lambda _: compare)
    job = jobs.submit(tmp_path, CompareRequest(prompt="x", choices=(MethodChoice(method="h2o"),)))
    write_live(tmp_path, job, LIVE)  # by a worker that was killed
    work_off(tmp_path, "stand_in:compare")
    status = jobs.status(tmp_path, job)
    assert (status.state, seen) == ("complete", [None, LIVE, LIVE])
    assert status.progress is not None and status.progress.live is None, "the queue's table has no texts"
    assert read_live(tmp_path, job) is None
