"""What a file says of its prompts stands in every run: answers that are right, and what was left out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kvlab.cli import commands
from kvlab.core.errors import UserError
from kvlab.trace import open_run
from tests.cli.running import PROMPT

FEW = ["--methods", "snapkv", "--budgets", "8", "--new-tokens", "2", "--level", "off"]


def compared(model: Path, out: Path, *arguments: str) -> tuple[str, list]:
    """What a comparison says on standard error, and its records."""
    done = CliRunner().invoke(commands, ["compare", *arguments, *FEW, "--model", str(model), "--out", str(out)])
    assert done.exit_code == 0, done.output
    records = [open_run(path.parent).record for path in sorted(out.glob("*/run.json"))]
    assert records
    return done.stderr, records


def test_rows_bring_their_answers_and_notes(tiny_model_folder: Path, tmp_path: Path) -> None:
    rows = [
        {"context": PROMPT, "question": "What jumps?", "answer": ["fox", "the fox"], "hint": "not a dog"},
        {"context": PROMPT, "question": "How many?", "answer": 1, "hint": "few"},
    ]
    file = tmp_path / "t.jsonl"
    file.write_bytes("\r\n".join(map(json.dumps, rows)).encode("utf-16"))
    said, records = compared(tiny_model_folder, tmp_path / "runs", "--file", str(file))
    note = "Left out of the prompt: the column hint."
    assert f"t.jsonl: {note}" in said
    assert "snapkv 8 slots" not in said and "does not exceed the observation window" in said
    assert {(one.prompt, one.answer, one.other_answers) for one in records} == {
        (f"{PROMPT}What jumps?", "fox", ("the fox",)), (f"{PROMPT}How many?", "1", ()),
    }  # fmt: skip
    assert all(note in one.notes and note in one.remarks for one in records)


def test_a_chat_and_a_page_say_what_of_them_is_not_read(tiny_model_folder: Path, tmp_path: Path) -> None:
    parts = [{"type": "image_url", "image_url": {"url": "data:"}}, {"type": "text", "text": PROMPT}]
    chat, page = tmp_path / "chat.json", tmp_path / "page.html"
    chat.write_text(json.dumps([{"role": "user", "content": parts}]))
    page.write_text(f"<p>{PROMPT}<img src='x'>")
    for file in (chat, page):
        said, records = compared(tiny_model_folder, tmp_path / file.stem, "--file", str(file))
        assert f"{file.name}: 1 image was left out." in said
        assert [one.notes[0] for one in records] == ["1 image was left out."] * len(records)


def test_a_text_with_a_planted_needle_keeps_what_is_said_of_its_file(tmp_path: Path, tiny_model_folder: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text(f"<p>{PROMPT.replace(' while', '. While')}<img src='x'>")
    _, records = compared(tiny_model_folder, tmp_path / "runs", "--file", str(page), "--repeats", "2")
    assert {one.repeat.number for one in records} == {1, 2}
    assert all("1 image was left out." in one.notes for one in records)


def test_a_length_that_cannot_hold_its_task_is_said_before_a_model_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvlab.evaluation.harness.held_model", lambda *_: pytest.fail("loaded"))
    asked = ["eval", "--tasks", "needle,key_value", "--lengths", "512,200", "--methods", "h2o", "--out", str(tmp_path)]
    done = CliRunner().invoke(commands, asked)
    assert isinstance(done.exception, UserError)
    assert "key_value: 200 tokens cannot hold this task: ask for at least" in str(done.exception)


def test_the_form_s_question_about_lengths_is_answered_as_data() -> None:
    """None of which loads a model; what is no length of the model's is said too."""
    for lengths, problem in (
        ([512], ""),
        ([100], "100 tokens cannot hold"),
        ([9999], "do not fit the model's context window"),
    ):
        request = json.dumps({"tasks": [{"task": "needle"}, {"task": "key_value"}], "lengths": lengths})
        said = json.loads(CliRunner().invoke(commands, ["tasks", "--json", "--fits"], input=request).stdout)["problem"]
        assert problem in said and bool(problem) == bool(said)
