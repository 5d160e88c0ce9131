"""What a person wrote is printed as written: square brackets are no markup, and control characters move no cursor."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from rich.table import Table
from typer.testing import CliRunner

import kvlab
from kvlab.cli import commands
from kvlab.common.terminal import PlainConsole, progress_columns, without_controls
from tests.cli.running import every_command
from tests.cli.running import kvlab as run
from tests.synthetic.runs import write_synthetic_run

HOSTILE = [
    "[INST] What? [/INST]",
    "[draft] list[int]",
    "[bold red]x[/bold red]",
    "[/]",
    "[link=file:///etc/passwd]here[/link]",
    "[@click=app.quit]x",
    ":rocket: :warning:",
    r"C:\[x] \[bold]",
    "<s>[/s] [[nested]]",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_a_table_shows_every_cell_heading_and_caption_as_written(text: str):
    shown = io.StringIO()
    table = Table(f"head {text}", title=f"title {text}", caption=f"caption {text}")
    table.add_row(f"cell {text}")
    console = PlainConsole(file=shown, width=200)
    console.print(table)
    console.print(f"line {text}")
    for place in ("head", "title", "caption", "cell", "line"):
        assert f"{place} {text}" in shown.getvalue()


def test_a_progress_bar_shows_its_stage_as_written():
    description = progress_columns()[-1]
    task = type("Task", (), {"description": "h2o [/INST] [bold]x", "fields": {}})()
    assert str(description.render(task)) == "h2o [/INST] [bold]x"


def test_control_characters_are_shown_and_not_obeyed():
    shown = io.StringIO()
    table = Table("title")
    table.add_row("red \x1b[31m clear \x1b[2J bell \x07 c1 \x9b31m")
    PlainConsole(file=shown, width=200).print(table)
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", shown.getvalue())
    assert "␛[31m" in shown.getvalue() and without_controls("a\tb\nc ü 東") == "a\tb\nc ü 東"


@pytest.mark.parametrize("text", HOSTILE)
def test_lists_of_runs_and_prompts_show_what_was_given(tmp_path: Path, text: str):
    write_synthetic_run(tmp_path, comparison_id="one", title=text, layers=1, heads=1, steps=2, level="light")
    assert text in " ".join(run("runs", "ls", "--runs", str(tmp_path)).split())
    run("prompts", "save", "inst", "--prompt", f"{text} a prompt", "--answer", "[/x]", "--runs", str(tmp_path))
    prompts = run("prompts", "ls", "--runs", str(tmp_path))
    assert text in prompts and "[/x]" in prompts


def test_every_console_is_the_plain_one():
    for file in Path(kvlab.__file__).parent.rglob("*.py"):
        if file.name != "terminal.py":
            made = re.findall(r"\b(?:Console|TextColumn)\(", file.read_text(encoding="utf-8"))
            assert not made, (
                f"{file} makes a {made[0]}) of its own, which reads markup: take one from kvlab.common.terminal"
            )


EVERY = [*every_command()]


@pytest.mark.parametrize(("path", "command"), EVERY, ids=[" ".join(path) or "kvlab" for path, _ in EVERY])
def test_help_loses_no_word_in_brackets(path: tuple[str, ...], command: object):
    texts = [getattr(command, "help", "") or "", *(getattr(one, "help", "") or "" for one in command.params)]
    bracketed = [word.replace("\\[", "[") for text in texts for word in text.split() if "[" in word]
    shown = CliRunner().invoke(commands, [*path, "--help"], env={"COLUMNS": "300", "TERM": "dumb"}).output
    for word in bracketed:
        assert word in re.sub(r"[│\s]", "", shown)
