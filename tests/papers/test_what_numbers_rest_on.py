"""Every number of the atlas says what it rests on: n and a 95 % interval over prompts, or one prompt."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kvlab.bench.rows import Row, to_table
from kvlab.evaluation.results.rows import ROWS, canonical_json
from kvlab.papers.evaluations import Experiment
from kvlab.papers.exhibit import Choice, Drawn, Needs
from kvlab.papers.gvote import scores as gvote
from kvlab.papers.kvmerger import needle
from kvlab.papers.registry import EXHIBITS, SCORES, find
from kvlab.results.sources import BENCH_FOLDER, Sources
from kvlab.trace import open_run
from tests.papers.test_scores import row
from tests.synthetic.runs import write_synthetic_run

NUMBER = r"[-+]?[\d.,]+(?: %| points)?"
INTERVAL = re.compile(rf"{NUMBER} \({NUMBER} to {NUMBER}, n = \d+\)")
# What an evaluation's exhibit may say without a mean: how many tasks and prompts there are, and how long.
COUNTS_ONLY = {"pyramid-pool/tab-1"}
# A synthetic run has no method that merges in its prefill.
NOT_IN_SYNTHETIC_RUNS = {"kvmerger/fig-3d"}
PROMPTS = 6
DEPTHS = (0.25, 0.75)


def experiments() -> dict[str, Experiment]:
    """Every evaluation that an exhibit asks for."""
    found = [value for module in (gvote, needle) for value in vars(module).values() if isinstance(value, Experiment)]
    rows = [one.experiment for one in SCORES.values() if one.paper != "beyond"]
    return {one.name + str(place): one for place, one in enumerate([*found, *rows])}


def evaluated(root: Path, prompts: int, models: tuple[str, ...] = ("mini",)) -> Sources:
    """All experiments on two tasks each: scores, shares and seconds at random, the full cache always right."""
    draw, rows = random.Random(1), {}
    for model in models:
        for experiment in experiments().values():
            for task in experiment.tasks[:2]:
                for index in range(prompts):
                    more = {
                        "model": model, "depth": DEPTHS[index % 2], "prompt_tokens": 64 + index,
                        "length": 512 if index < 3 else 1024,
                    }  # fmt: skip
                    key = f"{model}{task}full{index}"
                    own = {"hidden_own": 1.0, "hidden_merged": 0.0, "slots": 80.0}
                    rows[key] = row(task, "full", 1.0, index) | more | own | {"key": key}
                    for arm in experiment.arms:
                        for budget in experiment.budgets if arm.method != "gvote" else (1.0,):
                            key = f"{model}{task}{arm.name}{budget}{index}"
                            own = {
                                "hyper_parameters": canonical_json(arm.options), "slots": draw.uniform(8, 40),
                                "seconds": draw.random(), "hidden_own": draw.random() / 2,
                                "hidden_merged": draw.random() / 2, "key": key,
                                "budget_unit": "slots" if isinstance(budget, int) else "fraction",
                            }  # fmt: skip
                            score = draw.choice((0.0, 0.5, 1.0))
                            rows.setdefault(key, row(task, arm.method, score, index, budget) | more | own)
    folder = root / "eval" / "made-up"
    folder.mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(list(rows.values()), schema=ROWS), folder / "part-000000.parquet")
    return Sources(root)


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> Sources:
    return evaluated(tmp_path_factory.mktemp("several"), PROMPTS, ("mini", "other"))


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> Sources:
    """One prompt a task."""
    return evaluated(tmp_path_factory.mktemp("single"), 1)


@pytest.fixture(scope="module")
def one_task(single: Sources) -> Sources:
    """The needle alone of these."""
    sources = Sources(single.root)
    sources.__dict__["evaluations"] = single.evaluations[single.evaluations["task"] == "needle"]
    return sources


def of_source(*sources: str) -> list[str]:
    return [exhibit.key for exhibit in EXHIBITS if exhibit.source in sources]


def drawn(key: str, sources: Sources) -> tuple[Drawn, ...]:
    found = find(*key.split("/")).draw(sources, Choice(layer=1, head=1, step=8, token=20), "light")
    assert not isinstance(found, Needs), found
    return found


# Those beyond the five papers are of questions unseen, and have rows of their own in test_beyond.py.
@pytest.mark.parametrize("key", [key for key in of_source("eval") if not key.startswith("beyond/")])
def test_what_is_drawn_from_evaluations_gives_n_and_an_interval(several: Sources, key: str):
    found = drawn(key, several)
    assert any(one.claim for one in found)
    for one in found if key not in COUNTS_ONLY else ():
        if one.claim is not None and key != "gvote/fig-5":  # which counts the models whose own claim holds
            assert INTERVAL.search(one.claim.finding), one.claim.finding
            assert_every_interval_is_one(one.claim.finding)


def assert_every_interval_is_one(text: str) -> None:
    """Low below the mean below high, of more than one prompt."""
    for found in INTERVAL.findall(text):
        mean, low, high, n = (
            float(part.rstrip(".,").replace(",", "")) for part in re.findall(r"[-+]?\d[\d.,]*", found)
        )
        assert low <= mean <= high, found
        assert n > 1


@pytest.mark.parametrize("key", of_source("eval"))
def test_a_mean_of_one_prompt_a_task_has_no_interval_where_there_is_one_task(one_task: Sources, key: str):
    """Of two tasks with a prompt each n is 2; of one task it is one prompt, which says so and judges nothing."""
    found = find(*key.split("/")).draw(one_task, Choice(), "light")
    if isinstance(found, Needs) or key in COUNTS_ONLY:
        return
    for one in found:
        if one.claim is not None:
            assert not INTERVAL.search(one.claim.finding), one.claim.finding
            assert key.startswith("gvote") or "one prompt" in one.claim.finding, one.claim.finding
    claim = found[0].claim
    assert claim is None or key.startswith("gvote") or claim.verdict == "not enough to say"


@pytest.mark.parametrize("key", of_source("run", "comparison"))
def test_what_is_drawn_from_a_run_says_that_it_is_one_prompt(recorded: Sources, key: str):
    found = find(*key.split("/")).draw(recorded, Choice(layer=1, head=1, step=8, token=20), "light")
    if isinstance(found, Needs):
        assert key in NOT_IN_SYNTHETIC_RUNS, found
        return
    for one in found:
        assert "one prompt" in str(one.origin)
        if one.claim is not None:
            assert one.claim.finding.startswith("One prompt"), one.claim.finding


def test_prompts_beside_one_another_give_n_and_an_interval(tmp_path: Path):
    """Figures 3b and 9 of KVMerger are drawn from several prompts, a run each."""
    runs = [
        open_run(
            write_synthetic_run(tmp_path, method="keepkv", comparison_id=name, seed=place, layers=4, prompt=name * 9)
        )
        for place, name in enumerate(("one ", "two ", "three "))
    ]
    for key in ("kvmerger/fig-3b", "kvmerger/fig-9"):
        first = drawn(key, Sources(tmp_path, runs[0], runs))[0]
        assert first.frame["prompt"].nunique() == 3
        assert first.claim is not None
        assert not first.claim.finding.startswith("One prompt")
        assert INTERVAL.search(first.claim.finding) or first.claim.verdict == "not enough to say"


def test_a_finding_is_the_mean_over_tasks_of_paired_differences(several: Sources):
    """By hand: budgets averaged for each prompt, prompts for each task, then the tasks; drawn again within tasks."""
    scores = {}
    for line in SCORES["keepkv/fig-4"].experiment.rows(several).to_dict("records"):
        if line["hyper_parameters"] == "{}":
            scores[line["method"], line["task"], line["index"], line["budget"]] = line["score"]
    asked = {key[1:] for key in scores if key[0] == "keepkv"} & {key[1:] for key in scores if key[0] == "h2o"}
    tasks = []
    for task in sorted({task for task, _, _ in asked}):
        gaps = []
        for index in range(PROMPTS):
            budgets = [budget for name, place, budget in asked if (name, place) == (task, index)]
            apart = [scores["keepkv", task, index, b] - scores["h2o", task, index, b] for b in budgets]
            gaps.append(sum(apart) / len(apart))
        tasks.append(gaps)
    mean = sum(sum(gaps) / len(gaps) for gaps in tasks) / len(tasks)
    draw, means = random.Random(2), []
    for _ in range(3000):
        again = [[draw.choice(gaps) for _ in gaps] for gaps in tasks]
        means.append(sum(sum(gaps) / len(gaps) for gaps in again) / len(again))
    means.sort()
    claim = drawn("keepkv/fig-4", several)[0].claim
    assert claim is not None
    found = re.search(r"keepkv minus h2o (\S+) \((\S+) to (\S+), n = (\d+)\)", claim.finding)
    assert found is not None, claim.finding
    assert int(found[4]) == sum(map(len, tasks))
    assert float(found[1]) == pytest.approx(mean, abs=0.002)
    assert float(found[2]) == pytest.approx(means[75], abs=0.03)
    assert float(found[3]) == pytest.approx(means[-75], abs=0.03)


def test_a_benchmark_says_that_its_numbers_are_medians_of_repeats(tmp_path: Path):
    fixed = {"mode": "decode", "model": "shape:x", "batch": 1, "preset": "zsmerge-fig3", "timestamp": "2", "repeats": 5}
    rows = [
        Row(
            **fixed,
            figure=figure,
            method=method,
            context=context,
            unit=unit,
            median=9.0,
            iqr=1.0,
            is_full=method == "full",
        )
        for context in (20_000, 54_000)
        for method in ("full", "zsmerge")
        for figure, unit in (("decode rate", "tokens/s"), ("weights and cache", "bytes"))
    ]
    (tmp_path / BENCH_FOLDER).mkdir()
    pq.write_table(to_table(rows), tmp_path / BENCH_FOLDER / "mine.parquet")
    (one,) = drawn("zsmerge/fig-3", Sources(tmp_path))
    assert one.claim is not None
    assert one.claim.finding.startswith("Medians of 5 repeats. ")
    assert "medians of 5 repeats" in str(one.origin)
