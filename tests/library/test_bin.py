"""Deleting loses nothing until the bin is emptied."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kvlab.core.errors import UserError
from kvlab.library import recycle_bin as rubbish
from kvlab.library.find import list_all
from kvlab.trace.catalogue import list_comparisons
from kvlab.trace.user_labels import change_labels, load_labels
from tests.library.conftest import comparison


def contents(root: Path) -> dict[str, bytes]:
    hidden = ("catalogue.sqlite", ".lock")
    return {
        str(file.relative_to(root)): file.read_bytes()
        for file in root.rglob("*") if file.is_file() and not file.name.startswith(hidden)
    }  # fmt: skip


@pytest.mark.parametrize(("kind", "name"), [("comparison", "one"), ("evaluation", "needles"), ("benchmark", "speed")])
def test_what_was_deleted_comes_back_to_the_byte(kept: Path, kind: str, name: str):
    change_labels(kept, name, kind, note="mine")
    before = contents(kept)
    gone = rubbish.delete(kept, kind, [name])
    assert name not in list_all(kept).table["id"].tolist()
    assert gone.bytes == sum(len(data) for file, data in before.items() if not (kept / file).exists())
    assert [one.key for one in rubbish.list_bin(kept)] == [gone.key]
    rubbish.restore_deleted(kept, gone.key)
    assert contents(kept) == before
    assert load_labels(kept, name, kind).note == "mine"


def test_emptying_frees_the_bytes_it_said(kept: Path):
    gone = rubbish.delete(kept, "comparison", ["one"])
    assert rubbish.empty_bin(kept) == gone.bytes
    assert not rubbish.list_bin(kept) and [entry.comparison_id for entry in list_comparisons(kept)] == ["two"]


def test_a_kill_half_way_loses_nothing(kept: Path, monkeypatch: pytest.MonkeyPatch):
    before, moves, real = contents(kept), [], os.rename

    def killed(source: Path, target: Path) -> None:
        moves.append(source)
        if len(moves) == 2:
            raise KeyboardInterrupt
        real(source, target)

    monkeypatch.setattr(rubbish.os, "rename", killed)
    with pytest.raises(KeyboardInterrupt):
        rubbish.delete(kept, "comparison", ["one"])
    monkeypatch.undo()
    (half,) = rubbish.list_bin(kept)
    rubbish.restore_deleted(kept, half.key)
    assert contents(kept) == before


def test_nothing_made_since_is_overwritten(kept: Path):
    gone = rubbish.delete(kept, "comparison", ["one"])
    comparison(kept, "one", "another")
    with pytest.raises(UserError, match="was created again"):
        rubbish.restore_deleted(kept, gone.key)
    assert rubbish.list_bin(kept) == [gone]


@pytest.mark.parametrize(
    ("kind", "name"),
    [("comparison", "nothing"), ("evaluation", ".."), ("evaluation", "../one"), ("benchmark", ""), ("evaluation", "")],
)
def test_what_is_not_kept_here_is_not_deleted(kept: Path, kind: str, name: str):
    before = contents(kept)
    with pytest.raises(UserError, match="There is no"):
        rubbish.delete(kept, kind, [name])
    assert contents(kept) == before


def test_what_runs_is_not_deleted(kept: Path):
    comparison(kept, "three", status="running", worker_pid=os.getpid())
    assert list_comparisons(kept)[0].status == "running"
    before = contents(kept)
    with pytest.raises(UserError, match="still running"):
        rubbish.delete(kept, "comparison", ["three"])
    assert contents(kept) == before
