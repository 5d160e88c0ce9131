"""The papers' experiments and the bars, run at a tiny scale through the command line."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import typer
from typer.testing import CliRunner

from kvlab.bench.harness import run_requests
from kvlab.bench.presets import PRESETS, preset_requests
from kvlab.bench.request import make_request
from kvlab.bench.rows import Row, read_rows
from kvlab.bench.tables import beside_the_paper, paper_numbers
from kvlab.bench.targets import (
    BYTES,
    EVICTION,
    OVER_EVICTION,
    OVER_SAME_LAYERS,
    PROMPTS,
    SAME_LAYERS,
    TARGETS,
    evicting,
    judge,
)
from kvlab.cli.bench import bench
from kvlab.core.choice import MethodChoice
from kvlab.core.errors import UserError
from kvlab.core.methods import make_method, registered
from kvlab.models.info.size import SHAPES

commands = typer.Typer()
commands.command("bench")(bench)
SHAPED = [name for name in PRESETS if name != "one-pass"]  # measured on shapes with random weights
PAPERS = [name for name in SHAPED if not name.endswith("-bars")]
QUICK = ["--device", "cpu", "--scale", "32", "--shorten", "256", "--repeats", "1", "--steps", "1", "--warmup", "0"]


def run(*arguments: str) -> str:
    result = CliRunner().invoke(commands, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.parametrize("name", SHAPED)
def test_presets_ask_for_what_exists(name: str) -> None:
    for request in preset_requests(name, device="cpu"):
        assert request.preset == name
        assert request.model.removeprefix("shape:") in SHAPES
        for choice in request.choices:
            assert make_method(choice.method).family != "reference"
    if name == "gpu-bars":
        assert PRESETS[name].seconds < 600


def test_one_pass_compares_twelve_methods_on_mini() -> None:
    (request,) = preset_requests("one-pass", device="cpu")
    assert request.mode == "together" and request.model == "mini" and len(request.choices) == 12
    assert {choice.budget for choice in request.choices} == {0.2}


def test_the_bars_measure_the_bytes_of_every_method_that_compresses() -> None:
    compressing = {name for name in registered() if make_method(name).family != "reference"}
    for name in ("gpu-bars", "cpu-bars"):
        asked = {c.method for r in preset_requests(name) if r.mode == "memory" for c in r.choices if c.budget == 0.2}
        assert asked == compressing


@pytest.mark.parametrize("name", SHAPED)
def test_presets_run_small_and_stand_beside_the_paper(name: str, tmp_path: Path) -> None:
    printed = json.loads(run("--preset", name, *QUICK, "--out", str(tmp_path), "--json"))
    (file,) = tmp_path.glob("*.parquet")
    rows = read_rows(file)
    assert printed["file"] == str(file)
    assert len(printed["rows"]) == len(rows)
    assert {row.preset for row in rows} == {name}
    assert {row.scale for row in rows if row.mode != "bar"} == {32}
    if name in PAPERS:
        found = beside_the_paper(rows, name)
        theirs = found[found["method"] != "less"]
        unmeasured = theirs[theirs["ours"].isna()]
        assert set(unmeasured["figure"]) <= {"allocator: peak with weights"}
        assert (unmeasured["why"] != "").all()
        assert len(printed["paper"]) == len(found)
    else:
        device = PRESETS[name].device
        judged = [row for row in rows if row.mode == "bar"]
        assert {row.figure for row in judged} == {bar.name for bar in TARGETS[device]}
        assert all("met" in row.note or row.status == "skipped" for row in judged)


def test_every_merging_method_is_judged_beside_eviction_at_either_interval() -> None:
    requests = [r for r in preset_requests("cpu-bars") if r.mode == "decode" and len(r.choices) > 5]
    merging = {name for name, method in registered().items() if method.describe()["merges"] and name != "compose"}
    assert {r.compress_every for r in requests} == {1, 16}
    for request in requests:
        assert {choice.method for choice in request.choices} == {EVICTION, "compose", *merging}
        own = {choice.hyper_parameters["allocate"] for choice in request.choices if choice.method == "compose"}
        assert own == {"pyramid-pool", "d2o", "exactmerge", "exactmerge2", "attention-matching"}, (
            "those that do not split the budget evenly"
        )
        assert len({choice.budget for choice in request.choices}) == 1


def test_a_merging_step_is_met_or_not_and_says_how_often_it_decided() -> None:
    like = Row("decode", OVER_EVICTION, "m", "zsmerge", 8, 4096, "ratio", budget=0.2, repeats=3, median=1.05, iqr=0.1)
    slower = replace(like, method="d2o", median=1.31, compress_every=16)
    told = {
        row.method: row.note for row in judge([like, slower], "cpu") if row.figure == "merging step over eviction's"
    }
    assert told == {
        "zsmerge": "met: at most 1.1, deciding every step",
        "d2o": "NOT met: at most 1.1, deciding every 16 steps",
    }


def test_a_merging_step_is_also_set_beside_eviction_with_its_own_budgets() -> None:
    request = make_request(
        mode="decode", model="shape:llama3-8b", device="cpu", scale=32, contexts=(256,), repeats=2, warmup=0,
        choices=(evicting("d2o", 0.2), *(MethodChoice(method=name) for name in ("h2o", "d2o", "cam"))),
    )  # fmt: skip
    rows = list(run_requests([request]))
    found = {(row.method, row.figure) for row in rows if row.figure in (OVER_EVICTION, OVER_SAME_LAYERS)}
    assert found == {("d2o", OVER_EVICTION), ("d2o", OVER_SAME_LAYERS), ("cam", OVER_EVICTION)}
    assert all(row.median > 0 for row in rows if row.figure == OVER_SAME_LAYERS)
    assert [row.method for row in judge(rows, "cpu") if row.figure == SAME_LAYERS] == ["d2o"]


def test_a_prompt_is_set_beside_plain_transformers_by_what_its_scores_look_at() -> None:
    """Windowed scores may cost 1.3 of it, accumulated ones 2."""
    choices = tuple(MethodChoice(method=name) for name in ("snapkv", "keepkv", "h2o", "d2o"))
    rows = list(run_requests([make_request(mode="prefill", model="shape:tiny", device="cpu", contexts=(64,), repeats=2,
                                           choices=choices)]))  # fmt: skip
    judged = {row.method: row for row in judge(rows, "cpu") if row.figure in {bar.name for bar in PROMPTS}}
    assert {name: row.bound for name, row in judged.items()} == {"snapkv": 1.3, "keepkv": 1.3, "h2o": 2.0, "d2o": 2.0}
    assert all(row.median > 0 and row.repeats == 2 for row in judged.values())


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
    few = ["--repeats", "1", "--steps", "1", "--out", str(tmp_path), "--device", "cpu"]
    printed = run("decode", *arguments, *few)
    for words in (
        "h2o:recent=0.25",
        "25 %",
        "8 slots",
        "full: transformers sdpa",
        "of bound",
        "x full",
        "GB/s",
        "one measurement, not of prompts",
    ):
        assert words in printed, words
    rows = [row for row in read_rows(next(iter(tmp_path.glob("*.parquet")))) if row.figure == "decode step"]
    assert len(rows) == 6
    assert json.loads(next(r for r in rows if r.method.startswith("h2o")).hyper_parameters) == {"recent": 0.25}
    assert "slots held" in run("memory", *arguments, *few)


def test_two_results_of_one_second_do_not_overwrite_each_other(tmp_path: Path) -> None:
    few = ["--model", "shape:tiny", "--contexts", "16", "--repeats", "1", "--steps", "1", "--methods", "h2o"]
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
        (["decode", "--scale", "0"], "--scale cannot be 0"),
        (["decode", "--model", "mini", "--scale", "2"], "--scale reduces shapes"),
        (["decode", "--dtype", "int8"], "--dtype cannot be 'int8'"),
        (["decode", "--fill", "magic"], "--fill cannot be 'magic'"),
        (["decode", "--device", "cuda:99"], "no device 'cuda:99'"),
        (["generate"], "needs --new-tokens"),
        (["--preset", "fig9"], "no preset 'fig9'"),
        (["--preset", "keepkv-table1", "--device", "cpu"], "needs a GPU with 80 GB or more"),
        (["--preset", "keepkv-table1", "--scale", "32", "--methods", "h2o"], "leave out --methods"),
        (["--preset", "cpu-bars", "--new-tokens", "3"], "leave out --new-tokens"),
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


def bar_rows() -> list[Row]:
    place = {"model": "m", "batch": 8, "context": 16384, "status": "ok", "device": "cpu"}

    def row(mode: str, figure: str, method: str, median: float, **more: object) -> Row:
        return Row(mode=mode, figure=figure, method=method, unit="u", median=median, **(place | more))

    own = {"budget": 0.05, "budget_unit": "fraction"}
    return [
        row("decode", "decode rate", "full: kvlab", 10.0, is_full=True, bound=20.0, ratio_to_full=1.0),
        row("decode", "decode rate", "keepkv", 40.0, bound=100.0, ratio_to_full=4.0, **own),
        row("decode", OVER_EVICTION, "keepkv", 1.08, **own),
        row("memory", "allocated bytes", "h2o", 230.0, ratio_to_full=0.23, budget=0.2, budget_unit="fraction"),
        row("memory", "live bytes", "h2o", 220.0, budget=0.2, budget_unit="fraction"),
        row("memory", "one block a head", "h2o", 10.0, budget=0.2, budget_unit="fraction"),
        row("overhead", "recording light / off", "keepkv", 1.2),
    ]


def test_bars_are_judged_by_the_figures() -> None:
    cpu = {row.figure: row for row in judge(bar_rows(), "cpu")}
    assert cpu["allocated bytes over live bytes, one block a head aside"].median == 1.0
    figures = {name.split(" ")[0]: (row.median, row.note.split(":")[0]) for name, row in cpu.items()}
    assert (cpu[BYTES.name].median, cpu[BYTES.name].note.split(":")[0]) == (
        pytest.approx(1.1),
        "NOT met",
    )  # (230 - 10) / (0.2 x 1000)
    assert figures["decode"] == (4.0, "met")
    assert figures["merging"] == (pytest.approx(1.08), "met")
    assert cpu["recording light, step over recording off"].note == "NOT met: at most 1.05"
    assert cpu["recording full, step over recording off"].status == "skipped"
    assert "unmeasured" in cpu["recording full, step over recording off"].note
    gpu = {row.figure: row for row in judge([replace(row, device="cuda: some GPU") for row in bar_rows()], "cuda")}
    bandwidth = gpu["speed-up at 5 % over the bandwidth bound's"]
    assert (bandwidth.median, bandwidth.note) == (pytest.approx(0.8), "met: at least 0.8")  # 4 of 100 / 20
    assert gpu["merging step over eviction's"].note.startswith("NOT met")


def test_without_any_row_every_bar_is_unmeasured() -> None:
    for device, bars in TARGETS.items():
        judged = judge([], device)
        assert len(judged) == len(bars)
        assert all(row.status == "skipped" and row.median is None for row in judged)


def test_a_setting_without_a_row_says_so() -> None:
    found = beside_the_paper([], "keepkv-table1")
    assert isinstance(found, pd.DataFrame)
    assert set(found["why"]) == {"not measured"}
    assert found["ours"].isna().all()
    assert found[found["method"] == "full"]["paper_ratio"].tolist() == [1.0]
    assert "kvlab.bench" in sys.modules


def test_a_gpu_promise_is_not_judged_on_another_device() -> None:
    """Figures of an exercise on CPU are shown, and neither met nor failed."""
    known = {"model": "shape:llama2-7b", "batch": 1, "context": 100, "unit": "ms/token", "budget": 0.05}
    steps = [Row(mode="decode", figure=OVER_EVICTION, method="keepkv", median=1.0, device="cpu: x86_64", **known)]
    rows = [row for row in judge(steps, "cuda") if row.figure == "merging step over eviction's"]
    assert [row.median for row in rows] == [1.0]
    assert rows[0].status == "skipped"
    assert rows[0].note == "unmeasured, exercised on cpu: at most 1.05, deciding every step"
    there = [replace(row, device="cuda: some GPU") for row in steps]
    assert [row.note for row in judge(there, "cuda") if row.median] == ["met: at most 1.05, deciding every step"]
