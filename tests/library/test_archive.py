"""A thing as one file: the same bytes come out elsewhere, and nothing else ever does."""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from kvlab.core.errors import UserError
from kvlab.library.archive import MANIFEST, pack, unpack
from kvlab.library.find import list_all
from kvlab.trace import open_run
from kvlab.trace.stories import Story, View, load_story, save_story
from kvlab.trace.user_labels import change_labels, load_labels
from tests.library.test_bin import contents


@pytest.fixture
def parcel(kept: Path, tmp_path: Path) -> Path:
    change_labels(kept, "one", name="Harbour", tags=("a",))
    pack(kept, "comparison", ["one"], "Harbour", tmp_path / "one.kvlab.zip")
    return tmp_path / "one.kvlab.zip"


def test_a_comparison_opens_elsewhere_as_it_was(kept: Path, parcel: Path, tmp_path: Path):
    there = tmp_path / "there"
    made = unpack(there, parcel)
    assert contents(there) == {name: data for name, data in contents(kept).items() if name in made.files}
    assert list_all(there).table["title"].tolist() == ["Harbour"]
    assert load_labels(there, "one").tags == ("a",)
    run = next(there.glob("one*h2o*"))
    assert open_run(run, strict=True).tokens.equals(open_run(kept / run.name).tokens)


@pytest.mark.parametrize(("kind", "name"), [("evaluation", "needles"), ("benchmark", "speed")])
def test_results_travel_too(kept: Path, tmp_path: Path, kind: str, name: str):
    pack(kept, kind, [name], name, tmp_path / "x.zip")
    unpack(tmp_path / "there", tmp_path / "x.zip")
    assert list_all(tmp_path / "there").table["id"].tolist() == [name]


def test_a_story_takes_along_what_it_shows(kept: Path, tmp_path: Path):
    run = next(kept.glob("two*keepkv*")).name
    save_story(kept, Story(name="Talk", views=(View(page="timeline", query={"run": run}, caption="look"),)))
    pack(kept, "story", ["Talk"], "Talk", tmp_path / "talk.zip")
    unpack(tmp_path / "there", tmp_path / "talk.zip")
    assert load_story(tmp_path / "there", "Talk").views[0].caption == "look"
    assert list_all(tmp_path / "there").table["id"].tolist() == ["two"]


def test_what_is_there_already_stays(kept: Path, parcel: Path):
    before = contents(kept)
    with pytest.raises(UserError, match="already"):
        unpack(kept, parcel)
    assert contents(kept) == before


def rewritten(parcel: Path, change: Callable[[dict[str, bytes]], None]) -> Path:
    with zipfile.ZipFile(parcel) as old:
        files = {name: old.read(name) for name in old.namelist()}
    change(files)
    with zipfile.ZipFile(parcel, "w") as new:
        for name, data in files.items():
            new.writestr(name, data)
    return parcel


def flipped(files: dict[str, bytes]) -> None:
    name = next(name for name in files if name.endswith(".parquet"))
    files[name] = files[name][:-1] + bytes([files[name][-1] ^ 1])


def climbing(files: dict[str, bytes]) -> None:
    manifest = json.loads(files[MANIFEST])
    manifest["files"]["../../evil"] = manifest["files"].pop(next(iter(manifest["files"])))
    files[MANIFEST] = json.dumps(manifest).encode()
    files["../../evil"] = b""


def unsaid(files: dict[str, bytes]) -> None:
    files["another/run.json"] = b"{}"


def foreign(files: dict[str, bytes]) -> None:
    del files[MANIFEST]


def newer(files: dict[str, bytes]) -> None:
    files[MANIFEST] = json.dumps(json.loads(files[MANIFEST]) | {"format": 99}).encode()


def smaller(files: dict[str, bytes]) -> None:
    manifest = json.loads(files[MANIFEST])
    for item in manifest["files"].values():
        item["size"] = 1
    files[MANIFEST] = json.dumps(manifest).encode()


@pytest.mark.parametrize("change", [flipped, climbing, unsaid, foreign, newer, smaller])
def test_a_file_that_was_changed_is_refused_and_leaves_nothing(parcel: Path, tmp_path: Path, change):
    there = tmp_path / "there"
    there.mkdir()
    with pytest.raises(UserError) as refused:
        unpack(there, rewritten(parcel, change))
    assert str(refused.value).endswith(".") and "\n" not in str(refused.value)
    assert not contents(there) and not (tmp_path / "evil").exists()


def test_cut_off_and_foreign_files_are_one_sentence(parcel: Path, tmp_path: Path):
    (tmp_path / "cut.zip").write_bytes(parcel.read_bytes()[:-200])
    (tmp_path / "text.zip").write_text("no archive")
    for name in ("cut.zip", "text.zip", "absent.zip", "."):
        with pytest.raises(UserError):
            unpack(tmp_path / "there", tmp_path / name)


def test_more_than_may_be_taken_in_is_not_begun(parcel: Path, tmp_path: Path):
    with pytest.raises(UserError, match="may be used here"):
        unpack(tmp_path / "there", parcel, most_bytes=100)


def test_a_record_that_was_changed_is_refused(kept: Path, tmp_path: Path):
    run = next(kept.glob("one*h2o*"))
    (run / "run.json").write_text((run / "run.json").read_text().replace('"seed": 0', '"seed": 1'))
    there = tmp_path / "there"
    there.mkdir()
    pack(kept, "evaluation", ["needles"], "", tmp_path / "x.zip")

    def as_a_run(files: dict[str, bytes]) -> None:
        manifest = json.loads(files[MANIFEST])
        data, name = (run / "run.json").read_bytes(), f"{run.name}/run.json"
        manifest["files"][name] = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        files |= {name: data, MANIFEST: json.dumps(manifest).encode()}

    with pytest.raises(UserError, match="was changed after it was written"):
        unpack(there, rewritten(tmp_path / "x.zip", as_a_run))
    assert not contents(there)
