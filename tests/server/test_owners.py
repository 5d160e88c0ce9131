"""Whose runs they are: others look, or do not; the owner alone changes them."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from kvlab import jobs
from kvlab.common.lab import User, set_current_user
from kvlab.core.choice import MethodChoice
from kvlab.core.errors import UserError
from kvlab.jobs import device_shares as worker_slots
from kvlab.jobs import queue_db, worker
from kvlab.library import archive
from kvlab.library import find as catalogue
from kvlab.library import recycle_bin as rubbish
from kvlab.library.find import Search
from kvlab.library.items import join_comparisons, joint_id
from kvlab.requests.compare import CompareRequest, RestoreRequest
from kvlab.trace.catalogue import list_comparisons, list_runs, rebuild
from kvlab.trace.stories import Story, save_story
from kvlab.trace.user_labels import change_labels, change_tags, claim_name, load_labels, owner_of, save_answer
from tests.synthetic.runs import write_synthetic_run

sys.path.insert(0, str(Path(__file__).parents[1] / "jobs"))  # so that the worker finds the stand-in by name
Act = Callable[..., None]
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


def test_private_runs_are_in_the_lists_of_their_owner_alone(root: Path, act_as: Act) -> None:
    everything = {"open", "hidden", "old"}
    for name, there in (("", everything), ("ben", everything), ("carl", {"open", "old"}), ("Ben", {"open", "old"})):
        act_as(name)
        assert seen(root) == there, name
        assert set(catalogue.list_all(root).table["id"]) == there, name
    rebuild(root)
    assert "hidden" not in seen(root)


def test_who_has_not_signed_in_sees_and_starts_nothing(root: Path) -> None:
    def nobody() -> User:
        raise UserError("Sign in first.")

    request = CompareRequest(prompt="x", choices=(MethodChoice(method="h2o"),))
    set_current_user(nobody)
    attempts: tuple[Callable[[], object], ...] = (
        lambda: list_comparisons(root),
        lambda: catalogue.list_all(root),
        lambda: jobs.submit(root, request),
        lambda: save_story(root, Story(name="mine")),
        lambda: rubbish.delete(root, "comparison", ["open"]),
        lambda: change_labels(root, "open", name="mine now"),
    )
    for attempt in attempts:
        with pytest.raises(UserError, match="Sign in first"):
            attempt()


def test_a_shelf_kept_for_one_is_not_shown_to_another(root: Path, act_as: Act) -> None:
    """Equal stamps mean equal shelves, so stamps differ where people see unlike things."""
    stamps = []
    for name in ("ben", "carl", "", "ben"):
        act_as(name)
        stamps.append(catalogue.stamp(root))
    assert len(set(stamps)) == 3 and stamps[0] == stamps[3]


def test_private_runs_are_neither_exported_nor_found_by_their_words(root: Path, act_as: Act, tmp_path: Path) -> None:
    act_as("carl")
    with pytest.raises(UserError, match="There is no comparison 'hidden'"):
        archive.pack(root, "comparison", ["hidden"], "", tmp_path / "parcel.zip")
    assert not (tmp_path / "parcel.zip").exists()
    assert catalogue.list_all(root).find(Search(text="secret")).empty
    act_as("ben")
    assert list(catalogue.list_all(root).find(Search(text="secret"))["id"]) == ["hidden"]


def test_a_private_run_is_in_no_list_link_comparison_or_search_of_others(
    root: Path, act_as: Act, write_lab: Callable[[], Path]
) -> None:
    write_lab()
    (hidden,) = list_runs(root, comparison_id="hidden")
    asked = RestoreRequest(run_id=hidden.run_id)
    both = joint_id(["open", "hidden"])
    act_as("carl")
    assert hidden.run_id not in {run.run_id for run in list_runs(root)}
    assert list_runs(root, comparison_id="hidden") == []
    with pytest.raises(UserError, match="There is no comparison 'hidden'"):
        join_comparisons(root, both, list_comparisons(root))
    with pytest.raises(UserError, match="There is no run"):
        jobs.submit(root, asked)
    act_as("ben")
    assert [run.run_id for run in list_runs(root, comparison_id="hidden")] == [hidden.run_id]
    with pytest.raises(UserError, match="is over another prompt"):
        join_comparisons(root, both, list_comparisons(root))
    jobs.submit(root, asked)


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
    ("name", "comparison", "refusal"),
    [
        ("ben", "open", ""),
        ("", "open", ""),
        ("", "old", ""),
        ("carl", "open", "It belongs to ben: only its owner may"),
        ("Ben", "open", "It belongs to ben: only its owner may"),
        ("carl", "old", "It belongs to nobody here: only in a terminal"),
    ],
)
def test_the_owner_alone_changes_runs(
    root: Path, act_as: Act, change: str, name: str, comparison: str, refusal: str
) -> None:
    act_as(name)
    if not refusal:
        CHANGES[change](root, comparison)
        return
    with pytest.raises(UserError, match=refusal):
        CHANGES[change](root, comparison)
    assert any(run.comparison_id == comparison for run in list_runs(root))
    assert load_labels(root, comparison).name == ""


def test_the_bin_shows_and_empties_ones_own(root: Path, act_as: Act) -> None:
    act_as("ben")
    key = rubbish.delete(root, "comparison", ["open"]).key
    act_as("carl")
    assert rubbish.list_bin(root) == [] and rubbish.empty_bin(root) == 0
    with pytest.raises(UserError):
        rubbish.restore_deleted(root, key)
    act_as("ben")
    rubbish.restore_deleted(root, key)
    assert "open" in seen(root)


def test_what_is_brought_from_elsewhere_is_theirs_who_brought_it(root: Path, act_as: Act, tmp_path: Path) -> None:
    archive.pack(root, "comparison", ["hidden"], "", tmp_path / "parcel.zip")
    act_as("carl")
    (tmp_path / "other").mkdir()
    archive.unpack(tmp_path / "other", tmp_path / "parcel.zip")
    (run,) = list_runs(tmp_path / "other")
    assert (run.owner, run.private) == ("carl", False)


def test_a_name_of_results_is_theirs_who_took_it_first(root: Path, act_as: Act) -> None:
    act_as("ben")
    claim_name(root, "needles", "evaluation")
    claim_name(root, "needles", "evaluation")
    act_as("carl")
    with pytest.raises(UserError, match=r"owner: ben\): choose another name"):
        claim_name(root, "needles", "evaluation")
    with pytest.raises(UserError, match="only its owner"):
        change_labels(root, "needles", "evaluation", owner="carl")
    assert owner_of(root, "needles", "evaluation") == "ben"


def test_a_job_is_its_owners_and_so_are_the_runs_it_makes(root: Path, act_as: Act) -> None:
    act_as("ben")
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
    act_as("carl")
    for attempt in (
        lambda: jobs.status(root, job_id),
        lambda: jobs.request_of(root, job_id),
        lambda: jobs.cancel(root, job_id),
    ):
        with pytest.raises(UserError, match="There is no job"):
            attempt()
    assert jobs.list_jobs(root) == [] and list_runs(root, comparison_id=job_id) == []
