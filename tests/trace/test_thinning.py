"""Old recordings lose their arrays and nothing else."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path

import pandas as pd
import pytest
from typer.testing import CliRunner

from kvlab.cli import commands
from kvlab.cli.plan import parse_memory
from kvlab.cli.runs import seconds_of
from kvlab.core.errors import UserError
from kvlab.trace import open_run, thinning
from kvlab.trace.catalogue import list_runs
from kvlab.trace.record import read_record, write_record
from kvlab.trace.schema import TABLES
from kvlab.trace.thinning import DAY
from kvlab.trace.user_labels import change_labels
from kvlab.trace.verify import verify_run
from tests.synthetic.runs import write_synthetic_run

NOW = datetime(2030, 1, 1, tzinfo=UTC).timestamp()


def made(root: Path, name: str, days: float) -> Path:
    """A small run that is so many days old."""
    path = write_synthetic_run(root, comparison_id=name, prompt_tokens=16, steps=2)
    created = datetime.fromtimestamp(NOW - days * DAY, UTC).isoformat(timespec="seconds")
    record = read_record(path).model_copy(update={"created": created})
    write_record(path, record)
    from kvlab.trace import catalogue

    catalogue.upsert(root, record)
    return path


def test_what_is_old_and_not_starred_may_go_the_oldest_first(tmp_path: Path):
    for name, days in (("new", 1), ("old", 40), ("older", 50), ("starred", 60)):
        made(tmp_path, name, days)
    change_labels(tmp_path, "starred", starred=True)
    found = thinning.thinnable(tmp_path, 30 * DAY, NOW)
    assert [run.comparison_id for run in found] == ["older", "old"]


def test_tables_and_texts_stay_and_the_run_says_what_is_gone(tmp_path: Path):
    path = made(tmp_path, "old", 40)
    before = open_run(path)
    tables = {name: before.select(name) for name in TABLES}
    size = sum(file.stat().st_size for file in (path / "arrays").iterdir())
    found = thinning.thinnable(tmp_path, DAY, NOW)
    assert size and thinning.thin(tmp_path, found) == size
    assert not (path / "arrays").exists()
    after = open_run(path, strict=True)
    for name, table in tables.items():
        pd.testing.assert_frame_equal(after.select(name), table)
    for ask in (after.keys, after.values, after.attention):
        with pytest.raises(UserError, match=r"The arrays of this run .* were removed on .* to free space"):
            ask(0, 0)
    assert after.record.thinned_note in after.record.remarks
    assert not after.has_arrays and verify_run(path).problems == ()
    assert thinning.thinnable(tmp_path, DAY, NOW) == [], "once is enough"


def arrays_bytes(path: Path) -> int:
    return sum(file.stat().st_size for file in path.glob("arrays/*"))


def test_the_command_says_first_and_does_then(tmp_path: Path):
    path = made(tmp_path, "old", 40)
    size = arrays_bytes(path)
    command = ["runs", "thin", "--runs", str(tmp_path), "--older-than"]
    dry = CliRunner().invoke(commands, [*command, "30d", "--dry-run"])
    assert dry.exit_code == 0 and "would be removed; nothing was changed" in dry.output and "0 runs" in dry.output
    os.utime(path)  # the age is the record's, not the file's
    record = read_record(path).model_copy(update={"created": "2020-01-01T00:00:00+00:00"})
    write_record(path, record)
    from kvlab.trace import catalogue

    catalogue.rebuild(tmp_path)
    dry = CliRunner().invoke(commands, [*command, "30d", "--dry-run"])
    assert "in 1 runs would be removed" in dry.output and arrays_bytes(path) == size
    done = CliRunner().invoke(commands, [*command, "30d"])
    assert "freed in 1 runs" in done.output and arrays_bytes(path) == 0
    assert len(list_runs(tmp_path)) == 1


@pytest.mark.parametrize(
    ("text", "seconds"), [("30d", 30 * 86400), ("12h", 12 * 3600), ("2w", 14 * 86400), (" 1 d ", 86400)]
)
def test_spans_of_time(text: str, seconds: int):
    assert seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["", "30", "d", "-3d", "3 months", "1e9d", "9" * 40 + "d"])
def test_no_spans_of_time_and_no_amounts(text: str):
    with pytest.raises(UserError, match="is no span of time"):
        seconds_of(text)
    if text != "30":
        with pytest.raises(UserError, match="is not an amount of memory"):
            parse_memory(text)
