"""Writing a run and reading it back: what went in comes out, and what is cut off costs only itself."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from kvlab.common import atomic_write
from kvlab.core.errors import UserError
from kvlab.trace import Run, RunWriter, catalogue, open_run, writer
from kvlab.trace.schema import HISTORY, TABLES, RunRecord
from tests.synthetic.runs import HEAD_DIM, write_synthetic_run

NUMPY_KINDS = {pa.int16(): np.int16, pa.int32(): np.int32, pa.int64(): np.int64, pa.float32(): np.float32}


def a_record(root: Path, run_id: str = "a") -> RunRecord:
    """A running record as the recorder would make it, taken from a small synthetic run."""
    other = root / "other"
    record = open_run(write_synthetic_run(other, comparison_id=run_id, prompt_tokens=8, steps=1)).record
    return record.model_copy(update={"run_id": run_id, "status": "running", "worker_pid": None})


@st.composite
def some_rows(draw: st.DrawFn) -> tuple[str, dict[str, np.ndarray | list]]:
    """A table's name and random values for a random choice of its columns."""
    table = draw(st.sampled_from(sorted(TABLES)))
    length = draw(st.integers(1, 30))
    names = draw(st.lists(st.sampled_from(TABLES[table].names), min_size=1, unique=True))
    columns: dict[str, np.ndarray | list] = {}
    for name in names:
        kind = TABLES[table].field(name).type
        if name in ("layer", "head"):  # of which the record's model has two each
            columns[name] = draw(hnp.arrays(np.int16, length, elements=st.integers(0, 1)))
        elif name == "phase":  # a record says how many rows each phase it knows may have
            columns[name] = draw(st.lists(st.sampled_from(["", "another"]), min_size=length, max_size=length))
        elif kind == pa.string():
            columns[name] = draw(st.lists(st.text(), min_size=length, max_size=length))
        elif kind == pa.bool_():
            columns[name] = draw(hnp.arrays(bool, length))
        else:
            columns[name] = draw(
                hnp.arrays(NUMPY_KINDS[kind], length, elements={"allow_nan": False} if kind == pa.float32() else None)
            )
    return table, columns


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> RunRecord:
    return a_record(tmp_path_factory.mktemp("record"))


@settings(max_examples=40, deadline=None)
@given(batches=st.lists(some_rows(), min_size=1, max_size=5), flushes=st.lists(st.booleans(), min_size=5, max_size=5))
def test_every_row_comes_back_and_missing_columns_are_null(
    tmp_path_factory: pytest.TempPathFactory, record: RunRecord, batches: list, flushes: list[bool]
):
    writer = RunWriter(tmp_path_factory.mktemp("runs"), record)
    expected: dict[str, list[pd.DataFrame]] = {name: [] for name in TABLES}
    for (table, columns), flush in zip(batches, flushes, strict=False):
        writer.append(table, columns)
        length = len(next(iter(columns.values())))
        empty = {name: [None] * length for name in TABLES[table].names}
        expected[table].append(pd.DataFrame(empty | {name: list(values) for name, values in columns.items()}))
        if flush:
            writer.flush()
    writer.finish("cancelled")
    run = open_run(writer.path, strict=True)
    for table, frames in expected.items():
        found = run.select(table)
        assert list(found.columns) == TABLES[table].names
        assert rows_of(found) == rows_of(pd.concat(frames) if frames else found.iloc[:0])


def rows_of(frame: pd.DataFrame) -> list[str]:
    """The rows as sorted text, so that two frames compare as multisets and null equals null."""
    return sorted(json.dumps([plain(value) for value in row]) for row in frame.itertuples(index=False))


def plain(value: object) -> object:
    if value is None or value is pd.NA or (isinstance(value, float | np.floating) and np.isnan(value)):
        return None
    return value if isinstance(value, str) else float(value)


def test_rows_keep_their_order_within_a_step_layer_and_head(tmp_path: Path):
    writer = RunWriter(tmp_path, a_record(tmp_path))
    random = np.random.default_rng(0)
    for part in range(3):
        step, layer, head = (random.integers(0, n, 200) for n in (4, 2, 2))
        writer.append("events", {"step": step + 4 * part, "layer": layer, "head": head, "source": np.arange(200)})
        writer.flush()
    events = open_run(writer.path).events
    assert events[["step", "layer", "head"]].apply(tuple, axis=1).is_monotonic_increasing
    assert events.groupby(["step", "layer", "head"])["source"].is_monotonic_increasing.all()


def test_select_equals_filtering_the_whole_table(tmp_path: Path):
    run = open_run(write_synthetic_run(tmp_path, layers=3, heads=2, prompt_tokens=100, steps=9))
    for layer, head in ((0, 0), (2, 1), (1, None), (None, 1)):
        whole = run.events
        mask = (whole["layer"] == layer if layer is not None else True) & (
            whole["head"] == head if head is not None else True
        )
        expected = whole[mask][["target", "sag"]].reset_index(drop=True)
        pd.testing.assert_frame_equal(run.select("events", layer, head, ["target", "sag"]), expected)


def test_a_head_s_events_are_what_is_selected_however_rows_lie_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(writer, "ROWS_PER_GROUP", 50)
    run = open_run(write_synthetic_run(tmp_path, layers=3, heads=2, prompt_tokens=100, steps=9))
    for layer in range(3):
        for head in range(2):
            rows = run.events[(run.events["layer"] == layer) & (run.events["head"] == head)]
            expected = rows[list(HISTORY)].reset_index(drop=True)
            pd.testing.assert_frame_equal(run.head_events(layer, head), expected)
    with pytest.raises(UserError, match="no layer 3"):
        run.head_events(3, 0)


def test_the_events_of_one_step_are_those_of_its_rows(tmp_path: Path):
    run = open_run(write_synthetic_run(tmp_path, layers=3, heads=2, prompt_tokens=100, steps=9))
    whole = run.select("events", 1, 1)
    assert set(whole["step"]) >= {0, 9}
    for step in (0, 4, 9, 10):
        expected = whole[whole["step"] == step].reset_index(drop=True)
        pd.testing.assert_frame_equal(run.head_events(1, 1, step), expected)


def test_arrays_come_back_in_half_precision(tmp_path: Path):
    record = a_record(tmp_path)
    heads, tokens, size, steps = 2, 20, HEAD_DIM, 3
    random = np.random.default_rng(1)
    unit, norm = random.normal(size=(heads, tokens, size)), random.normal(size=(heads, tokens))
    true, slot = random.random((2, steps, heads, tokens))
    with RunWriter(tmp_path, record) as writer:
        for name in ("keys", "values"):
            writer.write_arrays(name, 1, {"unit": unit, "norm": norm})
        writer.write_arrays("attention", 1, {"true_mass": true, "slot_mass": slot})
        writer.finish("complete")
    run = open_run(writer.path)
    assert run.has_arrays
    for read in (run.keys, run.values):
        np.testing.assert_array_equal(read(1, 1)[0], unit[1].astype(np.float16))
        np.testing.assert_array_equal(read(1, 1)[1], norm[1].astype(np.float16))
    np.testing.assert_array_equal(run.attention(1, 0)[0], true[:, 0].astype(np.float16))
    np.testing.assert_array_equal(run.attention(1, 0)[1], slot[:, 0].astype(np.float16))


def test_a_cut_off_part_is_named_and_the_others_are_read(tmp_path: Path):
    path = write_three_parts(tmp_path)
    part = path / "steps" / "part-00001.parquet"
    part.write_bytes(part.read_bytes()[:-20])
    run = open_run(path)
    assert run.problems == [
        "steps/part-00001.parquet is cut off or damaged, so its rows are left out; the other parts were read."
    ]
    assert sorted(run.steps["step"].unique()) == [0, 2]
    with pytest.raises(UserError, match="part-00001"):
        open_run(path, strict=True)


@pytest.mark.parametrize("missing", ["part-00000.parquet", "part-00002.parquet"])
def test_a_missing_part_is_named_even_when_it_was_the_last(tmp_path: Path, missing: str):
    path = write_three_parts(tmp_path)
    (path / "steps" / missing).unlink()
    run = open_run(path)
    assert run.problems == [f"steps/{missing} is missing, so its rows are left out; the other parts were read."]
    assert run.steps["step"].nunique() == 2


def write_three_parts(root: Path) -> Path:
    writer = RunWriter(root, a_record(root))
    for step in range(3):
        writer.append("steps", {"step": [step], "layer": [0], "head": [0]})
        writer.flush()
    writer.finish("complete")
    return writer.path


def test_a_folder_that_is_no_run_is_one_sentence(tmp_path: Path):
    for path in (tmp_path, tmp_path / "nothing here"):
        with pytest.raises(UserError, match="is not a run folder"):
            open_run(path)


@pytest.mark.parametrize("keep", [0, 1, 40, 500])
def test_a_cut_off_record_is_one_sentence(tmp_path: Path, keep: int):
    path = write_synthetic_run(tmp_path)
    file = path / "run.json"
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(UserError, match=r"run\.json is cut off or damaged"):
        open_run(path)


def test_a_run_from_a_newer_version_says_so(tmp_path: Path):
    path = write_synthetic_run(tmp_path)
    content = json.loads((path / "run.json").read_text()) | {"schema_version": 99, "a_new_field": 1}
    (path / "run.json").write_text(json.dumps(content))
    with pytest.raises(UserError, match="newer kvlab"):
        open_run(path)


def test_a_layer_head_or_array_that_is_not_there_is_one_sentence(tmp_path: Path):
    full = open_run(write_synthetic_run(tmp_path))
    light = open_run(write_synthetic_run(tmp_path, level="light", method="h2o"))
    with pytest.raises(UserError, match="no layer 2: its layers are numbered 0 to 1"):
        full.keys(2, 0)
    with pytest.raises(UserError, match="no KV head 7"):
        full.select("steps", 0, 7)
    with pytest.raises(UserError, match="level light, without keys"):
        light.keys(0, 0)
    file = full.path / "arrays" / "values-layer-001.safetensors"
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(UserError, match="cut off or damaged"):
        full.values(1, 0)


def full_disk(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("fails_in", ["write_table", "fsync"])
def test_a_full_disk_is_one_sentence_and_what_was_saved_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails_in: str
):
    writer = RunWriter(tmp_path, a_record(tmp_path))
    writer.append("steps", {"step": [0, 1]})
    writer.flush()
    writer.append("steps", {"step": [2]})
    with monkeypatch.context() as patch:
        patch.setattr("kvlab.trace.writer.pq.write_table" if fails_in == "write_table" else "os.fsync", full_disk)
        with pytest.raises(UserError, match="is full: what was saved before stays readable"):
            writer.flush()
    assert not list(writer.path.rglob("*.tmp"))
    run = open_run(writer.path, strict=True)
    assert list(run.steps["step"]) == [0, 1]
    writer.finish("failed", "the disk is full")
    assert list(open_run(writer.path).steps["step"]) == [0, 1, 2], "the rows that did not fit are tried again"


def test_a_disk_that_is_full_at_the_end_never_leaves_a_complete_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    writer = RunWriter(tmp_path, a_record(tmp_path))
    writer.append("steps", {"step": [0]})
    monkeypatch.setattr("kvlab.trace.writer.pq.write_table", full_disk)
    with pytest.raises(UserError, match="is full"):
        writer.finish("complete")
    record = open_run(writer.path).record
    assert record.status == "failed"
    assert "is full" in record.message


def test_a_disk_really_full_is_one_sentence(tmp_path: Path):
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    file = open("/dev/full", "w")  # noqa: SIM115
    with pytest.raises(UserError, match="is full"), atomic_write.full_disk_sentence(tmp_path):
        file.write("x" * 100_000)


KILLED = """
    import os, signal, sys
    from pathlib import Path
    import numpy as np
    from kvlab.trace import RunWriter
    from kvlab.trace.schema import RunRecord
    writer = RunWriter(Path(sys.argv[1]), RunRecord.model_validate_json(sys.argv[2]))
    for step in range(10_000):
        writer.append("steps", {"step": np.full(50, step), "layer": np.arange(50) % 2})
        writer.flush()
        if step == 20:
            print("ready", flush=True)
"""


def test_a_writer_killed_in_the_middle_leaves_every_finished_part_and_is_listed_as_failed(tmp_path: Path):
    record = a_record(tmp_path)
    command = [sys.executable, "-c", textwrap.dedent(KILLED), str(tmp_path / "runs"), record.model_dump_json()]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    assert catalogue.list_runs(tmp_path / "runs")[0].status == "running"
    process.send_signal(signal.SIGKILL)
    process.wait()
    run = open_run(tmp_path / "runs" / record.run_id, strict=True)
    steps = run.steps.groupby("step").size()
    assert len(steps) >= 21
    assert list(steps.index) == list(range(len(steps))), "no step is lost in between"
    assert (steps == 50).all()
    entry = catalogue.list_runs(tmp_path / "runs")[0]
    assert (entry.status, entry.message) == ("failed", "the worker was killed")


@pytest.mark.parametrize(
    ("error", "status"), [(KeyboardInterrupt(), "cancelled"), (RuntimeError("no memory"), "failed")]
)
def test_a_run_that_stops_early_says_how_and_keeps_its_rows(tmp_path: Path, error: BaseException, status: str):
    writer = RunWriter(tmp_path, a_record(tmp_path))
    with pytest.raises(type(error)):
        stop_early(writer, error)
    run = open_run(writer.path, strict=True)
    assert run.record.status == status
    assert len(run.steps) == 1
    assert catalogue.list_runs(tmp_path)[0].status == status


def stop_early(writer: RunWriter, error: BaseException) -> None:
    with writer:
        writer.append("steps", {"step": [0]})
        raise error


def test_a_run_id_is_not_used_twice_and_unknown_names_are_refused(tmp_path: Path):
    record = a_record(tmp_path)
    writer = RunWriter(tmp_path, record)
    with pytest.raises(UserError, match="already something"):
        RunWriter(tmp_path, record)
    with pytest.raises(KeyError, match="no column"):
        writer.append("steps", {"stepp": [1]})
    with pytest.raises(ValueError, match="differ in length"):
        writer.append("steps", {"step": [1], "layer": [1, 2]})


def test_reading_a_run_imports_no_model_code(tmp_path: Path):
    path = write_synthetic_run(tmp_path)
    code = f"import sys; from kvlab.trace import open_run; r = open_run({str(path)!r}); r.steps; r.keys(0, 0); "
    code += "print([name for name in ('torch', 'transformers', 'streamlit', 'plotly') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"


def test_frames_are_read_once_and_only_when_asked(tmp_path: Path):
    run = Run(path := write_synthetic_run(tmp_path), open_run(path).record)
    assert not {"tokens", "steps", "events", "memory"} & set(vars(run))
    assert run.steps is run.steps
