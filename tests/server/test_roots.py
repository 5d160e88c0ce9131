"""Ids and links stay in the folder of runs, whatever they say, and so do links on the disk on a server."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic import ValidationError

from kvlab.core.errors import UserError
from kvlab.evaluation.request import EvalJob
from kvlab.jobs.batch import load_batch
from kvlab.library import archive
from kvlab.library import recycle_bin as rubbish
from kvlab.requests.compare import ImportRequest, RestoreRequest
from kvlab.trace.catalogue import list_runs
from kvlab.trace.schema import RunRecord, check_id
from kvlab.trace.stories import story_path
from kvlab.trace.user_labels import change_labels, load_labels, save_answer
from tests.synthetic.runs import write_synthetic_run

OUTSIDE = ["../x", "..", "/etc/passwd", "a/../../x", "../../../../tmp/x", "a\0b"]
USES: dict[str, Callable[[Path, str], object]] = {
    "an id": lambda root, name: check_id(name),
    "a batch": lambda root, name: load_batch(root, name),
    "labels": lambda root, name: load_labels(root, name),
    "changed labels": lambda root, name: change_labels(root, name, name="x"),
    "an answer": lambda root, name: save_answer(root, name, "a prompt", "an answer"),
    "deleted": lambda root, name: rubbish.delete(root, "comparison", [name]),
    "deleted results": lambda root, name: rubbish.delete(root, "evaluation", [name]),
    "brought back": lambda root, name: rubbish.restore_deleted(root, name),
    "exported": lambda root, name: archive.pack(root, "evaluation", [name], "", root / "out.zip"),
    "searched": lambda root, name: RestoreRequest(run_id=name),
    "imported": lambda root, name: ImportRequest(file=f"{name}.kvlab"),
    "imported from": lambda root, name: ImportRequest(file=f"{'0' * 12}/{name}/x.kvlab"),
    "evaluated": lambda root, name: EvalJob.model_validate({"name": name, "request": {}}),
}


@pytest.mark.parametrize("use", USES)
def test_no_name_leads_outside(use: str, tmp_path: Path) -> None:
    root = tmp_path / "a" / "runs"
    root.mkdir(parents=True)
    (tmp_path / "a" / "x.json").write_text("{}")
    for name in OUTSIDE:
        with pytest.raises((UserError, ValidationError)):
            USES[use](root, name)
    found = {path.relative_to(tmp_path).parts[:2] for path in tmp_path.rglob("*") if path.is_file()}
    assert found <= {("a", "x.json"), ("a", "runs")} and (tmp_path / "a" / "x.json").read_text() == "{}"


@pytest.mark.parametrize("name", [name for name in OUTSIDE if any(map(str.isalnum, name))])
def test_the_name_of_a_story_is_no_path(name: str, tmp_path: Path) -> None:
    assert story_path(tmp_path, name).parent == tmp_path / "stories"


def test_a_run_that_is_linked_from_outside_is_not_shown_on_a_server(
    tmp_path: Path, write_lab: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KVLAB_LAB", raising=False)
    root = tmp_path / "runs"
    write_synthetic_run(root, comparison_id="own", layers=1, heads=1, steps=2, prompt_tokens=8)
    linked = write_synthetic_run(tmp_path / "elsewhere", comparison_id="linked", layers=1, heads=1, steps=2)
    (root / linked.name).symlink_to(linked)
    (root / "catalogue.sqlite").unlink()
    assert {run.comparison_id for run in list_runs(root)} == {"own", "linked"}
    write_lab()
    assert {run.comparison_id for run in list_runs(root)} == {"own"}
    with pytest.raises(UserError, match="There is no comparison"):
        archive.pack(root, "comparison", ["linked"], "", tmp_path / "out.zip")


@pytest.mark.parametrize("name", [*OUTSIDE, "", ".hidden"])
def test_no_record_names_a_folder_elsewhere(name: str, tmp_path: Path) -> None:
    run = write_synthetic_run(tmp_path, layers=1, heads=1, steps=2, prompt_tokens=8, level="off")
    record = RunRecord.model_validate_json(
        "{" + (run / "run.json").read_text().split('"record_checksum"')[0].strip().lstrip("{").rstrip(",") + "}"
    )
    for field in ("run_id", "comparison_id"):
        with pytest.raises(ValidationError):
            RunRecord.model_validate(record.model_dump() | {field: name})
