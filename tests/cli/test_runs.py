"""`kvlab runs`: listed, labelled, deleted and brought back, exported and taken in; titles and tags of comparisons."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from kvlab.cli import commands
from kvlab.cli.app import _page_for
from kvlab.core.errors import UserError
from kvlab.trace.stories import Story, View, save_story
from tests.synthetic.runs import write_synthetic_run

Say = Callable[..., str]


@pytest.fixture
def say(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Say:
    for name in ("one", "two"):
        for method in ("full", "h2o"):
            write_synthetic_run(
                tmp_path,
                method=method,
                comparison_id=name,
                title=name.title(),
                layers=1,
                heads=1,
                steps=2,
                level="light",
            )

    def said(*words: str) -> str:
        commands([*words, "--runs", str(tmp_path)], standalone_mode=False)
        return capsys.readouterr().out

    return said


def listed(say: Say, *words: str) -> list[str]:
    return [row["title"] for row in json.loads(say("runs", "ls", "--json", *words))]


def test_what_is_kept_is_found_and_labelled(say: Say):
    assert listed(say) == ["Two", "One"]
    say("runs", "label", "one", "--tag", "paper", "--tag", "draft")
    assert "paper" in say("runs", "label", "one", "--untag", "draft")
    say("runs", "label", "two", "--title", "The second", "--note", "seen with the group", "--star")
    assert listed(say, "--where", "tag=paper") == ["One"]
    assert listed(say, "--starred") == ["The second"]
    assert listed(say, "group") == ["The second"]
    assert listed(say, "--sort", "title", "--limit", "1") == ["One"]
    assert listed(say, "--sort", "-title", "--limit", "1") == ["The second"]
    say("runs", "label", "two", "--archive")
    assert listed(say) == ["One"] and listed(say, "--archived") == ["The second"]


def test_what_is_deleted_comes_back(say: Say):
    assert "in the bin" in say("runs", "rm", "one")
    assert listed(say) == ["Two"]
    assert "One" in say("runs", "bin")
    assert "One is restored" in say("runs", "bin", "--restore")
    assert set(listed(say)) == {"One", "Two"}


def test_what_is_exported_is_taken_in_elsewhere(say: Say, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert "comparison One" in say("runs", "export", "one", "--out", str(tmp_path / "out"))
    commands(
        ["runs", "import", str(tmp_path / "out" / "one.kvlab.zip"), "--runs", str(tmp_path / "there")],
        standalone_mode=False,
    )
    capsys.readouterr()
    commands(["runs", "ls", "--json", "--runs", str(tmp_path / "there")], standalone_mode=False)
    assert [row["title"] for row in json.loads(capsys.readouterr().out)] == ["One"]


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("runs", "rm", "../one"), "There is no"),
        (("runs", "label", "one"), "Name a change"),
        (("runs", "label", "one", "two", "--title", "x"), "A title is for one"),
        (("runs", "label", "one", "--tag", "<b>"), "is not a valid tag"),
        (("runs", "ls", "--where", "since=yesterday"), "is no day"),
        (("runs", "ls", "--where", "colour=red"), "the names are kind"),
        (("runs", "ls", "--sort", "colour"), "cannot be sorted"),
        (("runs", "bin", "--restore"), "is empty"),
        (("runs", "export"), "Name what to export"),
        (("runs", "export", "--story", "None"), "no story"),
        (("runs", "import", "nothing.zip"), "no file"),
    ],
)  # fmt: skip
def test_bad_input_is_one_sentence(say: Say, words: tuple[str, ...], named: str):
    with pytest.raises(UserError, match=named) as refused:
        say(*words)
    assert "\n" not in str(refused.value)


def test_a_comparison_has_the_title_and_tags_it_was_given(tiny_model_folder: Path, tmp_path: Path, capsys):
    words = ("--model", str(tiny_model_folder), "--methods", "h2o", "--new-tokens", "2", "--out", str(tmp_path))
    prompt = ("--prompt", "a lamp and an old captain wrote a key under the stone of the river")
    with pytest.raises(UserError, match="is not a valid tag"):
        commands(["compare", *words, *prompt, "--tag", "<b>"], standalone_mode=False)
    assert not list(tmp_path.glob("*full*"))
    commands(["compare", *words, *prompt, "--title", "Lamps", "--tag", "talk"], standalone_mode=False)
    capsys.readouterr()
    commands(["runs", "ls", "--json", "--where", "tag=talk", "--runs", str(tmp_path)], standalone_mode=False)
    assert [row["title"] for row in json.loads(capsys.readouterr().out)] == ["Lamps"]


def test_a_story_is_exported_without_a_comparison_and_never_with_one(say: Say, tmp_path: Path):
    save_story(tmp_path, Story(name="Talk", views=(View(page="sag", caption="First."),)))
    made = tmp_path.with_name(f"{tmp_path.name}-talk.html")
    assert "talk.html: " in say("report", "--story", "Talk", "--out", str(made)) and b"First." in made.read_bytes()
    for words in ((), ("three", "--story", "Talk")):
        with pytest.raises(UserError, match="Name a comparison of `kvlab runs ls`, or a story"):
            say("report", *words, "--out", str(made))


def test_a_copied_run_is_listed_opened_and_reported_and_a_renamed_one_is_named(
    say: Say, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert listed(say) == ["Two", "One"]
    elsewhere = tmp_path.with_name(f"{tmp_path.name}-elsewhere")
    small = {"layers": 1, "heads": 1, "steps": 2, "level": "light"}
    path = write_synthetic_run(elsewhere, comparison_id="three", title="Three", **small)
    copy = shutil.copytree(path, tmp_path / path.name)
    assert listed(say) == ["Three", "Two", "One"]
    assert _page_for(tmp_path, "three") == "/compare?comparison=three"
    assert "three.html: " in say("report", "three", "--out", str(elsewhere / "three.html"))
    copy.rename(tmp_path / "renamed")
    commands(["runs", "ls", "--runs", str(tmp_path)], standalone_mode=False)
    said = capsys.readouterr()
    assert "Three" not in said.out and "not of renamed: rename the folder back" in said.err


def test_a_run_is_exported_with_its_comparison(say: Say, tmp_path: Path):
    run = next(path for path in sorted(tmp_path.iterdir()) if path.name.startswith("one"))
    for name in (run.name, str(run)):
        assert "comparison One" in say("runs", "export", name, run.name, "--out", str(tmp_path / "out"))
    assert [file.name for file in (tmp_path / "out").iterdir()] == ["one.kvlab.zip"]
