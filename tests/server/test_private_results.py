"""What is private beside runs: nobody else finds it, sums it up, names it or takes it away."""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from kvlab import jobs
from kvlab.bench.request import BenchJob, BenchRequest
from kvlab.core.choice import MethodChoice
from kvlab.core.errors import UserError
from kvlab.evaluation.request import EvalJob, EvalRequest, SampleJob, TaskChoice
from kvlab.forms import measurement_job
from kvlab.jobs.access_check import check_settings
from kvlab.jobs.work import Work, counterfactual
from kvlab.library import archive
from kvlab.library import find as catalogue
from kvlab.library.prompts import load_prompt, remove_prompts, restore_prompt, save_prompt, saved_prompts
from kvlab.models.fitting.request import FitJob, FitRequest, fitted_file
from kvlab.requests.compare import OnePrompt
from kvlab.results.sources import Sources
from kvlab.trace.reader import open_run
from kvlab.trace.stories import Story, View, import_story, list_stories, load_story, make_private, save_story
from kvlab.trace.user_labels import FOLDER, change_labels, claim_name, label_path, load_labels
from tests.synthetic.runs import write_synthetic_run

Act = Callable[..., None]
H2O = (MethodChoice(method="h2o", budget=0.2),)
TASK = EvalRequest(tasks=(TaskChoice(task="needle"),), choices=H2O)
ROW = {"key": "k", "method": "h2o", "model": "mini", "budget": 0.2, "budget_unit": "share", "score": 0.5}
BENCH = BenchJob(name="secret", requests=(BenchRequest(mode="decode"),))
MADE: dict[str, tuple[str, str, Work]] = {
    "evaluation": ("eval/secret/part-0.parquet", "eval/plain/part-0.parquet", EvalJob(name="secret", request=TASK)),
    "benchmark": ("bench/secret.parquet", "bench/plain.parquet", BENCH),
}  # fmt: skip
OTHERS = ["carl", "dora", "Ben"]


def rows_at(root: Path, place: str, key: str) -> None:
    file = root / place
    file.parent.mkdir(parents=True, exist_ok=True)
    pd.DataFrame([ROW | {"key": key}]).to_parquet(file)


@pytest.fixture
def root(tmp_path: Path, act_as: Act) -> Path:
    """One evaluation and one benchmark of ben's that are private, and one of each that are not."""
    folder = tmp_path / "runs"
    folder.mkdir()
    act_as("ben")
    for kind, (hidden, open_to_all, _) in MADE.items():
        claim_name(folder, "secret", kind, private=True)
        claim_name(folder, "plain", kind)
        rows_at(folder, hidden, "hidden")
        rows_at(folder, open_to_all, "open")
    return folder


def names(root: Path) -> set[tuple[str, str]]:
    table = catalogue.list_all(root).table
    return set(zip(table["kind"], table["id"], strict=True))


@pytest.mark.parametrize("name", OTHERS)
def test_private_results_are_in_no_list_and_in_no_sum_of_others(root: Path, act_as: Act, name: str) -> None:
    everything = {(kind, one) for kind in MADE for one in ("secret", "plain")}
    for person in ("", "ben"):
        act_as(person)
        assert names(root) == everything
        seen = Sources(root)
        assert set(seen.evaluations["name"]) == set(seen.benchmarks["name"]) == {"secret", "plain"}
    own = Sources(root).stamp_of_results
    act_as(name)
    assert names(root) == {(kind, "plain") for kind in MADE}
    seen = Sources(root)
    assert set(seen.evaluations["name"]) == set(seen.benchmarks["name"]) == {"plain"}
    assert not any("secret" in part for part in seen.stamp_of_results) and seen.stamp_of_results != own


@pytest.mark.parametrize("kind", MADE)
def test_private_results_are_not_exported_and_their_name_is_taken(
    root: Path, act_as: Act, tmp_path: Path, kind: str
) -> None:
    act_as("carl")
    with pytest.raises(UserError, match=f"There is no {kind} 'secret'"):
        archive.pack(root, kind, ["secret"], "", tmp_path / "parcel.zip")
    with pytest.raises(UserError, match="choose another name") as told:
        claim_name(root, "secret", kind)
    assert "ben" not in str(told.value)
    with pytest.raises(UserError, match="only its owner"):
        change_labels(root, "secret", kind, private=False)
    act_as("ben")
    claim_name(root, "secret", kind)
    assert load_labels(root, "secret", kind).private, "who goes on with it does not open it by that"
    change_labels(root, "secret", kind, private=False)
    act_as("carl")
    assert (kind, "secret") in names(root)


def test_labels_that_are_damaged_open_nothing(root: Path, act_as: Act) -> None:
    label_path(root, "secret", "evaluation").write_text("{")
    act_as("carl")
    assert ("evaluation", "secret") not in names(root)
    assert set(Sources(root).evaluations["name"]) == {"plain"}
    act_as("")
    assert ("evaluation", "secret") in names(root)


FIT = FitJob(name="kvzap-mini-1", request=FitRequest(method="kvzap"))
WORKS: dict[str, Work] = {kind: made[2] for kind, made in MADE.items()} | {
    "fit": FIT,
    "sample": SampleJob(request=TASK),
}


@pytest.mark.parametrize("kind", WORKS)
@pytest.mark.parametrize("private", [True, False])
def test_a_private_job_is_told_to_nobody_else(
    tmp_path: Path, act_as: Act, write_lab: Callable[[], Path], kind: str, private: bool
) -> None:
    write_lab()
    act_as("ben")
    work = WORKS[kind].model_copy(update={"private": private, "title": "hush"})
    job_id = jobs.submit(tmp_path, work)
    assert jobs.request_of(tmp_path, job_id).private is private
    if kind != "sample":
        labels = load_labels(tmp_path, work.name, kind)
        assert (labels.owner, labels.private) == ("ben", private)
    act_as("carl")
    assert [job.job_id for job in jobs.list_jobs(tmp_path)] == ([] if private else [job_id])
    if private:
        with pytest.raises(UserError, match="There is no job"):
            jobs.request_of(tmp_path, job_id)


def test_a_private_fit_is_offered_and_used_by_its_owner_alone(
    tmp_path: Path, act_as: Act, write_lab: Callable[[], Path]
) -> None:
    write_lab()
    file = fitted_file(tmp_path, FIT.name)
    file.parent.mkdir(parents=True)
    file.write_bytes(b"x")
    (file.parent / "request.json").write_text(FIT.request.model_dump_json())
    act_as("ben")
    claim_name(tmp_path, FIT.name, "fit", private=True)
    uses = MethodChoice(method="kvzap", hyper_parameters={"heads": f"fit:{FIT.name}"})
    check_settings(tmp_path, uses)
    (one,) = measurement_job.fitted_files(tmp_path, "mini", "kvzap")
    assert one.asked == f"fit:{FIT.name}", "on a server never by its path"
    act_as("carl")
    assert measurement_job.fitted_files(tmp_path, "mini", "kvzap") == []
    sentences = []
    for name in (FIT.name, "kvzap-mini-2"):  # private, and not there at all
        missing = uses.model_copy(update={"hyper_parameters": {"heads": f"fit:{name}"}})
        with pytest.raises(UserError) as told:
            check_settings(tmp_path, missing)
        sentences.append(str(told.value).replace(name, "NAME"))
    assert len(set(sentences)) == 1


def test_what_is_made_of_a_private_run_is_private(tmp_path: Path) -> None:
    small = {"layers": 1, "heads": 1, "steps": 2, "prompt_tokens": 8}
    for number, private in enumerate((True, False)):
        path = write_synthetic_run(tmp_path, seed=number, method="h2o", owner="ben", private=private, **small)
        assert counterfactual(open_run(path).record, 0, 0).private is private


TALK = Story(name="My talk", views=(View(page="compare", caption="a secret"),))


def test_a_story_is_its_makers_until_they_share_it(tmp_path: Path, act_as: Act) -> None:
    act_as("ben")
    save_story(tmp_path, TALK)
    save_story(tmp_path, TALK.with_view(View(page="sag")))
    assert list_stories(tmp_path) == list_stories(tmp_path, owned=True) == ["My talk"]
    act_as("carl")
    assert list_stories(tmp_path) == [] and load_story(tmp_path, "My talk").views == ()
    with pytest.raises(UserError, match="There is no story"):
        archive.pack(tmp_path, "story", ["My talk"], "", tmp_path / "parcel.zip")
    with pytest.raises(UserError, match="Another user's story"):
        save_story(tmp_path, Story(name="my TALK"))  # another name, the same file
    assert import_story(tmp_path, TALK).name == "My talk 2"
    with pytest.raises(UserError):
        make_private(tmp_path, "My talk", False)
    act_as("ben")
    make_private(tmp_path, "My talk", False)
    act_as("dora")
    assert list_stories(tmp_path) == ["My talk"] and len(load_story(tmp_path, "My talk").views) == 2
    act_as("carl")
    assert list_stories(tmp_path, owned=True) == ["My talk 2"]
    with pytest.raises(UserError, match="Another user's story"):
        save_story(tmp_path, TALK)


def test_in_a_lab_of_one_stories_have_no_owner(tmp_path: Path) -> None:
    save_story(tmp_path, TALK)
    assert list_stories(tmp_path, owned=True) == ["My talk"] and not (tmp_path / FOLDER).exists()


def test_saved_prompts_are_ones_own(tmp_path: Path, act_as: Act) -> None:
    save_prompt(tmp_path, "everybody's", OnePrompt(prompt="from a terminal"))
    act_as("ben")
    save_prompt(tmp_path, "mine", OnePrompt(prompt="a secret"))
    act_as("carl")
    assert [one.name for one in saved_prompts(tmp_path)] == ["everybody's"]
    with pytest.raises(UserError, match="There is no saved prompt"):
        load_prompt(tmp_path, "mine")
    with pytest.raises(UserError, match="It belongs to nobody here"):
        remove_prompts(tmp_path, ["everybody's"])
    save_prompt(tmp_path, "mine", OnePrompt(prompt="another"))
    assert load_prompt(tmp_path, "mine").prompt == "another"
    remove_prompts(tmp_path, ["mine"])
    act_as("ben")
    assert load_prompt(tmp_path, "mine").prompt == "a secret"
    with pytest.raises(UserError, match="No prompt"):
        restore_prompt(tmp_path, "mine")


def test_results_brought_from_elsewhere_are_theirs_who_brought_them(root: Path, act_as: Act, tmp_path: Path) -> None:
    act_as("ben")
    change_labels(root, "secret", "evaluation", tags=["x"])
    archive.pack(root, "evaluation", ["secret"], "", tmp_path / "parcel.zip")
    act_as("carl")
    (tmp_path / "other").mkdir()
    archive.unpack(tmp_path / "other", tmp_path / "parcel.zip")
    labels = load_labels(tmp_path / "other", "secret", "evaluation")
    assert (labels.owner, labels.private, labels.tags) == ("carl", False, ("x",))


def test_a_parcel_says_nothing_of_what_is_not_in_it(root: Path, act_as: Act, tmp_path: Path) -> None:
    """Else whoever takes one in could make a result theirs that nobody owns yet."""
    act_as("ben")
    archive.pack(root, "benchmark", ["plain"], "", tmp_path / "parcel.zip")
    foreign = f"{FOLDER}/evaluations/other.json"
    with zipfile.ZipFile(tmp_path / "parcel.zip") as old, zipfile.ZipFile(tmp_path / "changed.zip", "w") as new:
        manifest = archive.Manifest.model_validate_json(old.read(archive.MANIFEST))
        said = b'{"owner": "ben"}'
        item = archive.ArchivedFile(size=len(said), sha256=hashlib.sha256(said).hexdigest())
        changed = manifest.model_copy(update={"files": {**manifest.files, foreign: item}})
        new.writestr(archive.MANIFEST, changed.model_dump_json())
        new.writestr(foreign, said)
        for name in manifest.files:
            new.writestr(name, old.read(name))
    (tmp_path / "other").mkdir()
    with pytest.raises(UserError, match="belongs to no result in it"):
        archive.unpack(tmp_path / "other", tmp_path / "changed.zip")
    assert not (tmp_path / "other" / FOLDER / "evaluations").exists()
