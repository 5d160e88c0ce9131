"""The papers' experiments, run at a tiny scale through the command line."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pandas as pd
import pytest
import typer
from typer.testing import CliRunner

from kvlab.bench.harness import run_requests
from kvlab.bench.modes.decode import OVER_EVICTION, OVER_SAME_LAYERS
from kvlab.bench.modes.prefill import ALL_OVER_PLAIN, WINDOW_OVER_PLAIN
from kvlab.bench.request import PRESETS, make_request, preset_requests
from kvlab.bench.rows import read_rows
from kvlab.bench.tables import beside_the_paper, paper_numbers
from kvlab.cli.bench import bench
from kvlab.core.choice import MethodChoice
from kvlab.core.errors import UserError
from kvlab.core.methods import make_method, registered
from kvlab.models.info.size import SHAPES

commands = typer.Typer()
commands.command("bench")(bench)
PAPERS = [name for name in PRESETS if name not in ("one-pass", "limit")]  # measured on shapes with random weights
QUICK = [
    "--device",
    "cpu",
    "--set",
    "scale=32",
    "--set",
    "shorten=256",
    "--repeats",
    "1",
    "--set",
    "steps=1",
    "--set",
    "warmup=0",
]


def run(*arguments: str) -> str:
    result = CliRunner().invoke(commands, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.parametrize("name", PAPERS)
def test_presets_ask_for_what_exists(name: str) -> None:
    for request in preset_requests(name, device="cpu"):
        assert request.preset == name
        assert request.model.removeprefix("shape:") in SHAPES
        for choice in request.choices:
            assert make_method(choice.method).family != "reference"


def test_one_pass_compares_twelve_methods_on_mini() -> None:
    (request,) = preset_requests("one-pass", device="cpu")
    assert request.mode == "together" and request.model == "mini" and len(request.choices) == 12
    assert {choice.budget for choice in request.choices} == {0.2}


def test_the_limit_is_asked_for_in_every_mode_with_decisions_every_16_steps() -> None:
    requests = preset_requests("limit", device="cpu")
    assert [request.mode for request in requests] == ["decode", "prefill", "memory", "together"]
    assert requests[0].contexts == (4096, 8192, 16384) and requests[0].compress_every == 16
    assert {request.model for request in requests} == {"smollm2"}


@pytest.mark.parametrize("name", PAPERS)
def test_presets_run_small_and_stand_beside_the_paper(name: str, tmp_path: Path) -> None:
    printed = json.loads(run("--preset", name, *QUICK, "--out", str(tmp_path), "--json"))
    (file,) = tmp_path.glob("*.parquet")
    rows = read_rows(file)
    assert printed["file"] == str(file)
    assert len(printed["rows"]) == len(rows)
    assert {row.preset for row in rows} == {name}
    assert {row.scale for row in rows} == {32}
    found = beside_the_paper(rows, name)
    theirs = found[found["method"] != "less"]
    unmeasured = theirs[theirs["ours"].isna()]
    assert set(unmeasured["figure"]) <= {"allocator: peak with weights"}
    assert (unmeasured["why"] != "").all()
    assert len(printed["paper"]) == len(found)


def test_a_merging_step_is_also_set_beside_eviction_with_its_own_budgets() -> None:
    evicting = MethodChoice(method="compose", budget=0.2, hyper_parameters={"allocate": "d2o"})
    request = make_request(
        mode="decode", model="shape:llama3-8b", device="cpu", scale=32, contexts=(256,), repeats=2, warmup=0,
        choices=(evicting, *(MethodChoice(method=name) for name in ("h2o", "d2o", "cam"))),
    )  # fmt: skip
    rows = list(run_requests([request]))
    found = {(row.method, row.figure) for row in rows if row.figure in (OVER_EVICTION, OVER_SAME_LAYERS)}
    assert found == {("d2o", OVER_EVICTION), ("d2o", OVER_SAME_LAYERS), ("cam", OVER_EVICTION)}
    assert all(row.median > 0 for row in rows if row.figure == OVER_SAME_LAYERS)


def test_a_prompt_is_set_beside_plain_transformers_by_what_its_scores_look_at() -> None:
    choices = tuple(MethodChoice(method=name) for name in ("snapkv", "keepkv", "h2o", "d2o"))
    rows = list(run_requests([make_request(mode="prefill", model="shape:tiny", device="cpu", contexts=(64,), repeats=2,
                                           choices=choices)]))  # fmt: skip
    found = {row.method: row for row in rows if row.figure in (WINDOW_OVER_PLAIN, ALL_OVER_PLAIN)}
    windowed = {name for name, row in found.items() if row.figure == WINDOW_OVER_PLAIN}
    assert windowed == {"snapkv", "keepkv"} and found.keys() - windowed == {"h2o", "d2o"}
    assert all(row.median > 0 and row.repeats == 2 for row in found.values())


def test_a_preset_prints_tables(tmp_path: Path) -> None:
    printed = run("--preset", "keepkv-table1", *QUICK, "--out", str(tmp_path))
    for words in (
        "KeepKV, Table 1: theirs and ours",
        "paper x full",
        "A100 80 GB",
        "1/32 of the layers",
        "Rows are in",
    ):
        assert words in printed, words


def test_own_measurements_print_a_table(tmp_path: Path) -> None:
    arguments = [
        "--model",
        "shape:tiny",
        "--contexts",
        "64",
        "--methods",
        "h2o:recent=0.25,keepkv",
        "--budgets",
        "0.25,8",
    ]
    few = ["--repeats", "1", "--set", "steps=1", "--out", str(tmp_path), "--device", "cpu"]
    printed = run("decode", *arguments, *few)
    for words in (
        "h2o:recent=0.25",
        "25 %",
        "8 slots",
        "full: transformers sdpa",
        "of bound",
        "x full",
        "of limit",
        "GB/s",
        "one measurement, not of prompts",
    ):
        assert words in printed, words
    rows = [row for row in read_rows(next(iter(tmp_path.glob("*.parquet")))) if row.figure == "decode step"]
    assert len(rows) == 6
    assert json.loads(next(r for r in rows if r.method.startswith("h2o")).hyper_parameters) == {"recent": 0.25}
    assert "slots held" in run("memory", *arguments, *few)


def test_two_results_of_one_second_do_not_overwrite_each_other(tmp_path: Path) -> None:
    few = ["--model", "shape:tiny", "--contexts", "16", "--repeats", "1", "--set", "steps=1", "--methods", "h2o"]
    for _ in range(2):
        run("memory", *few, "--device", "cpu", "--out", str(tmp_path))
    assert len(list(tmp_path.glob("*.parquet"))) == 2


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["dekode"], "no mode 'dekode'; choose one of decode"),
        (["decode", "--model", "shape:llama9"], "no shape 'llama9'"),
        (["decode", "--methods", "h20"], "no method called 'h20'"),
        (["decode", "--budgets", "2.5"], "budget 2.5 cannot be used"),
        (["decode", "--contexts", "4k"], "--contexts takes comma-separated numbers"),
        (["decode", "--contexts", "0"], "--contexts takes whole numbers of at least 1"),
        (["decode", "--batches", "-1"], "--batches takes whole numbers of at least 1"),
        (["decode", "--repeats", "0"], "--repeats cannot be 0"),
        (["decode", "--set", "scale=0"], "--set scale cannot be 0"),
        (["decode", "--model", "mini", "--set", "scale=2"], "--set scale reduces shapes"),
        (["decode", "--dtype", "int8"], "--dtype cannot be 'int8'"),
        (["decode", "--set", "fill=magic"], "--set fill cannot be 'magic'"),
        (["decode", "--device", "cuda:99"], "no device 'cuda:99'"),
        (["generate"], "needs --new-tokens"),
        (["--preset", "fig9"], "no preset 'fig9'"),
        (["--preset", "keepkv-table1", "--device", "cpu"], "needs a GPU with 80 GB or more"),
        (["--preset", "keepkv-table1", "--set", "scale=32", "--methods", "h2o"], "leave out --methods"),
        (["--preset", "one-pass", "--new-tokens", "3"], "leave out --new-tokens"),
    ],
)
def test_bad_input_gets_one_sentence(arguments: list[str], sentence: str, tmp_path: Path) -> None:
    small = [] if "--model" in arguments or "--preset" in arguments else ["--model", "shape:tiny"]
    with pytest.raises(UserError) as said:
        CliRunner().invoke(commands, [*arguments, *small, "--out", str(tmp_path)], catch_exceptions=False)
    assert sentence in str(said.value)
    assert "\n" not in str(said.value)
    assert not list(tmp_path.iterdir())


def test_the_papers_numbers_are_well_formed() -> None:
    numbers = paper_numbers()
    assert set(numbers["preset"]) == set(PAPERS)
    key = ["preset", "model", "method", "budget", "batch", "context", "new_tokens", "figure"]
    assert not numbers.duplicated(key).any()
    assert set(numbers["unit"]) <= {"tokens/s", "s", "GB"}
    assert numbers[["paper", "source", "hardware"]].notna().all().all()
    assert (numbers["value"].isna() == (numbers["note"] == "out of memory")).all()
    assert (numbers["value"].dropna() > 0).all()
    assert set(numbers["model"].str.removeprefix("shape:")) <= set(SHAPES)
    assert set(numbers["method"]) <= set(registered())


@pytest.mark.parametrize("name", PAPERS)
def test_every_number_of_a_paper_is_asked_for_by_its_preset(name: str) -> None:
    asked = set()
    for r in preset_requests(name):
        for method, budget in [("full", ""), *((c.method, str(c.budget)) for c in r.choices)]:
            asked |= {(r.model, method, budget, b, c, r.new_tokens) for b in r.batches for c in r.contexts}
    for number in paper_numbers(name).itertuples():
        wanted = (number.model, number.method, number.budget, number.batch, number.context, number.new_tokens)
        assert wanted in asked, wanted


def test_throughputs_and_latencies_of_a_paper_agree() -> None:
    """Batch times new tokens over seconds: what the table's two numbers mean, and where one is a misprint."""
    numbers = paper_numbers("zsmerge-table1").dropna(subset=["value"])
    for _, group in numbers.groupby(["model", "method", "batch", "context"]):
        by_figure = {n.figure: n for n in group.itertuples()}
        if len(by_figure) == 2:
            rate, took = by_figure["request rate"], by_figure["request"]
            computed = rate.batch * rate.new_tokens / took.value
            assert computed == pytest.approx(rate.value, rel=0.02) or "its latency gives" in rate.note


def test_a_setting_without_a_row_says_so() -> None:
    found = beside_the_paper([], "keepkv-table1")
    assert isinstance(found, pd.DataFrame)
    assert set(found["why"]) == {"not measured"}
    assert found["ours"].isna().all()
    assert found[found["method"] == "full"]["paper_ratio"].tolist() == [1.0]
    assert "kvlab.bench" in sys.modules
