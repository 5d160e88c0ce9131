"""Commands of installed packages: loaded when they are asked for, whatever the others do."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import typer

from kvlab.cli import COMMANDS, commands, main

MODULE = """
import typer

tree = typer.Typer(help="A tree.")

def hello(name: str = "you") -> None:
    \"\"\"Greet somebody.\"\"\"
    print(f"hello {name}")

@tree.command()
def leaf() -> None:
    print("green")

@tree.command()
def root() -> None:
    print("brown")

number = 5

def odd(value: "NoSuchType") -> None: ...
"""
BROKEN = {
    "missing": "no_such_module_of_kvlab:run",
    "nothing": "added_by_test:nothing",
    "number": "added_by_test:number",
    "odd": "added_by_test:odd",
    "ends": "added_ends:run",
    "raises": "added_raises:run",
}


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed distribution with commands that work, that are broken, and with names that kvlab has."""
    points = {"hello": "added_by_test:hello", "tree": "added_by_test:tree", **BROKEN}
    points |= {"plan": "added_by_test:hello", "fit": "added_by_test:hello"}
    (tmp_path / "added_by_test.py").write_text(MODULE)
    (tmp_path / "added_ends.py").write_text("raise SystemExit(3)")
    (tmp_path / "added_raises.py").write_text("raise ValueError('one\\ntwo')")
    distribution = tmp_path / "added_package-1.0.dist-info"
    distribution.mkdir()
    (distribution / "METADATA").write_text("Metadata-Version: 2.1\nName: added-package\nVersion: 1.0\n")
    lines = [f"{name} = {value}" for name, value in points.items()]
    (distribution / "entry_points.txt").write_text("\n".join(["[kvlab.commands]", *lines, ""]))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr("sys.modules", sys.modules.copy())


def run(*arguments: str) -> Any:
    return typer.main.get_command(commands).main(list(arguments), standalone_mode=False)


@pytest.mark.usefixtures("package")
def test_functions_and_applications_become_commands(capsys: pytest.CaptureFixture[str]) -> None:
    run("hello", "--name", "Ada")
    run("tree", "leaf")
    assert capsys.readouterr().out == "hello Ada\ngreen\n"
    for command in (["hello"], ["tree"]):
        run(*command, "--help")
        assert "completion" not in capsys.readouterr().out


@pytest.mark.usefixtures("package")
def test_a_broken_one_is_a_sentence_and_the_others_work(capsys: pytest.CaptureFixture[str]) -> None:
    run("--help")
    shown = capsys.readouterr()
    for name in ("hello", "tree", "compare", *COMMANDS):
        assert f" {name} " in shown.out
    sentences = shown.err.splitlines()
    assert len(sentences) == len(BROKEN) + 2 and all("of added-package" in one for one in sentences)
    for name in (*BROKEN, "plan", "fit"):
        assert sum(f"'{name}'" in one for one in sentences) == 1
    run("hello")
    assert capsys.readouterr().err == ""  # asked for alone, nothing is said of the others


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_one_asked_for_by_name_is_refused_in_one_sentence(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["kvlab", name])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.usefixtures("package")
def test_names_of_kvlab_stay_its_own() -> None:
    group = typer.main.get_command(commands)
    assert "Greet somebody" not in f"{group.get_command(None, 'plan').help} {group.get_command(None, 'fit').help}"
    assert group.get_command(None, "no-such-command") is None
