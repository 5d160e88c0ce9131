"""Folders of models that whoever starts the dashboard puts on offer."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kvlab.cli import commands
from kvlab.core.errors import UserError
from kvlab.models.info import offered_models
from kvlab.planning.choices import local_models
from tests.families import CHAT_TEMPLATE, tiny_folder


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two models, one below its owner, beside what is none."""
    home = tmp_path / "models"
    tiny_folder(home / "alone", chat_template=CHAT_TEMPLATE)
    shutil.copytree(home / "alone", home / "owner" / "name")
    (home / "none").mkdir()
    (home / "half").mkdir()
    (home / "half" / "config.json").write_text("{}")
    monkeypatch.delenv(offered_models.FOLDERS, raising=False)
    return home


def test_models_of_a_folder_are_offered_and_listed(folder: Path, tmp_path: Path) -> None:
    found = CliRunner().invoke(
        commands, ["models", "--json", "--runs", str(tmp_path / "runs"), "--models", str(folder)]
    )
    os.environ.pop(offered_models.FOLDERS, None)
    assert found.exit_code == 0, found.output
    about = {model["name"]: model for model in json.loads(found.stdout)}
    alone = about[str(folder / "alone")]
    assert set(about) >= {"mini", str(folder / "alone"), str(folder / "owner" / "name")}
    assert not set(about) & {str(folder / "half"), str(folder / "none")}
    assert (alone["family"], alone["chat"], about["mini"]["chat"]) == ("llama", True, False)


def test_one_that_is_put_there_later_is_offered_too(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(offered_models.FOLDERS, offered_models.models_variable([folder / "alone", folder]))
    assert offered_models.server_models() == [str(folder / "alone"), str(folder / "owner" / "name")]
    shutil.copytree(folder / "alone", folder / "new")
    assert str(folder / "new") in local_models(tmp_path)
    assert offered_models.short_name(str(folder / "owner" / "name")) == "owner/name"
    assert offered_models.short_name("Qwen/Qwen3-0.6B") == "Qwen/Qwen3-0.6B"
    shutil.rmtree(folder)
    assert offered_models.server_models() == []


@pytest.mark.parametrize(("name", "sentence"), [("nowhere", "There is no folder"), ("none", "holds no model")])
def test_a_folder_without_models_is_refused(folder: Path, name: str, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        offered_models.models_variable([folder / name])
