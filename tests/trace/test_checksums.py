"""Every file of a run is as it was written, or the reader is told which one is not."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlab.core.errors import UserError
from kvlab.trace import Run, RunWriter, open_run
from kvlab.trace.schema import TABLES, RunRecord
from kvlab.trace.verify import verify_run, verify_runs
from tests.synthetic.runs import write_synthetic_run

SMALL = {"layers": 2, "heads": 1, "prompt_tokens": 12, "steps": 2}
ARRAYS = ("keys", "values", "attention", "history", "hidden", "sampled")
KINDS = (
    "run.json",
    "parts.json",
    *(f"{table}/part-00000.parquet" for table in TABLES),
    *(f"arrays/{name}-layer-001.safetensors" for name in ARRAYS),
)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one of every kind of file: the full cache's run holds the probe, and drops nothing of its own."""
    root = tmp_path_factory.mktemp("sound")
    path = write_synthetic_run(root, method="full", **SMALL)
    record = open_run(path).record
    shutil.rmtree(path)
    events = {"step": [1], "layer": [0], "head": [0], "kind": ["evict"], "source": [3], "target": [-1]}
    return rewritten(root / "again", record, events, write_synthetic_run(root / "arrays", method="full", **SMALL))


def rewritten(root: Path, record: RunRecord, events: dict, other: Path) -> Path:
    """The run of `record` with the tables and arrays of `other` and one event."""
    from safetensors.numpy import load_file

    run = open_run(other)
    writer = RunWriter(root, record.model_copy(update={"status": "running"}))
    for table in ("tokens", "steps", "memory"):
        writer.append(table, {name: column.to_numpy() for name, column in run.select(table).items()})
    writer.append("events", events)
    for file in sorted((other / "arrays").glob("*-layer-*")):
        name, _, number = file.stem.rpartition("-layer-")
        writer.write_arrays(name, int(number), load_file(file))
    writer.finish("complete")
    return writer.path


def copied(sound: Path, root: Path) -> Path:
    return Path(shutil.copytree(sound, root / sound.name))


def reads_everything(run: Run) -> None:
    """Ask for all that a page could."""
    for table in TABLES:
        run.select(table)
    for layer in range(run.record.model.num_hidden_layers):
        run.keys(layer, 0), run.values(layer, 0), run.attention(layer, 0), run.history(layer, 0)
        run.probe("hidden", layer), run.probe("sampled", layer)


def told(path: Path) -> list[str]:
    """Every sentence a reader of this folder gets."""
    try:
        run = open_run(path)
    except UserError as error:
        return [str(error)]
    try:
        reads_everything(run)
    except UserError as error:
        return [*run.problems, str(error)]
    return run.problems


def test_an_ended_run_names_the_hash_of_every_other_file(sound: Path):
    files = {file.relative_to(sound).as_posix(): file for file in sound.rglob("*") if file.is_file()}
    del files["run.json"]
    expected = {name: hashlib.sha256(file.read_bytes()).hexdigest() for name, file in files.items()}
    assert set(KINDS) - {"run.json"} <= set(expected)
    assert json.loads((sound / "run.json").read_text())["checksums"] == expected
    assert told(sound) == []
    assert open_run(sound).unchecked is None


@settings(max_examples=40, deadline=None)
@given(kind=st.sampled_from(KINDS), data=st.data())
def test_one_flipped_bit_is_told_whatever_file_it_is_in(
    sound: Path, tmp_path_factory: pytest.TempPathFactory, kind: str, data: st.DataObject
):
    path = copied(sound, tmp_path_factory.mktemp("flipped"))
    content = bytearray((path / kind).read_bytes())
    place = data.draw(st.integers(0, len(content) - 1), label="place")
    content[place] ^= 1 << data.draw(st.integers(0, 7), label="bit")
    same_meaning = kind == "run.json" and parsed(bytes(content)) == parsed((path / kind).read_bytes())
    (path / kind).write_bytes(content)
    sentences = told(path)
    assert len(sentences) == (0 if same_meaning else 1)
    if not same_meaning:
        assert kind in sentences[0]
        assert verify_run(path).problems


def parsed(text: bytes) -> object:
    """What JSON says, or the bytes themselves; a space that became a line feed says the same."""
    try:
        return json.loads(text)
    except ValueError:
        return text


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("damage", ["gone", "empty", "cut off", "longer", "garbage"])
def test_a_damaged_file_is_told_by_name_and_costs_only_itself(sound: Path, tmp_path: Path, kind: str, damage: str):
    path = copied(sound, tmp_path)
    content = (path / kind).read_bytes()
    if damage == "gone":
        (path / kind).unlink()
    else:
        changed = {"empty": b"", "cut off": content[: len(content) // 2], "longer": content + b"}"}
        (path / kind).write_bytes(changed.get(damage, random.Random(1).randbytes(len(content))))
    sentences = told(path)
    assert len(sentences) == 1
    assert kind in sentences[0]
    assert "\n" not in sentences[0]
    findings = verify_run(path)
    assert len(findings.problems) == 1
    assert kind in findings.problems[0]
    if kind != "run.json":
        run = open_run(path)
        lost = kind.split("/")[0] if "parquet" in kind else None
        assert {table for table in TABLES if len(run.select(table))} == set(TABLES) - {lost}


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("keys-layer-000", "keys-layer-001"),
        ("attention-layer-000", "attention-layer-001"),
        ("keys-layer-000", "values-layer-000"),
    ],
)
def test_swapped_arrays_are_told_and_so_are_values_stored_as_keys(sound: Path, tmp_path: Path, first: str, second: str):
    path = copied(sound, tmp_path)
    run = open_run(path)
    reads_everything(run)
    one, two = (path / "arrays" / f"{name}.safetensors" for name in (first, second))
    assert one.stat().st_size == two.stat().st_size
    os.replace(one, tmp_path / "kept")
    os.replace(two, one)
    os.replace(tmp_path / "kept", two)
    for reader in (run, open_run(path)):
        with pytest.raises(UserError, match=rf"(?s){first}.*checksum does not match"):
            reads_everything(reader)
    assert [first in verify_run(path).problems[0], second in verify_run(path).problems[1]] == [True, True]


def test_a_part_of_another_run_of_the_same_shape_is_told(sound: Path, tmp_path: Path):
    path = copied(sound, tmp_path / "a")
    other = write_synthetic_run(tmp_path / "b", method="h2o", seed=1, **SMALL)
    shutil.copy(other / "steps" / "part-00000.parquet", path / "steps" / "part-00000.parquet")
    assert told(path) == [
        "steps/part-00000.parquet is cut off or damaged, so its rows are left out; the other parts were read."
    ]


def test_a_doubled_part_is_told_and_its_rows_are_not_counted_twice(sound: Path, tmp_path: Path):
    path = copied(sound, tmp_path)
    rows = len(open_run(path).steps)
    for name in ("part-00001.parquet", "part-00000 (copy).parquet"):
        shutil.copy(path / "steps" / "part-00000.parquet", path / "steps" / name)
    run = open_run(path)
    assert len(run.problems) == 2
    assert all("is not one of the parts that this run wrote" in problem for problem in run.problems)
    assert len(run.steps) == rows


def as_of_before(path: Path) -> Path:
    """The folder as kvlab wrote it before runs had checksums."""
    content = json.loads((path / "run.json").read_text())
    del content["checksums"], content["record_checksum"]
    (path / "run.json").write_text(json.dumps(content | {"schema_version": 1}))
    return path


def test_an_older_folder_opens_and_says_that_it_has_no_checksums(sound: Path, tmp_path: Path):
    path = as_of_before(copied(sound, tmp_path))
    run = open_run(path, strict=True)
    reads_everything(run)
    assert run.unchecked == "no checksums: recorded by kvlab of an unknown version"
    assert verify_run(path).verdict == run.unchecked


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda path: garble(path / "steps" / "part-00000.parquet"), "steps/part-00000.parquet is cut off or damaged"),
        (lambda path: swap(path, "events", "memory"), "events/part-00000.parquet"),
        (
            lambda path: shutil.copy(path / "steps" / "part-00000.parquet", path / "steps" / "part-00001.parquet"),
            "steps/part-00001.parquet is not one of the parts",
        ),
        (lambda path: (path / "parts.json").unlink(), "parts.json is missing"),
        *(
            (lambda path, text=text: (path / "parts.json").write_text(text), "parts.json is cut off or damaged")
            for text in (
                "{",
                "[]",
                '{"steps": 5}',
                '{"steps": ["a"]}',
                "[" * 100_000,
                '{"steps": [' + "9" * 9000 + "]}",
            )
        ),
        (
            lambda path: (path / "parts.json").write_text(
                '{"tokens": [3], "steps": [6], "events": [1], "memory": [6]}'
            ),
            "tokens/part-00000.parquet does not hold the 3 rows that parts.json names",
        ),
    ],
)
def test_without_checksums_what_cannot_be_read_is_still_told(
    sound: Path, tmp_path: Path, damage: Callable[[Path], object], sentence: str
):
    path = as_of_before(copied(sound, tmp_path))
    damage(path)
    run = open_run(path)
    assert len(run.problems) in (1, 2)
    assert sentence in run.problems[0]
    for table in TABLES:
        run.select(table)


def garble(part: Path) -> None:
    """Noise between a Parquet file's marks: the footer says what it said."""
    content = part.read_bytes()
    part.write_bytes(content[:4] + bytes(200) + content[204:])


def swap(path: Path, first: str, second: str) -> None:
    one, two = (path / name / "part-00000.parquet" for name in (first, second))
    kept = one.read_bytes()
    one.write_bytes(two.read_bytes())
    two.write_bytes(kept)


@pytest.mark.parametrize("status", ["cancelled", "failed"])
def test_a_run_that_stopped_early_has_checksums_too(tmp_path: Path, status: str):
    path = write_synthetic_run(tmp_path, status=status, **SMALL)
    assert open_run(path, strict=True).unchecked is None
    garble(path / "steps" / "part-00000.parquet")
    assert verify_runs(tmp_path)[0].problems


def test_a_running_run_has_none_yet_and_its_growing_parts_are_read(tmp_path: Path):
    path = write_synthetic_run(tmp_path, status="running", **SMALL)
    run = open_run(path, strict=True)
    assert run.unchecked == "no checksums: the run is still running, or its worker was killed"
    assert len(run.steps)
    (path / "parts.json").unlink()  # as between writing the first part and its list
    assert open_run(path, strict=True).steps.equals(run.steps)


def test_arrays_of_a_running_run_are_not_read_beside_older_tables(tmp_path: Path):
    run = open_run(write_synthetic_run(tmp_path, status="running", **SMALL))
    assert any((run.path / "arrays").iterdir())
    assert not run.has_arrays
    with pytest.raises(UserError, match="still running"):
        run.keys(0, 0)


def test_a_killed_run_says_so_and_is_not_called_damaged(tmp_path: Path):
    record = open_run(write_synthetic_run(tmp_path / "other", **SMALL)).record
    dead = record.model_copy(update={"status": "running", "worker_pid": 2**22 + 1})
    RunWriter(tmp_path, dead)
    (finding,) = verify_runs(tmp_path)
    assert (finding.state, finding.problems) == ("the worker was killed", ())


def test_a_file_is_hashed_once_until_it_changes(sound: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = copied(sound, tmp_path)
    counted: list[str] = []
    digest = hashlib.file_digest
    monkeypatch.setattr(hashlib, "file_digest", lambda file, kind: (counted.append(file.name), digest(file, kind))[1])
    blocks: list[int] = []
    sha256 = hashlib.sha256
    monkeypatch.setattr(hashlib, "sha256", lambda data: (blocks.append(len(data)), sha256(data))[1])

    def hashed() -> tuple[int, int]:
        """Files that were hashed whole and bytes of array files, since this was asked before, to read some keys."""
        counted.clear(), blocks.clear()
        run = open_run(path)
        blocks.clear()  # the record's
        run.keys(0, 0)
        return len(counted), sum(blocks)

    arrays = path / "arrays" / "keys-layer-000.safetensors"
    assert hashed() == (6, arrays.stat().st_size), "4 tables, the list of parts, the sums; one array file"
    assert hashed() == (0, 0)
    os.utime(arrays, ns=(0, 0))
    assert hashed() == (0, arrays.stat().st_size)
    os.utime(path / "parts.json", ns=(0, 0))
    assert hashed() == (1, 0)


def test_no_run_here_is_one_sentence(tmp_path: Path):
    for path in (tmp_path, tmp_path / "nothing"):
        with pytest.raises(UserError, match="There is no run in"):
            verify_runs(path)
