"""`kvlab plan`: what it says of a comparison, and when it says that it cannot start."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import typer
from typer.testing import CliRunner

from kvlab.cli import commands
from tests.cli.running import PROMPT, kvlab
from tests.families import CHAT_TEMPLATE, tiny_folder


def test_a_plan_loads_nothing_and_says_whether_it_fits(tiny_model_folder: Path, tmp_path: Path) -> None:
    arguments = ["plan", "--model", str(tiny_model_folder), "--methods", "h2o,keepkv", "--out", str(tmp_path)]
    found = json.loads(kvlab(*arguments, "--tokens", "400", "--device", "cpu", "--json"))
    assert found["fits"]
    assert found["tokens"] == 400
    names = [part["name"] for part in found["parts"]]
    assert names == ["weights", "full cache", "h2o 20 %", "keepkv 20 %", "logits"]
    counted = json.loads(kvlab(*arguments, "--prompt", PROMPT, "--device", "cpu", "--json"))
    assert counted["tokens"] == len(PROMPT) + 1, "a token a byte, and the one a text begins with"
    printed = kvlab(*arguments, "--tokens", "400", "--device", "cpu")
    assert "It fits" in printed
    assert not list(tmp_path.glob("*/run.json"))


def test_a_plan_says_that_a_prompt_is_longer_than_the_model_reads(tmp_path: Path) -> None:
    """`compare` refuses it, so no plan may say that it can start; nobody knows how much a shape was trained to read."""
    asked = ["plan", "--methods", "h2o", "--new-tokens", "96", "--device", "cpu", "--out", str(tmp_path)]

    def planned(*more: str) -> tuple[int, str]:
        result = CliRunner().invoke(commands, [*asked, *more], catch_exceptions=False)
        return result.exit_code, " ".join(result.stdout.split())

    assert planned("--model", "mini", "--tokens", "4000")[0] == 0
    status, told = planned("--model", "mini", "--tokens", "4001")
    assert status == 1 and "It cannot start: the prompt has 4,001 tokens" in told
    status, told = planned("--model", "mini", "--tokens", "4001", "--json")
    assert status == 1 and "at most 4,000 tokens" in json.loads(told)["too_long"]
    status, told = planned("--model", "shape:llama3-8b", "--tokens", "4001", "--memory", "80GB", "--json")
    assert status == 0 and json.loads(told)["too_long"] == ""


def test_a_plan_takes_every_option_of_a_comparison() -> None:
    """But what is done with a comparison that is made, and the start of one that does not fit."""
    options = {
        name: {word for one in typer.main.get_command(commands).get_command(None, name).params for word in one.opts}
        for name in ("compare", "plan")
    }
    assert options["compare"] - options["plan"] == {"--title", "--tag", "--force", "--resume"}


def test_a_plan_is_of_the_prompt_as_the_model_is_given_it(tmp_path: Path, templates_here: None) -> None:
    folder, text = tiny_folder(tmp_path / "model", chat_template=CHAT_TEMPLATE), PROMPT.strip()
    arguments = ["plan", "--model", str(folder), "--methods", "h2o", "--device", "cpu", "--json"]
    arguments += ["--out", str(tmp_path)]

    def planned(*more: str) -> dict[str, Any]:
        return json.loads(kvlab(*arguments, *more))

    plain, spoken, told = (
        planned("--prompt", text, *more)["tokens"] for more in (("--set", "chat=no"), (), ("--set", "system=Be brief."))
    )
    assert plain == len(text) + 1
    assert plain < spoken < told
    files = [tmp_path / "short.txt", tmp_path / "long.txt"]
    for file, words in zip(files, ("A word.", text), strict=True):
        file.write_text(words)
    one, two = planned("--prompt", text, "--level", "light"), planned(*(f"--file={file}" for file in files))
    assert two["tokens"] == one["tokens"] == spoken, "of several prompts the longest"
    packed = planned("--prompt", text * 2, "--store", "turbo3", "--budgets", "0.9", "--methods", "snapkv")
    native = planned("--prompt", text * 2, "--budgets", "0.9", "--methods", "snapkv")
    held = [next(p["bytes"] for p in plan["parts"] if p["name"].startswith("snapkv")) for plan in (packed, native)]
    assert held[0] < held[1]


def test_a_plan_for_a_gpu_that_is_not_here() -> None:
    asked = ["plan", "--model", "shape:llama3-8b", "--tokens", "32768", "--device", "cuda", "--methods", "snapkv"]
    result = CliRunner().invoke(commands, [*asked, "--memory", "16GB"])
    assert result.exit_code == 1
    assert "the largest part is weights, 15 GiB" in " ".join(result.stdout.split())
    assert CliRunner().invoke(commands, [*asked, "--memory", "80GB"]).exit_code == 0
