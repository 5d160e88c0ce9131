"""Models of a package index: downloaded by pip, checked, put in place in one step, and found by their name."""

from __future__ import annotations

import shutil
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kvlab.cli import commands
from kvlab.core.errors import UserError
from kvlab.models.info import model_download, packaged_models
from kvlab.models.info.model_download import get_model
from kvlab.models.info.names import check_model
from kvlab.models.info.packaged_models import PACKAGED, PackagedModel
from kvlab.models.load import load_model
from kvlab.planning.choices import local_models
from tests.models.small_package import MEMBER, checksum, small_package


@pytest.fixture
def packaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PackagedModel:
    return small_package(tmp_path, monkeypatch)


def left_behind(model: PackagedModel) -> list[Path]:
    return list(model.target.parent.rglob("*")) if model.target.parent.exists() else []


@pytest.mark.usefixtures("gguf_here")
def test_a_model_is_downloaded_listed_and_loaded_by_its_name(packaged: PackagedModel, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"not on this machine: `kvlab models get small` downloads it"):
        check_model("small")
    with pytest.raises(UserError, match="kvlab models get small"):
        load_model("small")
    assert "small" not in local_models(tmp_path)
    *_, last = get_model("small")
    assert last == (packaged.wheel_bytes, packaged.wheel_bytes)
    assert left_behind(packaged) == [packaged.target] and checksum(packaged.target) == packaged.file_checksum
    assert check_model("small") == "small" and "small" in local_models(tmp_path)
    loaded = load_model("small", device="cpu")
    assert loaded.name == "small" and loaded.checksum == packaged.file_checksum


def test_the_installed_package_is_enough(packaged: PackagedModel, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    with zipfile.ZipFile(tmp_path / "index" / "some_model-1.0-py3-none-any.whl") as archive:
        archive.extractall(tmp_path / "site")
    monkeypatch.syspath_prepend(tmp_path / "site")
    assert packaged.file() == tmp_path / "site" / MEMBER


def test_another_wheel_is_refused_and_nothing_is_kept(packaged: PackagedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PACKAGED, "small", replace(packaged, wheel_checksum="0" * 64))
    with pytest.raises(UserError, match=r"not the expected one .* nothing was kept; try again"):
        list(get_model("small"))
    assert left_behind(packaged) == []


def test_another_file_in_the_wheel_is_refused_too(packaged: PackagedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PACKAGED, "small", replace(packaged, file_checksum="0" * 64))
    with pytest.raises(UserError, match=r"The file tiny.Q8_0.gguf is not the expected one"):
        list(get_model("small"))
    assert left_behind(packaged) == []


def test_without_an_index_the_sentence_names_the_way_round(
    packaged: PackagedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    with pytest.raises(UserError, match=r"index does not provide some-model 1\.0 .*--wheel FILE") as error:
        list(get_model("small"))
    assert "\n" not in str(error.value) and left_behind(packaged) == []


def test_without_pip_and_from_a_wheel_that_was_downloaded_elsewhere(
    packaged: PackagedModel, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(model_download, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"has no pip: download some-model 1\.0 elsewhere"):
        list(get_model("small"))
    wheel = tmp_path / "index" / "some_model-1.0-py3-none-any.whl"
    done = CliRunner().invoke(commands, ["models", "get", "small", "--wheel", str(wheel)])
    assert done.exit_code == 0 and "use it with --model small" in done.output and "Licence" in done.output
    assert packaged.file() == packaged.target
    (tmp_path / "damaged.whl").write_bytes(wheel.read_bytes()[:-10])
    packaged.target.unlink()
    with pytest.raises(UserError, match=r"The wheel damaged\.whl is not the expected one"):
        list(get_model("small", tmp_path / "damaged.whl"))
    with pytest.raises(UserError, match=r"missing.whl cannot be read \(No such file"):
        list(get_model("small", tmp_path / "missing.whl"))


def test_a_full_disk_is_said_before_anything_is_downloaded(
    packaged: PackagedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda place: shutil._ntuple_diskusage(10**9, 10**9, 1000))
    with pytest.raises(UserError, match="has 0 MB left: free some space"):
        list(get_model("small"))


def test_a_download_can_be_stopped_and_leaves_nothing(packaged: PackagedModel) -> None:
    progress = get_model("small")
    next(progress)
    progress.close()
    assert left_behind(packaged) == []


def test_unknown_names_are_told_the_known_ones() -> None:
    with pytest.raises(UserError, match="no packaged model 'large': there is smollm2"):
        list(get_model("large"))


def test_the_shipped_entry_is_complete() -> None:
    model = packaged_models.PACKAGED["smollm2"]
    assert len(model.wheel_checksum) == len(model.file_checksum) == 64 and model.file_bytes > model.wheel_bytes > 9e7
