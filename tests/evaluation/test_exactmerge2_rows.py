"""The tables of exactmerge2.md are the rows that come with kvlab, and those go on where they stopped."""

from __future__ import annotations

import itertools
import json
import re
import statistics

import pyarrow.parquet as pq
import pytest

from kvlab.common.intervals import mean_interval
from kvlab.core.assets import project_root
from kvlab.core.choice import MethodChoice
from kvlab.evaluation.harness import model_digest, settings_of
from kvlab.models.load import load_model

NOTE = project_root() / "kvlab" / "core" / "methods" / "merging" / "exactmerge2.md"
RIVAL = "kvzip:store=lean4"
FIRST = {"recent": 8, "recent_share": 0.0625, "store": "auto"}  # settings that most rows were measured with
OURS = "exactmerge2 (first)"
# By the word its tables are headed with: its folder in assets.
MODELS = {"Mini": "exactmerge2", "Mini-half": "exactmerge2/mini-half", "Mini-60": "exactmerge2/mini-60"}
Row = dict[str, object]


def rows(folder: str) -> list[Row]:
    return pq.read_table(project_root() / "assets" / folder / "part-000000.parquet").to_pylist()


def table(head: str) -> tuple[list[float], list[list[str]]]:
    """The budgets over the columns of the table whose first cell this is, and its lines."""
    lines = NOTE.read_text(encoding="utf-8").splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith(f"| {head} |"))
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[start:]]
    end = next(number for number, line in enumerate(lines[start:]) if not line.startswith("|"))
    budgets = [float(word.split()[0]) / 100 for word in cells[0] if word.endswith("%")]
    return budgets, cells[2:end]


def label(row: Row) -> str:
    options, name = json.loads(str(row["hyper_parameters"])), str(row["method"])
    if FIRST.items() <= options.items():
        options, name = {key: value for key, value in options.items() if key not in FIRST}, f"{name} (first)"
    return ":".join([name, *(f"{k}={'no' if v is False else v}" for k, v in options.items())])


def of(found: list[Row], task: str, budget: float, name: str, seen: bool | None = None) -> list[Row]:
    return [
        row
        for row in found
        if row["task"] == task
        and (name == "full" or row["budget"] == budget)
        and label(row) == name
        and (seen is None or row["question_aware"] is seen)
    ]


def value(rows: list[Row], name: str) -> float:
    return statistics.fmean(float(str(row[name])) for row in rows)


def said_prompts(cell: str, usual: int) -> int:
    said = re.search(r"n = (\d+)", cell)
    return int(said[1]) if said else usual


@pytest.mark.parametrize(("head", "folder"), MODELS.items())
def test_right_answers_are_the_shares_of_the_rows(head: str, folder: str):
    found, (budgets, lines) = rows(folder), table(f"{head}, right answers")
    assert len(lines) == 10
    for task, regime, full, *cells in lines:
        seen = regime == "in sight"
        assert int(full) == round(100 * value(of(found, task, 0, "full", seen), "score"))
        for budget, cell in zip(budgets, cells, strict=True):
            for said, name in zip(cell.split(" (")[0].split(", "), (OURS, RIVAL), strict=True):
                measured = of(found, task, budget, name, seen)
                assert len({row["index"] for row in measured}) == len(measured) == said_prompts(cell, 60), (task, cell)
                assert int(said) == round(100 * value(measured, "score")), (task, regime, budget, name)


@pytest.mark.parametrize(("head", "folder"), MODELS.items())
def test_divergences_are_the_means_of_the_rows(head: str, folder: str):
    found, (budgets, lines) = rows(folder), table(f"{head}, next-token KL")
    names = [line[0].strip("`") for line in lines if line[0].startswith("`")]
    assert names[0] == OURS and RIVAL in names
    last = ""
    for name, *cells in lines:
        for budget, cell in zip(budgets, cells, strict=True):
            own = {row["index"]: float(str(row["kl"])) for row in of(found, "next_token_kl", budget, OURS)}
            if not cell:
                continue
            if name.startswith("`"):
                measured = of(found, "next_token_kl", budget, name.strip("`"))
                assert len(measured) == said_prompts(cell, 30), (name, budget)
                expected = value(measured, "kl")
            else:  # a difference, prompt by prompt, to the method above
                pairs = of(found, "next_token_kl", budget, last)
                expected = statistics.fmean(own[row["index"]] - float(str(row["kl"])) for row in pairs)
            assert float(cell.split()[0]) == pytest.approx(expected, abs=0.51e-4), (name, budget)
        last = name.strip("`") if name.startswith("`") else last


@pytest.mark.parametrize("head", ["Mini, hard cells", *(f"{name}, a single pass" for name in MODELS)])
def test_other_methods_are_the_rows_too(head: str):
    """A column is a task, whether the question was in sight, and a budget; KL where it is text, else shares."""
    found, lines = rows(MODELS[head.split(",")[0]]), NOTE.read_text(encoding="utf-8").splitlines()
    top = next(line for line in lines if line.startswith(f"| {head} |"))
    columns = [cell.strip().split(", ") for cell in top.strip("|").split("|")[1:]]
    start = lines.index(top)
    body = itertools.takewhile(lambda line: line.startswith("|"), lines[start + 2 :])
    arms = [[cell.strip() for cell in line.strip("|").split("|")] for line in body]
    assert len(arms) == (8 if head.endswith("hard cells") else 7)
    for name, *cells in arms:
        for (task, *regime, budget), cell in zip(columns, cells, strict=True):
            if not cell:
                continue
            seen, text = regime == ["in sight"], task == "next_token_kl"
            measured = of(found, task, float(budget.split()[0]) / 100, name.strip("`"), seen)
            assert len({row["index"] for row in measured}) == len(measured) == said_prompts(cell, 30 if text else 60)
            interval = mean_interval(
                [float(str(row["kl" if text else "score"])) for row in measured], kind="any" if text else "score"
            )
            said = [float(number) for number in re.findall(r"[\d.]+", cell.split(", n =")[0])]
            for number, real in zip(said, (interval.mean, interval.low, interval.high), strict=True):
                assert number == pytest.approx(real if text else 100 * real, abs=0.000051 if text else 0.51)


@pytest.mark.parametrize("folder", MODELS.values())
def test_every_row_is_of_the_method_as_it_is_now(folder: str):
    """A default that changes makes the rows those of another method: measure again, or say so."""
    now, first = (settings_of(MethodChoice(method="exactmerge2", hyper_parameters=own)) for own in ({}, FIRST))
    for row in rows(folder):
        if label(row) in ("exactmerge2", OURS):
            assert json.loads(str(row["settings"])) == (first if label(row) == OURS else now)


@pytest.mark.parametrize(("model", "folder"), [(name.lower(), folder) for name, folder in MODELS.items()])
def test_the_rows_are_of_the_weights_that_come_along(model: str, folder: str):
    weights = load_model(str(project_root() / "assets" / model), dtype="bfloat16").model
    assert {row["model_digest"] for row in rows(folder)} == {model_digest(weights)}


def test_the_rows_are_small_enough_to_come_along():
    assert sum(file.stat().st_size for file in (project_root() / "assets" / "exactmerge2").rglob("*")) < 2 << 20


@pytest.mark.parametrize(("head", "folder"), MODELS.items())
def test_the_present_settings_are_compared_with_the_first_prompt_by_prompt(head: str, folder: str):
    found, (budgets, lines) = rows(folder), table(f"{head}, present settings")
    assert [line[0].strip("`") for line in lines] == ["exactmerge2", "less the first"]
    for budget, mean, gap in zip(budgets, *(line[1:] for line in lines), strict=True):
        now, first = (
            {row["index"]: float(str(row["kl"])) for row in of(found, "next_token_kl", budget, name)}
            for name in ("exactmerge2", OURS)
        )
        assert len(now) == 30 and now.keys() <= first.keys()
        assert float(mean.split()[0]) == pytest.approx(statistics.fmean(now.values()), abs=0.51e-4)
        expected = statistics.fmean(now[index] - first[index] for index in now)
        assert float(gap.split()[0]) == pytest.approx(expected, abs=0.51e-4)
