"""Saved prompts come back as they were, whatever they are called; no name leaves the folder, and no loss is silent."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlab.core.errors import UserError
from kvlab.library import prompts
from kvlab.library.prompts import load_prompt, remove_prompts, rename_prompt, restore_prompt, save_prompt, saved_prompts
from kvlab.requests.compare import OnePrompt

NAMES = st.text(st.characters(exclude_categories=("Cs",)), max_size=90)
HELLO = OnePrompt(prompt="Hello, old lamp.", answer="lamp", facts=("old lamp",))


@settings(deadline=None)
@given(NAMES)
def test_a_name_is_kept_or_refused_and_nothing_lies_outside_the_folder(
    tmp_path_factory: pytest.TempPathFactory, name: str
) -> None:
    root = tmp_path_factory.mktemp("runs")
    try:
        save_prompt(root, name, HELLO)
    except UserError:
        assert not list(root.rglob("*.json"))
        return
    assert load_prompt(root, name).asked.model_copy(update={"name": ""}) == HELLO
    (file,) = root.rglob("*.json")
    assert file.parent == root / prompts.FOLDER


@pytest.mark.parametrize("name", ["../memo", "a/b", "..\\x", "", "  ", "a\nb", "x" * 81, "\0"])
def test_a_name_that_would_climb_or_is_no_line_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UserError):
        save_prompt(tmp_path, name, HELLO)
    with pytest.raises(UserError):
        load_prompt(tmp_path, name)
    assert list(tmp_path.rglob("*.json")) == []


def test_names_that_read_alike_are_two_prompts(tmp_path: Path) -> None:
    for name in ("a b", "a-b", "A b", "漢", "字"):
        save_prompt(tmp_path, name, OnePrompt(prompt=f"of {name}"))
    assert {one.name: one.prompt for one in saved_prompts(tmp_path)} == {
        name: f"of {name}" for name in ("a b", "a-b", "A b", "漢", "字")
    }


def test_nothing_is_replaced_by_accident_and_a_removal_is_undone(tmp_path: Path) -> None:
    save_prompt(tmp_path, "lamp", HELLO)
    with pytest.raises(UserError, match="choose another name, or replace it"):
        save_prompt(tmp_path, "lamp", OnePrompt(prompt="other"))
    save_prompt(tmp_path, "rain", OnePrompt(prompt="It rained."))
    with pytest.raises(UserError, match="choose another name"):
        rename_prompt(tmp_path, "rain", "lamp")
    rename_prompt(tmp_path, "rain", "storm")
    assert [one.name for one in saved_prompts(tmp_path)] == ["lamp", "storm"]
    assert [one.name for one in saved_prompts(tmp_path, "OLD hello")] == ["lamp"]
    with pytest.raises(UserError, match="no saved prompt 'nothing'"):
        remove_prompts(tmp_path, ["lamp", "nothing"])
    assert remove_prompts(tmp_path, ["lamp"]) == ["lamp"] and len(saved_prompts(tmp_path)) == 1
    assert restore_prompt(tmp_path, "lamp").asked.prompt == HELLO.prompt
    with pytest.raises(UserError, match="was removed"):
        restore_prompt(tmp_path, "lamp")


def test_a_damaged_file_is_left_out_of_the_list_and_said_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_prompt(tmp_path, "lamp", HELLO)
    (file,) = (tmp_path / prompts.FOLDER).glob("*.json")
    for damage in ("{", '{"name": "another", "prompt": "x"}', '{"name": "lamp", "prompt": 3}'):
        file.write_text(damage)
        assert saved_prompts(tmp_path) == []
        with pytest.raises(UserError, match="is damaged: remove it"):
            load_prompt(tmp_path, "lamp")
    monkeypatch.setattr(prompts, "MOST_PROMPTS", 1)
    with pytest.raises(UserError, match="the maximum"):
        save_prompt(tmp_path, "another", HELLO)
