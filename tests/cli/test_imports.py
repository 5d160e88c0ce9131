"""What a command imports, and the lists that are read from a file so that they need neither torch nor every task."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kvlab.cli import stored_list
from kvlab.core.plugins.load import FILES
from tests.synthetic.runs import write_synthetic_run

HEAVY = {"torch", "transformers", "plotly", "streamlit", "nltk"}
TABLES = {"pandas", "pyarrow"}


def imported(cache: Path, *arguments: str) -> set[str]:
    """Heavy packages that the command leaves in its process."""
    code = f"import sys; sys.argv = ['kvlab', *{arguments!r}]\nfrom kvlab.cli import main\n"
    code += "try: main()\nexcept SystemExit as ended: assert not ended.code\n"
    code += f"print(sorted({HEAVY | TABLES!r} & set(sys.modules)), file=sys.stderr)"
    environment = os.environ | {"KVLAB_CACHE": str(cache)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=240)
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stderr.splitlines()[-1].replace("'", '"')))


def test_what_is_looked_up_daily_imports_no_model_stack(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    write_synthetic_run(runs, layers=1, heads=1, prompt_tokens=8, steps=1)
    assert imported(tmp_path, "--help") == set()
    assert not imported(tmp_path, "runs", "ls", "--runs", str(runs)) & HEAVY
    for name in ("methods", "tasks"):
        (tmp_path / "lists").mkdir(exist_ok=True)
        imported(tmp_path, name)  # makes the file
        assert imported(tmp_path, name, "--json") == set()


def test_a_method_that_is_not_in_the_list_is_one_sentence_with_what_to_do(tmp_path: Path) -> None:
    """In a process of its own: here all methods are imported, which a list read from a file leaves out."""
    asked = [sys.executable, "-m", "kvlab", "methods", "no-such-method"]
    done = subprocess.run(asked, capture_output=True, text=True, env=os.environ | {"KVLAB_CACHE": str(tmp_path)})
    assert done.returncode == 2 and not done.stdout
    assert done.stderr == "kvlab: There is no method called 'no-such-method'; `kvlab methods` lists all.\n"


def test_a_list_is_made_once_and_again_after_an_edit_or_with_plugins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []
    sources = tmp_path / "sources"
    sources.mkdir()
    (sources / "a.py").write_text("one = 1\n")
    monkeypatch.setenv("KVLAB_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv(FILES, raising=False)
    monkeypatch.setattr(stored_list, "PACKAGE", sources)

    def listed(registry: str = "a module that nothing loads") -> list[str]:
        return stored_list.stored_list("words", registry, lambda: made.append("x") or list(made))

    assert [listed(), listed()] == [["x"], ["x"]] and len(made) == 1
    (sources / "a.py").write_text("one = 1000\n")
    assert listed() == ["x", "x"]
    assert len(list((tmp_path / "cache" / "lists").glob("words-*.json"))) == 1
    assert len(listed("json")) == 3, "a registry that is loaded may hold more than the file"
    monkeypatch.setenv(FILES, str(tmp_path / "own.py"))
    assert len(listed()) == 4
    monkeypatch.delenv(FILES)
    assert len(listed()) == 2
    (tmp_path / "cache" / "lists" / next((tmp_path / "cache" / "lists").glob("*")).name).write_text("no JSON")
    assert len(listed()) == 5
