"""Whose runs they are: others look, or do not; the owner and an administrator alone change them."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from kvlab import jobs
from kvlab.core.choice import MethodChoice
from kvlab.core.errors import UserError
from kvlab.jobs import queue_db, worker, worker_slots
from kvlab.library import archive, catalogue, find
from kvlab.library import recycle_bin as rubbish
from kvlab.library.find import Search
from kvlab.requests.compare import CompareRequest
from kvlab.server.users import Role
from kvlab.trace.catalogue import list_comparisons, list_runs, rebuild
from kvlab.trace.stories import Story, save_story
from kvlab.trace.user_labels import change_labels, change_tags, claim_name, load_labels, owner_of, save_answer
from tests.synthetic.runs import write_synthetic_run

sys.path.insert(0, str(Path(__file__).parents[1] / "jobs"))  # so that the worker finds the stand-in by name
Act = Callable[[str, Role], None]
SMALL = {"layers": 1, "heads": 1, "steps": 2, "prompt_tokens": 8, "level": "light"}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Runs of ben, private ones of ben, and one that nobody owns."""
    folder = tmp_path / "runs"
    write_synthetic_run(folder, comparison_id="open", owner="ben", **SMALL)
    write_synthetic_run(folder, comparison_id="hidden", owner="ben", private=True, prompt="a secret", **SMALL)
    write_synthetic_run(folder, comparison_id="old", **SMALL)
    return folder


def seen(root: Path) -> set[str]:
    return {entry.comparison_id for entry in list_comparisons(root)}


def test_private_runs_are_in_the_lists_of_their_owner_and_administrators(root: Path, act_as: Act) -> None:
    everything = {"open", "hidden", "old"}
    assert seen(root) == everything  # alone
    for name, role, there in (
        ("ben", Role.RUN, everything),
        ("anna", Role.ADMINISTER, everything),
        ("carl", Role.RUN, {"open", "old"}),
        ("ben", Role.NOBODY, set()),
        ("", Role.LOOK, {"open", "old"}),
    ):
        act_as(name, role)
        assert seen(root) == there, name
        assert set(catalogue.list_all(root).table["id"]) == there, name
    rebuild(root)
    assert "hidden" not in seen(root)


def test_a_shelf_kept_for_one_is_not_shown_to_another(root: Path, act_as: Act) -> None:
    """Equal stamps mean equal shelves, so stamps differ where people see unlike things."""
    stamps = []
    for name, role in (("ben", Role.RUN), ("carl", Role.RUN), ("anna", Role.ADMINISTER), ("dora", Role.ADMINISTER)):
        act_as(name, role)
        stamps.append(catalogue.stamp(root))
    assert len(set(stamps)) == 3 and stamps[2] == stamps[3]


def test_private_runs_are_neither_exported_nor_found_by_their_words(root: Path, act_as: Act, tmp_path: Path) -> None:
    act_as("carl", Role.RUN)
    with pytest.raises(UserError, match="There is no comparison 'hidden'"):
        archive.pack(root, "comparison", ["hidden"], "", tmp_path / "parcel.zip")
    assert not (tmp_path / "parcel.zip").exists()
    assert catalogue.list_all(root).find(Search(text="secret")).empty
    act_as("ben", Role.RUN)
    assert list(catalogue.list_all(root).find(Search(text="secret"))["id"]) == ["hidden"]


def test_the_table_says_whose_they_are_and_filters_by_it(root: Path) -> None:
    table = catalogue.list_all(root)
    assert dict(zip(table.table["id"], table.table["owner"], strict=True)) == {
        "open": "ben",
        "hidden": "ben",
        "old": "",
    }
    assert set(table.find(Search(owners=("ben",)))["id"]) == {"open", "hidden"}


CHANGES: dict[str, Callable[[Path, str], object]] = {
    "delete": lambda root, name: rubbish.delete(root, "comparison", [name]),
    "rename": lambda root, name: change_labels(root, name, name="mine now"),
    "tag": lambda root, name: change_tags(root, name, add=["x"]),
    "answer": lambda root, name: save_answer(root, name, "a prompt", "an answer"),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize(
    ("name", "role", "comparison", "may"),
    [
        ("ben", Role.RUN, "open", True),
        ("anna", Role.ADMINISTER, "open", True),
        ("anna", Role.ADMINISTER, "old", True),
        ("carl", Role.RUN, "open", False),
        ("carl", Role.RUN, "old", False),
        ("ben", Role.LOOK, "open", False),
        ("", Role.RUN, "old", False),
    ],
)
def test_the_owner_and_administrators_alone_change_runs(
    root: Path, act_as: Act, change: str, name: str, role: Role, comparison: str, may: bool
) -> None:
    act_as(name, role)
    if may:
        CHANGES[change](root, comparison)
        return
    with pytest.raises(UserError, match="only its owner and an administrator"):
        CHANGES[change](root, comparison)
    assert any(run.comparison_id == comparison for run in list_runs(root))
    assert load_labels(root, comparison).name == ""


def test_the_bin_shows_and_empties_ones_own(root: Path, act_as: Act) -> None:
    act_as("ben", Role.RUN)
    key = rubbish.delete(root, "comparison", ["open"]).key
    act_as("carl", Role.RUN)
    assert rubbish.list_bin(root) == [] and rubbish.empty_bin(root) == 0
    with pytest.raises(UserError):
        rubbish.restore_deleted(root, key)
    act_as("ben", Role.RUN)
    rubbish.restore_deleted(root, key)
    assert "open" in seen(root)


def test_who_looks_changes_nothing(root: Path, act_as: Act, tmp_path: Path) -> None:
    archive.pack(root, "comparison", ["open"], "", tmp_path / "parcel.zip")
    act_as("dora", Role.LOOK)
    request = CompareRequest(prompt="x", choices=(MethodChoice(method="h2o"),))
    for attempt in (
        lambda: jobs.submit(root, request),
        lambda: archive.unpack(tmp_path / "elsewhere", tmp_path / "parcel.zip"),
        lambda: save_story(root, Story(name="mine")),
        lambda: find.save_view(root, "mine", {}),
    ):
        with pytest.raises(UserError, match="ask an administrator for the role 'run'"):
            attempt()


def test_what_is_brought_from_elsewhere_is_theirs_who_brought_it(root: Path, act_as: Act, tmp_path: Path) -> None:
    archive.pack(root, "comparison", ["hidden"], "", tmp_path / "parcel.zip")
    act_as("carl", Role.RUN)
    (tmp_path / "other").mkdir()
    archive.unpack(tmp_path / "other", tmp_path / "parcel.zip")
    (run,) = list_runs(tmp_path / "other")
    assert (run.owner, run.private) == ("carl", False)


def test_a_name_of_results_is_theirs_who_took_it_first(root: Path, act_as: Act) -> None:
    act_as("ben", Role.RUN)
    claim_name(root, "needles", "evaluation")
    claim_name(root, "needles", "evaluation")
    act_as("carl", Role.RUN)
    with pytest.raises(UserError, match=r"owner: ben\): choose another name"):
        claim_name(root, "needles", "evaluation")
    with pytest.raises(UserError, match="only its owner"):
        change_labels(root, "needles", "evaluation", owner="carl")
    assert owner_of(root, "needles", "evaluation") == "ben"


def test_a_job_is_its_owners_and_so_are_the_runs_it_makes(root: Path, act_as: Act) -> None:
    act_as("ben", Role.RUN)
    private = CompareRequest(prompt="hush", title="hush", choices=(MethodChoice(method="h2o"),), private=True)
    job_id = jobs.submit(root, private)
    stop = threading.Event()
    with queue_db.database(root) as connection:
        worker_slots.take_slot(connection, worker.os.getpid())
        job = queue_db.claim(connection, worker.os.getpid())
        assert job is not None
        worker.run_job(connection, root, job, "owner_stand_in:compare", stop)
    assert jobs.status(root, job_id).state == "complete"
    assert {(run.owner, run.private) for run in list_runs(root, comparison_id=job_id)} == {("ben", True)}
    act_as("carl", Role.RUN)
    for attempt in (
        lambda: jobs.status(root, job_id),
        lambda: jobs.request_of(root, job_id),
        lambda: jobs.cancel(root, job_id),
    ):
        with pytest.raises(UserError, match="There is no job"):
            attempt()
    assert jobs.list_jobs(root) == [] and list_runs(root, comparison_id=job_id) == []
