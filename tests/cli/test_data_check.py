"""`kvlab tasks --check FILE`: a file is told apart, measured, and its bad lines are named."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from kvlab.cli import commands
from kvlab.core.errors import UserError
from tests import benchmark_files as files


def invoked(*arguments):
    return CliRunner().invoke(commands, ["tasks", "--check", *map(str, arguments)])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return files.write_all(tmp_path_factory.mktemp("benchmarks"))


def checked(*arguments):
    told = invoked(*arguments, "--json")
    assert told.exit_code in (0, 1), told.exception
    return json.loads(told.stdout)


@pytest.mark.parametrize(
    ("name", "form", "benchmark"),
    [
        ("qasper.jsonl", "longbench", "LongBench qasper"),
        ("data.json", "longbench2", "LongBench v2"),
        ("xsum_3shot.jsonl", "helm", "few-shot summaries as in HELM"),
        ("niah_single_2/validation.jsonl", "ruler", "RULER niah_single_2"),
        ("test.jsonl", "gsm8k", "GSM8K"),
        ("math500.jsonl", "math", "MATH"),
        ("aime24.jsonl", "math", "AIME"),
        ("table.parquet", "table", "a table of prompts (its first task: niah_single_1)"),
        ("essays.txt", "text", "plain text"),
    ],
)
def test_every_benchmark_is_told_by_its_fields(folder, name, form, benchmark):
    found = checked(folder / name)
    assert (found["form"], found["benchmark"]) == (form, benchmark)
    assert found["count"] >= (2 if form == "gsm8k" else 3) or form in ("text", "gsm8k")
    assert found["malformed"] == []
    assert found["prompts"]["median"] <= found["prompts"]["p95"] <= found["prompts"]["longest"]


def test_what_is_cut_is_said_before_it_is(folder):
    free, tight = (checked(folder / "qasper.jsonl", *more) for more in ((), ("--set", "max_prompt=300")))
    assert (free["shortened"], free["most"]) == ([], free["window"] - 128)
    assert len(tight["shortened"]) == 3
    assert min(tight["shortened"]) > 300
    assert 0 <= tight["lost"] - sum(before - 300 for before in tight["shortened"]) <= 3 * 4
    table = invoked(str(folder / "qasper.jsonl"), "--set", "max_prompt=300")
    assert "3 of 3 prompts lose their middle" in table.stdout
    assert "at most 300 tokens per prompt" in table.stdout


def test_bad_lines_are_named_by_number_and_the_status_says_so(tmp_path):
    path = files.write_lines(tmp_path / "mine.jsonl", [files.table(0)] * 2)
    path.write_text(path.read_text() + '{"context": "c"}\nnot json\n')
    told = invoked(str(path))
    assert told.exit_code == 1
    assert f"{path}:3: there is no field 'answer'" in told.stdout
    assert f"{path}:4: not valid JSON" in told.stdout
    assert "malformed         2 lines" in told.stdout


@pytest.mark.parametrize(
    ("name", "content", "options", "said"),
    [
        ("x.jsonl", '{"a": 1}', [], r"no benchmark that kvlab knows \(its fields: a\)"),
        ("x.csv", "a,b\n1,2\n", [], r"no benchmark that kvlab knows \(its fields: a, b\)"),
        ("x.jsonl", '{"a": 1}', ["--set", "loader=squad"], "There is no loader called 'squad'"),
        ("x.jsonl", '{"a": 1}', ["--set", "loader=ruler"], "no usable line"),
        ("x.txt", "words", ["--set", "max_prompt=3"], "--set max_prompt takes a whole number of at least 8"),
        ("x.txt", "words", ["--set", "cut=top"], "--set cut takes start, middle, end"),
        ("x.txt", "words", ["--model", "/no/such/folder"], "no/such"),
    ],
)
def test_what_cannot_be_checked_is_one_sentence(tmp_path, name, content, options, said):
    path = tmp_path / name
    path.write_text(content)
    told = invoked(str(path), *options)
    assert isinstance(told.exception, UserError)
    with pytest.raises(UserError, match=said):
        raise told.exception


def test_an_answer_that_fills_the_window_is_a_note(folder):
    found = checked(f"{folder}/aime24.jsonl:max_new_tokens=90000:metric=f1")
    assert found["most"] == 0
    assert "90,000 tokens for the answer do not fit the model's context window" in found["notes"][0]


@pytest.mark.parametrize("name", ["", " ", "a\0b"])
def test_a_name_that_is_none_is_one_sentence(name):
    told = invoked(name)
    assert isinstance(told.exception, UserError) and "names no file" in str(told.exception)


def test_a_device_is_one_sentence():
    told = invoked("/dev/zero")
    assert isinstance(told.exception, UserError) and "a pipe or a device" in str(told.exception)
