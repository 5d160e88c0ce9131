"""docs/writing-a-method.md: its files load, its commands are commands, and what it promises is so."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kvlab.cli import commands
from kvlab.core.choice import MethodChoice
from kvlab.core.methods import registered
from kvlab.core.methods.composition.composed import choices
from kvlab.core.methods.sparse_attention import sparse_attention_of
from kvlab.core.plugins.load import FILES as FILES_NAMED
from kvlab.core.plugins.load import load_plugins
from kvlab.engine import compare
from kvlab.requests.compare import CompareRequest
from kvlab.trace.reader import open_run
from tests.families import tiny_folder
from tests.methods.sparse_loops import held

GUIDE = (Path(__file__).resolve().parents[2] / "docs" / "writing-a-method.md").read_text()
SPARSE_GUIDE = (Path(__file__).resolve().parents[2] / "docs" / "readings.md").read_text()
FILES = {found[1]: found[2] for found in re.finditer(r"```python\n# (\w+)\.py\n(.*?)```", GUIDE, re.S)}
COMMANDS = re.findall(r"^    (kvlab .+)$", GUIDE, re.M)


def test_the_guide_has_what_is_tested() -> None:
    assert list(FILES) == ["shortest", "parts", "more"] and len(COMMANDS) == 5


FORMER_NAMES = {"SparseShare": "PartReading", "register_sparse_attention": "register_reading"}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("names", [{}, FORMER_NAMES])
def test_the_sparse_attention_of_its_own_guide_reads_the_newest_slots(
    plugin: Callable[..., Path], names: dict[str, str]
) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", SPARSE_GUIDE, re.S)
    for name, former in names.items():
        code = code.replace(name, former)
    plugin(code, "newest")
    sparse_attention = sparse_attention_of("newest/share=0.5")
    assert sparse_attention is not None
    query, table = held(slots=10)
    slots = sparse_attention.choose(query, table, sparse_attention.index(table)).slots
    assert sorted(slots[1, 1, 0].tolist()) == [5, 6, 7, 8, 9]


def test_its_files_load_and_bring_what_they_say(plugin: Callable[..., Path]) -> None:
    for name, code in FILES.items():
        plugin(code, name)
    assert "shortest" in registered() and "value-length" in choices()["score"]
    brought = {found.origin.name: found.brought for found in load_plugins() if found.origin.name in FILES}
    assert brought["more"] == {"metric": ["first_word"], "loader": ["notes"], "view": ["held"]}


@pytest.mark.parametrize("line", COMMANDS)
def test_its_commands_exist_with_their_options(line: str) -> None:
    words = shlex.split(line)[1:]
    own = words[: 2 if words[0] == "plugin" else 1]
    shown = CliRunner().invoke(commands, [*own, "--help"], terminal_width=200)
    assert shown.exit_code == 0, line
    for option in (word for word in words if word.startswith("--")):
        assert option in shown.output, f"{option} of {line}"


def test_a_run_says_whose_method_it_is_and_opens_without_it(plugin: Callable[..., Path], tmp_path: Path) -> None:
    plugin(FILES["shortest"], "shortest")
    model = tiny_folder(tmp_path / "model")
    choice = MethodChoice(method="shortest", budget=0.5)
    request = CompareRequest(model=str(model), prompt="Once there was a house on a hill. " * 4, choices=(choice,))
    run = open_run(compare(request.model_copy(update={"max_new_tokens": 4}), tmp_path / "runs")[-1])
    assert re.fullmatch(r"sha256:[0-9a-f]{16}", run.record.versions["plugin:shortest"])
    code = (
        "import sys; from kvlab.trace.reader import open_run; from kvlab.views.frames.compare import *\n"
        f"run = open_run({str(run.path)!r}); print(run.record.method, len(run.steps) > 0)"
    )
    without = {name: value for name, value in os.environ.items() if name != FILES_NAMED}
    without["PYTHONPATH"] = os.pathsep.join(sys.path)
    alone = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=without)
    assert alone.stdout.split() == ["shortest", "True"]
