"""`kvlab prefix`: from a text to answers, and what is asked before something is removed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from kvlab.cli import commands

SENTENCE = "The old house stood on the hill, and nobody lived in it. "


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


def invoked(root: Path, *words: str, typed: str | None = None) -> Result:
    return CliRunner().invoke(commands, ["prefix", *words, "--runs", str(root)], input=typed)


def run(root: Path, *words: str, typed: str | None = None) -> str:
    result = invoked(root, *words, typed=typed)
    assert result.exit_code == 0, result.exception
    return result.output


def test_a_prefix_from_its_text_to_its_end(root: Path, tiny_folder: Path) -> None:
    made = run(
        root, "make", "house", "--prompt", SENTENCE * 12, "--model", str(tiny_folder), "--method",
        "keepkv:preset=paper", "--budget", "0.3", "--title", "A house",
    )  # fmt: skip
    assert "read and compressed in" in made and "house.safetensors" in made
    (row,) = json.loads(run(root, "ls", "--json"))
    assert (row["name"], row["title"], row["choice"]["method"], row["choice"]["budget"]) == (
        "house",
        "A house",
        "keepkv",
        0.3,
    )
    assert "keepkv 30 %" in run(root, "ls") and "A house" in run(root, "ls")

    shown = run(root, "ls", "house", "--verify")
    for words in ("keepkv 30 % (paper)", row["text_sha256"], "rope_theta", "slots per head", "checksums are right"):
        assert words in shown
    assert SENTENCE in run(root, "ls", "house", "--text")
    assert len(json.loads(run(root, "ls", "house", "--json"))["layers"]) == 2

    ask = ("ask", "house", "Who lived in it?", "--new-tokens", "3", "--json")
    told = run(root, *ask).splitlines()
    assert told[0].endswith(" ms") and json.loads(told[-1])["ended"] in ("end", "length")
    again = json.loads(run(root, *ask).splitlines()[-1])
    assert again["answer"] == json.loads(told[-1])["answer"]

    assert "is a copy of house" in run(root, "make", "talk", "--from", "house")
    run(root, "ask", "talk", "Who?", "Why?", "--new-tokens", "2", "--keep")
    assert "more read in" in run(root, "make", "cat", "--from", "house", "--prompt", "A cat moved in.")
    rows = {one["name"]: one for one in json.loads(run(root, "ls", "--json"))}
    assert rows["talk"]["questions"] == 2 and rows["house"] == row and rows["cat"]["tokens"] > row["tokens"]
    assert "A cat moved in." in run(root, "ls", "cat", "--text")

    assert "Nothing was removed" in str(invoked(root, "rm", "talk", typed="n\n").exception)
    assert "freed" in run(root, "rm", "talk", typed="y\n")
    run(root, "rm", "house", "cat", "--yes")
    assert json.loads(run(root, "ls", "--json")) == []
    assert "Nothing is kept yet" in run(root, "ls")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("ask", "nothing", "Who?"), "There is no prefix 'nothing'"),
        (("ls", "nothing"), "There is no prefix 'nothing'"),
        (("rm", "nothing", "--yes"), "There is no prefix 'nothing'"),
        (("make", "other", "--from", "nothing"), "There is no prefix 'nothing'"),
        (("make", "a/b", "--prompt", "x"), "A prefix cannot be called 'a/b'"),
        (("make", "a", "--prompt", "x", "--method", "nothing"), "There is no method called"),
        (("make", "a", "--prompt", "x", "--budget", "none"), "budget"),
        (("make", "a"), "Give exactly one prompt"),
    ],
)
def test_bad_input_is_one_sentence(root: Path, words: tuple[str, ...], sentence: str) -> None:
    result = invoked(root, *words)
    assert result.exit_code != 0
    assert sentence in str(result.exception)
