"""One bad folder, one bad row or one bad page of the index never hides the other runs."""

from __future__ import annotations

import json
import random
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from kvlab.core.errors import UserError
from kvlab.trace import catalogue, open_run
from kvlab.trace.catalogue import (
    comparisons_with,
    keep_results,
    left_out,
    list_comparisons,
    list_runs,
    rebuild,
    results,
    upsert,
)
from kvlab.trace.index import FILE, RESULTS
from kvlab.trace.record import read_record, write_record
from tests.synthetic.runs import write_synthetic_run

SMALL = {"layers": 1, "heads": 1, "prompt_tokens": 6, "steps": 1, "level": "light"}
METHODS = ("full", "h2o", "keepkv")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("made")
    for comparison in ("first", "second"):
        for method in METHODS:
            write_synthetic_run(root, method=method, comparison_id=comparison, **SMALL)
    return root


@pytest.fixture
def root(made: Path, tmp_path: Path) -> Path:
    """Two comparisons of three runs with their index, as one file."""
    target = Path(shutil.copytree(made, tmp_path / "runs"))
    with closing(sqlite3.connect(target / FILE)) as database:
        database.execute("PRAGMA journal_mode = DELETE")
    return target


def names(root: Path) -> set[str]:
    return {run.run_id for run in list_runs(root)}


def folders(root: Path) -> set[str]:
    return {path.name for path in root.iterdir() if path.is_dir()}


BAD_RECORDS = {
    "a budget above 2^63": {"budget": 2**63},
    "a budget that is no number": {"budget": float("nan")},
    "a huge integer": {"prompt_tokens": 10**30},
    "a lone surrogate": {"title": "\ud800"},
    "a bad date": {"created": "2026-99-99"},
    "a date without a zone": {"created": "2026-01-01"},
    "an id of another folder": {"run_id": "../../etc"},
    "an unknown status": {"status": "eaten"},
    "a huge process id": {"status": "running", "worker_pid": 10**30},
}


@pytest.mark.parametrize("bad", [*BAD_RECORDS, "deep JSON", "an integer of 9,000 digits", "nothing", "a folder"])
def test_a_bad_record_hides_only_itself(root: Path, bad: str):
    file = root / "first-full-100pc-0" / "run.json"
    content = json.loads(file.read_text())
    del content["record_checksum"]
    texts = {"deep JSON": "[" * 100_000, "an integer of 9,000 digits": '{"seed": ' + "9" * 9000 + "}", "nothing": ""}
    file.unlink()
    if bad == "a folder":
        file.mkdir()
    else:
        file.write_text(texts.get(bad) or (json.dumps(content | BAD_RECORDS[bad]) if bad in BAD_RECORDS else ""))
    problems = rebuild(root)
    assert len(problems) == 1
    assert str(file.parent) in problems[0]
    others = folders(root) - {"first-full-100pc-0"}
    assert names(root) == others
    assert left_out(root, names(root)) == problems
    assert [len(comparison.runs) for comparison in list_comparisons(root)] == [3, 2]
    assert all(comparison.title for comparison in list_comparisons(root))
    (root / FILE).unlink()
    assert names(root) == others


@pytest.mark.parametrize("damage", ["cut", "changed", "away"])
def test_a_record_damaged_after_it_was_indexed_is_listed_as_failed_until_it_is_whole_again(root: Path, damage: str):
    file = root / "first-full-100pc-0" / "run.json"
    whole, before = file.read_text(), list_runs(root)
    assert {run.status for run in before} == {"complete"}
    file.unlink() if damage == "away" else file.write_text(
        whole[: len(whole) // 2] if damage == "cut" else whole.replace('"complete"', '"running"')
    )
    failed = [run for run in list_runs(root) if run.status == "failed"]
    assert [(run.run_id, str(file.parent) in run.message) for run in failed] == [(file.parent.name, True)]
    file.write_text(whole)
    assert list_runs(root) == before


def test_a_record_written_beside_the_index_is_listed_as_it_is(root: Path):
    record = read_record(root / "first-full-100pc-0")
    write_record(root / record.run_id, record.model_copy(update={"title": "named elsewhere"}))
    assert {run.run_id: run.title for run in list_runs(root)}[record.run_id] == "named elsewhere"


BAD_CELLS = {
    "budget": [None, -1, 1e300, "NaN", b"\x00"],
    "created": [None, "yesterday", "2026-01-01", 5],
    "run_id": ["../../etc", "a/b", "", None],
    "status": ["eaten", None],
    "prompt_tokens": [2**62, -1, None, "x"],
    "worker_pid": [2**62, -5, "x"],
    "title": [None, b"\xff", 5],
}


@pytest.mark.parametrize(("column", "values"), BAD_CELLS.items())
def test_a_bad_cell_of_the_index_is_made_again_from_its_folder(root: Path, column: str, values: list):
    before = list_runs(root)
    for value in values:
        with closing(sqlite3.connect(root / FILE)) as database, database:
            database.execute(f"UPDATE runs SET {column} = ? WHERE run_id = 'first-h2o-25pc-0'", [value])
        assert {run.run_id: run for run in list_runs(root)} == {run.run_id: run for run in before}


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE runs SET title = CAST(x'ff' AS TEXT)",
        "ALTER TABLE runs DROP COLUMN label",
        "ALTER TABLE runs RENAME COLUMN label TO name",
        "ALTER TABLE runs RENAME TO ran",
        "DROP TABLE runs",
        "DROP TABLE runs; CREATE TABLE runs (run_id, comparison_id)",
        "DROP TABLE runs; CREATE VIEW runs AS SELECT 1 AS run_id",
        "INSERT INTO runs (run_id) VALUES ('nothing more')",
        "PRAGMA user_version = 0",
        "PRAGMA user_version = 77",
    ],
)
def test_an_index_of_another_layout_is_made_again(root: Path, change: str):
    with closing(sqlite3.connect(root / FILE)) as database:
        database.executescript(change)
    assert names(root) == folders(root)
    assert rebuild(root) == []
    assert names(root) == folders(root)


def test_every_malformed_page_of_the_index_is_found_while_it_is_used_and_made_again(root: Path):
    record = open_run(root / "first-full-100pc-0").record
    sound = (root / FILE).read_bytes()
    size = int.from_bytes(sound[16:18], "big")
    assert len(sound) // size >= 3
    for page in range(len(sound) // size):
        noise = random.Random(page).randbytes(size)
        (root / FILE).write_bytes(sound[: page * size] + noise + sound[(page + 1) * size :])
        assert names(root) == folders(root), page
        upsert(root, record)  # lists do not look at the pages of the key, a change does
        keep_results(root, [dict.fromkeys(RESULTS) | {"run_id": record.run_id}])
        assert set(results(root)) == {record.run_id}
        assert comparisons_with(root, [record.prompt.split()[0]])
        assert names(root) == folders(root), page
        with closing(sqlite3.connect(root / FILE)) as database:
            assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            database.execute("PRAGMA journal_mode = DELETE")


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9])
def test_a_cut_off_index_is_made_again(root: Path, share: float):
    content = (root / FILE).read_bytes()
    (root / FILE).write_bytes(content[: int(share * len(content))])
    assert names(root) == folders(root)


def test_a_new_run_finds_a_damaged_index_and_makes_it_again(root: Path):
    content = (root / FILE).read_bytes()
    (root / FILE).write_bytes(content[:100] + random.Random(0).randbytes(len(content) - 100))
    write_synthetic_run(root, comparison_id="third", **SMALL)
    assert names(root) == folders(root)
    assert len(folders(root)) == 7


def test_deleted_folders_are_no_longer_listed(root: Path):
    shutil.rmtree(root / "first-h2o-25pc-0")
    shutil.rmtree(root / "second-full-100pc-0")
    assert names(root) == folders(root)
    assert len(names(root)) == 4
    for method in ("full", "keepkv-25pc", "full-100pc"):
        shutil.rmtree(root / f"first-{method}-0", ignore_errors=True)
    assert [comparison.comparison_id for comparison in list_comparisons(root)] == ["second"]


def test_a_record_that_no_index_can_hold_stops_nobody(root: Path):
    record = open_run(root / "first-full-100pc-0").record
    for odd in ({"budget": 2**70}, {"title": "\ud800"}, {"prompt_tokens": 10**30}):
        upsert(root, record.model_copy(update=odd))
    assert names(root) == folders(root)


def test_a_folder_that_forbids_the_index_says_so_and_the_index_stays(root: Path, monkeypatch: pytest.MonkeyPatch):
    def locked(*_: object) -> None:
        error = sqlite3.OperationalError("database is locked")
        error.sqlite_errorcode = sqlite3.SQLITE_BUSY
        raise error

    keep_results(root, [dict.fromkeys(RESULTS) | {"run_id": "first-full-100pc-0"}])
    monkeypatch.setattr(catalogue, "_entries", locked)
    with pytest.raises(UserError, match="database is locked"):
        list_runs(root)
    monkeypatch.undo()
    assert "first-full-100pc-0" in results(root), "the same index: one made again from the folders holds no results"
