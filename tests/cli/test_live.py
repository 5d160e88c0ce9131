"""`kvlab live`: answers of all branches, events as JSON, commands typed, and bad input in one sentence."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kvlab.cli import commands

ARGUMENTS = [
    "live",
    "--prompt",
    "The old house stood on the hill. " * 12,
    "--methods",
    "h2o,snapkv",
    "--new-tokens",
    "4",
]


def run(*arguments: str, typed: str | None = None) -> str:
    result = CliRunner().invoke(commands, [*ARGUMENTS, *arguments], input=typed)
    assert result.exit_code == 0, result.exception
    return result.output


def test_every_question_is_answered_in_a_column_a_branch() -> None:
    shown = run("--question", "Who?", "--question", "Why?", "--budgets", "0.3")
    assert shown.count("h2o 30 %") == shown.count("snapkv 30 %") == shown.count("full 100 %") == 2
    assert shown.count("length, ") == 6


def test_events_are_lines_of_json() -> None:
    lines = run("--question", "Who?", "--json").splitlines()
    events = [json.loads(line) for line in lines if line.startswith("{")]
    kinds = [event["kind"] for event in events]
    assert kinds[:4] == ["context_read", "branch_settled", "branch_settled", "branch_settled"]
    assert kinds.count("token") == 12
    assert kinds.count("answer_ended") == 3
    assert {event["branch"] for event in events if event["kind"] == "token"} == {0, 1, 2}


def test_commands_are_followed_and_unknown_ones_explained() -> None:
    shown = run(typed="Who?\n/again\n/budget 0.1\n/restart\n/nonsense\n\n/again\n/quit\nnever read\n")
    assert "There is no command /nonsense: /again answers once more" in shown
    assert "Nothing was asked yet." in shown
    assert shown.count("length, ") == 6
    assert "tokens read and compressed" in shown


def test_a_conversation_is_kept_as_a_replay(tmp_path: Path) -> None:
    shown = run("--question", "Who?", "--replay", str(tmp_path / "talk.html"))
    page = (tmp_path / "talk.html").read_text()
    assert "talk.html: " in shown
    (data,) = re.findall(r'id="session">(.*?)</script>', page, re.DOTALL)
    kinds = [event["kind"] for event in json.loads(data)["events"]]
    assert kinds.count("branch_settled") == kinds.count("held") == 3
    assert kinds.count("token") == 12


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--methods", "nothing"], "There is no method called"),
        (["--set", "thinking=yes"], "would have no effect"),
        (["--question", " "], "The question is empty"),
        (["--replay", "x.mp4"], "end 'x.mp4' with .html or .gif"),
        (["--file", "x.txt"], "Give exactly one prompt"),
    ],
)
def test_bad_input_is_one_sentence(arguments: list[str], sentence: str) -> None:
    result = CliRunner().invoke(commands, [*ARGUMENTS, *arguments])
    assert result.exit_code != 0
    assert sentence in str(result.exception)
