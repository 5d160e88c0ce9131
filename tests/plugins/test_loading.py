"""Plug-ins by file and by package: known to every process, refused by name, left out whole when they fail."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from hashlib import sha256
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from kvlab.core.contract.method import METHODS
from kvlab.core.errors import UserError
from kvlab.core.methods import make_method, registered
from kvlab.core.methods.composition.composed import choices, compose
from kvlab.core.plugins import load
from kvlab.core.plugins.load import Registry, load_plugins, stamps
from kvlab.core.plugins.origin import Origin, registering
from kvlab.evaluation.scoring.metrics import METRICS
from kvlab.tasks.loaders import LOADERS
from kvlab.tasks.registry import TASKS

METHOD = """
from typing import ClassVar
from kvlab.core.contract.method import Method, register
from kvlab.core.methods.eviction.window import Window

__version__ = "1.2"

@register
class Mine(Window):
    '''Keeps the last tokens, under another name.'''
    name: ClassVar[str] = "{name}"
    title: ClassVar[str] = "Mine"
"""
PARTS = """
from dataclasses import dataclass
from typing import ClassVar
from kvlab.core.methods.composition.register import register_scorer, register_settler
from kvlab.core.contract.pipeline import Evict

@register_scorer("loudest")
@dataclass(frozen=True)
class Loudest:
    power: float = 2.0
    every_step = False
    needs_hidden_states = False
    state: ClassVar = {}
    def update(self, slots, seen, first):
        return {"score": slots.values.float().norm(dim=-1) ** self.power}
"""


def test_a_file_brings_a_method(plugin: Callable[..., Path]) -> None:
    path = plugin(METHOD.format(name="mine"))
    assert make_method("mine").title == "Mine"
    assert list(registered())[-1] == "mine", "what comes from outside is listed last"
    digest = sha256(path.read_bytes()).hexdigest()
    assert stamps() == {"plugin:mine": f"1.2 sha256:{digest[:16]}"}
    assert registered()["mine"].describe()["origin"] == f"mine 1.2 sha256:{digest[:16]}"
    assert registered()["h2o"].describe()["origin"] == ""


def test_a_taken_name_is_refused_naming_both(plugin: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
    path = plugin(METHOD.format(name="h2o"))
    assert registered()["h2o"].title == "H2O", "the method that was there stays"
    told = capsys.readouterr().err
    assert "'h2o'" in told and "kvlab itself" in told and str(path) in told and told.count("\n") == 1
    assert [p.failure for p in load_plugins()] == [told.removeprefix("kvlab: ").rstrip()]


def test_two_files_do_not_share_a_name(plugin: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
    first, second = plugin(METHOD.format(name="mine"), "first"), plugin(METHOD.format(name="mine"), "second")
    assert registered()["mine"].describe()["origin"].startswith("first 1.2")
    told = capsys.readouterr().err
    assert str(first) in told and str(second) in told


def test_what_fails_halfway_leaves_nothing(plugin: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
    plugin(METHOD.format(name="mine") + "\nraise RuntimeError('half\\na page of advice')", "broken")
    plugin(METHOD.format(name="other"), "whole")
    assert "mine" not in registered() and "other" in registered()
    told = capsys.readouterr().err
    assert "left out: RuntimeError: half." in told and "advice" not in told
    registered()
    assert capsys.readouterr().err == "", "it is said once"


@pytest.mark.parametrize("name", ["mine", "mins", "window-of-mine"])
def test_an_unknown_method_names_the_plugin_that_failed_first_and_few_others(
    plugin: Callable[..., Path], name: str
) -> None:
    path = plugin(METHOD.format(name=name) + "\nimport no_such_package", "broken")
    with pytest.raises(UserError) as error:
        make_method(name)
    said = str(error.value)
    assert said.startswith(f"The plug-in broken ({path}) was left out: ModuleNotFoundError")
    assert f"There is no method called {name!r}" in said and sum(one in said.split() for one in registered()) <= 4


@pytest.mark.parametrize(
    ("registry", "name", "meant"),
    [
        (METHODS, "h20", "h2o"),
        (METHODS, "streaming", "streaming-llm"),
        (METHODS, "SnapKV", "snapkv"),
        (TASKS, "neddle", "needle"),
        (LOADERS, "longbenc", "longbench"),
        (METRICS, "f1_", "f1"),
    ],
)
def test_an_unknown_name_is_answered_with_those_that_are_like_it(registry: Registry, name: str, meant: str) -> None:
    said = str(registry.unknown(name))
    assert meant in said and len(said) < 300
    assert all(len(str(METHODS.unknown(far))) < 100 for far in ("zzzz", "q", 7))


def test_a_file_that_is_gone_by_then_is_a_sentence(
    plugin: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    plugin("x = 1", "gone").unlink()
    load_plugins()
    assert "there is no such file" in capsys.readouterr().err


@pytest.mark.parametrize("path", ["nowhere.py", ".", "/dev/null"])
def test_only_a_python_file_can_be_named(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(load.FILES, "")
    with pytest.raises(UserError, match="There is no Python file"):
        load.name_files([Path(path)])


def test_a_path_is_made_absolute_and_named_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(load.FILES, "")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("")
    load.name_files([Path("mine.py"), Path("mine.py")])
    assert os.environ[load.FILES] == str(tmp_path / "mine.py")


def test_a_package_is_found_by_its_entry_point_and_can_be_left_out(
    plugin: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "kvlab_of_a_stranger.py").write_text(METHOD.format(name="posted"))
    monkeypatch.syspath_prepend(tmp_path)
    points = [EntryPoint("stranger", "kvlab_of_a_stranger", load.GROUP)]
    monkeypatch.setattr(load, "entry_points", lambda group: points if group == load.GROUP else [])
    monkeypatch.setenv(load.ALLOWED, "somebody")
    assert "posted" not in registered()
    monkeypatch.setenv(load.ALLOWED, "somebody, stranger")
    assert "posted" in registered()
    assert load._loaded["stranger=kvlab_of_a_stranger"].origin.name == "stranger"


def test_parts_join_compositions(plugin: Callable[..., Path]) -> None:
    plugin(PARTS)
    assert "loudest" in choices()["score"]
    made = compose(score="loudest", settle="zsmerge", power=3.0)
    assert made.pipeline().score.power == 3.0
    assert "loudest" not in registered()
    with pytest.raises(UserError, match="power"):
        compose(score="loudest", power="much")
    with pytest.raises(UserError, match="There is no settle choice called 'loudest'"):
        compose(settle="loudest")


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("class Part: pass", "make it a frozen dataclass"),
        ("@dataclass(frozen=True)\nclass Part:\n    power: float", "needs a default"),
        ("@dataclass(frozen=True)\nclass Part:\n    power: float = 1.0", "it lacks update"),
    ],
)
def test_a_part_that_does_not_follow_the_protocol_is_refused(
    plugin: Callable[..., Path], capsys: pytest.CaptureFixture[str], body: str, said: str
) -> None:
    lines = body.splitlines()
    head = "from dataclasses import dataclass\nfrom kvlab.core.methods.composition.register import register_scorer\n"
    plugin("\n".join([head, "@register_scorer('bad')", *lines]))
    assert "bad" not in choices()["score"]
    assert said in capsys.readouterr().err


def test_every_registry_refuses_a_second_owner() -> None:
    shelf: Registry[object] = Registry("thing", {"ours": object()})
    try:
        with registering(Origin("a", place="a.py")):
            shelf.add("theirs", object())
        with pytest.raises(UserError, match=r"kvlab itself; that of b"), registering(Origin("b", place="b.py")):
            shelf.add("ours", object())
        with pytest.raises(UserError, match=r"a \(a.py\)"), registering(Origin("b", place="b.py")):
            shelf.add("theirs", object())
    finally:
        Registry.every.remove(shelf)


def test_the_option_reaches_other_processes(tmp_path: Path) -> None:
    """The list of methods is asked of a second process by the dashboard, with another current folder."""
    (tmp_path / "mine.py").write_text(METHOD.format(name="mine"))
    command = [sys.executable, "-P", "-m", "kvlab", "methods", "--json", "--plugin", "mine.py"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True, env=environment)
    assert "mine" in [method["name"] for method in json.loads(done.stdout)]
