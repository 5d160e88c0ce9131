"""`kvlab eval --preset` and `kvlab table` as a person runs them, on small files of the real formats."""

from __future__ import annotations

import json

import pytest
import typer
from typer.testing import CliRunner

from kvlab.cli.eval import evaluate
from kvlab.cli.table import table
from kvlab.core.errors import UserError
from tests import benchmark_files as files

app = typer.Typer()
app.command("eval")(evaluate)
app.command("table")(table)


@pytest.fixture(scope="module")
def ran(tiny_folder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("paper")
    files.write_lines(folder / "data" / "xsum_3shot.jsonl", [files.helm(number) for number in range(3)])
    told = CliRunner().invoke(
        app,
        [
            "eval", "--preset", "keepkv-table3", "--data", str(folder / "data"), "--model", str(tiny_folder),
            "--samples", "2", "--set", "max_prompt=150", "--out", str(folder / "out"),
        ],
    )  # fmt: skip
    assert told.exit_code == 0, told.exception
    for name in ("t.md", "t.html"):
        words = ["table", str(folder / "out"), "--preset", "keepkv-table3", "--out", str(folder / name)]
        assert CliRunner().invoke(app, words).exit_code == 0
    return folder, told


def test_a_preset_runs_what_is_there_beside_the_papers_numbers(ran):
    folder, told = ran
    assert "found    summaries" in told.stderr and "xsum_3shot.jsonl" in told.stderr
    assert "2 of 2 prompts were longer than allowed" in told.stderr
    text = (folder / "t.md").read_text()
    for printed in ("0.051", "0.111", "0.059", "0.115"):
        assert f"| {printed} |" in text and printed in told.stdout
    assert "mini" not in text and ", 2 prompts a dataset" in text and "under preset=paper" in text
    assert (folder / "t.html").read_text().startswith("<!doctype html>")


def test_its_rows_can_be_written_again_either_way(ran):
    folder, _ = ran
    again = CliRunner().invoke(app, ["table", str(folder / "out"), "--preset", "keepkv-table3"])
    assert again.stdout == (folder / "t.md").read_text()
    plain = CliRunner().invoke(app, ["table", str(folder / "out"), "--out", str(folder / "own.tex")])
    assert plain.exit_code == 0, plain.exception
    assert r"keepkv:prefill\_order=merge-first" in (folder / "own.tex").read_text()


def test_missing_files_are_listed_with_where_to_get_them(ran, tiny_folder):
    folder, _ = ran
    told = CliRunner().invoke(
        app, ["eval", "--preset", "keepkv-table2", "--data", str(folder / "data"), "--model", str(tiny_folder)]
    )
    assert isinstance(told.exception, UserError) and "None of the files of keepkv-table2" in str(told.exception)
    assert told.stderr.count("missing  ") == 13
    assert "huggingface.co/datasets/THUDM/LongBench" in told.stderr


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--preset", "x", "--data", "."], "There is no paper table 'x'"),
        (["--preset", "keepkv-table2"], "takes one folder"),
        (["--preset", "keepkv-table2", "--data", "/no/such"], "is not a folder"),
        (["--preset", "keepkv-table2", "--data", ".", "--tasks", "needle"], "leave out --tasks"),
        (["--tasks", "needle"], "Name a folder for the results"),
        (["--tasks", "needle", "--out", "x", "--set", "cut=top"], "--set cut takes start, middle, end"),
    ],
)
def test_what_cannot_be_asked_is_one_sentence(options, said):
    told = CliRunner().invoke(app, ["eval", *options])
    assert isinstance(told.exception, UserError)
    with pytest.raises(UserError, match=said):
        raise told.exception


def test_a_method_may_be_picked_and_given_an_option(ran, tiny_folder):
    folder, _ = ran
    told = CliRunner().invoke(
        app,
        [
            "eval", "--preset", "zsmerge-table2", "--data", str(folder / "data"), "--model", str(tiny_folder),
            "--samples", "1", "--set", "max_prompt=120", "--out", str(folder / "z"), "--methods", "less,h2o", "--json",
        ],
    )  # fmt: skip
    assert told.exit_code == 0, told.exception
    assert "less is left out: " in told.stderr  # its maps were fitted to another model
    lines = json.loads(told.stdout)
    assert {line["method"] for line in lines if line["ours"] is not None} == {"full", "h2o"}
    other = CliRunner().invoke(
        app, ["eval", "--preset", "zsmerge-table2", "--data", str(folder / "data"), "--methods", "keepkv"]
    )
    assert "has no method 'keepkv': choose among h2o, less, zsmerge" in str(other.exception)
