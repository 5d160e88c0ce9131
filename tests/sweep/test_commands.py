"""`kvlab sweep`: plan, work and status; bad input is one sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from kvlab.cli import commands
from kvlab.cli.sweep import sweep_commands
from kvlab.core.errors import UserError
from kvlab.sweep.on_ray import check_address
from tests.sweep.conftest import asked, planned


@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://127.0.0.1:1", "127.0.0.1:99999"])
def test_a_dead_address_is_said_at_once(address: str) -> None:
    with pytest.raises(UserError, match="No Ray answers at") as error:
        check_address(address)
    assert "\n" not in str(error.value)
    check_address(None)
    check_address("auto")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("plan", "{}", "--tasks", "haystack"), "There is no task called 'haystack'"),
        (("plan", "{}", "--methods", "h3o"), "h3o"),
        (("plan", "{}", "--tasks", "needle", "--block", "0"), "--block"),
        (("plan", "{}", "--tasks", "needle", "--model", "nowhere/at-all"), "nowhere/at-all"),
        (("run", "{}"), "holds no sweep"),
        (("work", "{}"), "holds no sweep"),
        (("status", "{}"), "holds no sweep"),
    ],
)
def test_bad_input_is_one_sentence(tmp_path: Path, arguments: tuple[str, ...], told: str) -> None:
    found = CliRunner().invoke(commands, ["sweep", *(text.format(tmp_path / "x") for text in arguments)])
    assert isinstance(found.exception, UserError) and told in str(found.exception)
    assert "\n" not in str(found.exception) and not (tmp_path / "x" / "sweep.json").exists()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        '{"format": 2}',
        '{"format": 3}',
        '{"format":1,"versions":{},"requests":[],"block":2,"shards":[{"name":"../x"}]}',
    ],
)
def test_a_malformed_plan_is_one_sentence(tmp_path: Path, text: str) -> None:
    (tmp_path / "sweep.json").write_text(text)
    for command in ("status", "work", "run"):
        found = CliRunner().invoke(commands, ["sweep", command, str(tmp_path)])
        assert isinstance(found.exception, UserError) and "create it again" in str(found.exception)
        assert "\n" not in str(found.exception)


def test_the_command_plans_and_tells_how_far_it_is(tiny_folder: Path, folder: Path) -> None:
    run = CliRunner()
    options = ["--model", f"{tiny_folder}", "--tasks", "needle", "--methods", "h2o", "--budgets", "0.2"]
    planned_ = run.invoke(commands, ["sweep", "plan", str(folder), *options, "--lengths", "120", "--samples", "2"])
    assert planned_.exit_code == 0, planned_.output
    assert "1 shard of at most 32 prompts, 4 rows; 0 of the shards measured." in planned_.output
    assert run.invoke(commands, ["sweep", "status", str(folder)]).stdout == "0 of 1 shards, 0 workers seen, 0 lost\n"
    worked = run.invoke(commands, ["sweep", "work", str(folder)])
    assert worked.exit_code == 0, worked.output
    told = json.loads(run.invoke(commands, ["sweep", "status", str(folder), "--json"]).stdout)
    assert told["planned"] == told["there"] == 1 and told["workers"][0]["ended"] == "done"


def test_an_option_of_sbatch_that_cannot_be_read_is_a_sentence(tiny_folder: Path, folder: Path) -> None:
    planned(folder, asked(tiny_folder, tasks="needle", samples=1))
    for options, told in (
        (["--on", "cloud"], "local, slurm or ray"),
        (["--on", "slurm", "--slurm", "gpu"], "name=value"),
    ):
        found = CliRunner().invoke(commands, ["sweep", "run", str(folder), *options])
        assert isinstance(found.exception, UserError) and told in str(found.exception)


def test_what_the_guide_writes_can_be_typed() -> None:
    guide = Path(__file__).parents[2] / "docs" / "sweeps.md"
    lines = [line.split("#")[0].split()[2:] for line in guide.read_text().splitlines() if "    kvlab sweep " in line]
    known: Any = get_command(sweep_commands)
    assert {words[0] for words in lines} == {"plan", "run", "work", "status"}
    for name, *words in lines:
        command = known.commands[name]
        command.make_context(name, list(words), resilient_parsing=True)
        options = {option for parameter in command.params for option in parameter.opts}
        assert {word for word in words if word.startswith("--")} <= options, words
