"""Score tables of an experiment hold what the evaluation's own summary says, and their commands can be run."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kvlab.common.intervals import Interval
from kvlab.evaluation.request_parser import parse_request
from kvlab.evaluation.results.rows import ROWS, canonical_json
from kvlab.papers.evaluations import Experiment, arms, contest, gap, origin_of
from kvlab.papers.exhibit import Needs
from kvlab.papers.paper_tables import COLUMNS, grey_table, paper_values
from kvlab.requests.measurement import command_line
from kvlab.results.score_tables import means_over_tasks, option_column
from kvlab.results.sources import Sources

SWEEP = Experiment("sweep", arms("pyramid-pool", "beta", 1, 4), budgets=(0.2,), tasks=("needle", "key_value"))


def row(task: str, method: str, score: float, index: int, budget: float = 0.2, **options: object) -> dict[str, object]:
    values: dict[str, object] = {
        "key": f"{task}{method}{options}{budget}{index}", "task": task, "difficulty": "{}", "content": "", "length": 64,
        "index": index, "seed": 0, "method": method, "hyper_parameters": canonical_json(options), "variant": "",
        "budget": 1.0 if method == "full" else budget, "budget_unit": "fraction", "question_aware": True,
        "model": "mini", "model_digest": "d" * 20, "metric": "exact_match", "score": score, "slots": 20.0,
        "logical_tokens": 80, "live_bytes": 10, "allocated_bytes": 20, "seconds": 0.1,
        "device": "cpu: x", "versions": '{"torch":"2.13"}',
    }  # fmt: skip
    return {name: values.get(name) for name in ROWS.names}


@pytest.fixture
def sources(tmp_path: Path) -> Sources:
    """Two prompts of two tasks under the full cache, two values of beta, and a method nobody asked for."""
    rows = []
    for task in ("needle", "key_value"):
        for index in (0, 1):
            rows += [row(task, "full", 1.0, index), row(task, "h2o", 0.0, index)]
            rows += [
                row(task, "pyramid-pool", 0.5 * index, index, beta=1),
                row(task, "pyramid-pool", 1.0, index, beta=4),
            ]
    folder = tmp_path / "eval" / "mine"
    folder.mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(rows, schema=ROWS), folder / "part-000000.parquet")
    return Sources(tmp_path)


def test_scores_are_means_of_the_arms_that_were_asked_for(sources: Sources):
    table = SWEEP.scores(sources)
    assert set(table["arm"]) == {"full", "pyramid-pool:beta=1", "pyramid-pool:beta=4"}
    first = table[(table["arm"] == "pyramid-pool:beta=1") & (table["task"] == "needle")].iloc[0]
    assert first["score"] == 0.25
    assert first["difference"] == -0.75
    assert first["score_low"] <= first["score"] <= first["score_high"]
    assert first["kept"] == 0.25
    assert first["asked"] == "20 %"
    origin = "evaluation mine · mini (dddddddddddd) · 4 prompts · cpu: x · torch 2.13"
    assert str(origin_of(SWEEP.rows(sources))) == f"{origin} · under kvlab's default settings, not preset=paper"


def test_an_option_becomes_a_column_and_tasks_a_mean(sources: Sources):
    table = SWEEP.scores(sources)
    assert set(option_column(table, "beta")["beta"]) == {"1", "4"}
    means = means_over_tasks(SWEEP.rows(sources), table).set_index("arm")
    assert means.loc["pyramid-pool:beta=4", "score"] == 1
    assert (means["tasks"] == 2).all()
    assert (means["prompts"] == 4).all()


def test_gaps_are_paired_and_judged_by_their_intervals(sources: Sources):
    rows = SWEEP.rows(sources)
    ahead = gap(rows, "pyramid-pool:beta=4", "pyramid-pool:beta=1")
    assert ahead is not None
    assert ahead.mean == 0.75

    def verdict(gaps: list[Interval | None]) -> str:
        return contest("", {str(place): one for place, one in enumerate(gaps)}, "").verdict

    assert verdict([ahead]) == "not enough to say"  # four prompts
    ahead, behind = (replace(one, n=8) for one in (ahead, gap(rows, "pyramid-pool:beta=1", "pyramid-pool:beta=4")))
    assert verdict([ahead]) == "holds"
    assert verdict([behind, ahead]) == "does not hold"
    assert gap(rows, "pyramid-pool:beta=4", "h2o") is None
    assert verdict([ahead, None]) == "not enough to say"
    assert verdict([]) == "not enough to say"


def test_a_measurement_asked_for_in_other_words_serves_both(sources: Sources):
    """Equal settings have one key: what one exhibit asks for as default another asks for by the option's value."""
    rows = sources.evaluations
    again = rows[rows["hyper_parameters"] == '{"beta":1}'].assign(hyper_parameters="{}")
    file = sources.root / "eval" / "other" / "part-000000.parquet"
    file.parent.mkdir()
    again.drop(columns="name").to_parquet(file)
    both = Sources(sources.root).evaluations
    assert len(both) == len(rows) + len(again)


def test_rows_of_other_budgets_are_left_out_where_only_the_asked_ones_count(sources: Sources):
    other = Experiment("sweep", arms("pyramid-pool", "beta", 1), budgets=(0.1,), only_budgets=True)
    assert other.scores(sources).empty


def test_the_command_says_what_it_means(tmp_path: Path):
    needs = SWEEP.needs(Sources(tmp_path))
    assert isinstance(needs, Needs)
    words = shlex.split(command_line(needs.measurement))
    assert words[:2] == ["kvlab", "eval"]
    options = dict(zip(words[2::2], words[3::2], strict=True))
    assert options["--out"] == str(tmp_path / "eval" / "sweep")
    request = parse_request(
        model="mini", tasks=options["--tasks"], files=[], methods=options["--methods"], budgets=options["--budgets"],
        lengths=None, depths=None, samples=int(options["--samples"]), seed=0, question_aware="yes", batch_rows=None,
        skip_malformed=False,
    )  # fmt: skip
    assert [choice.hyper_parameters for choice in request.choices] == [
        {"preset": "paper", "beta": beta} for beta in (1, 4)
    ]


def test_the_command_for_the_papers_own_data_can_be_read(tmp_path: Path):
    needs = SWEEP.on_paper_data(Sources(tmp_path), "some/model", "longbench=qasper.jsonl", "summaries=xsum.jsonl")
    words = shlex.split(command_line(needs.measurement))
    options = [(words[place], words[place + 1]) for place in range(2, len(words), 2)]
    assert ("--tasks", "") in options
    request = parse_request(
        model=dict(options)["--model"], tasks="", files=[value for name, value in options if name == "--data"],
        methods=dict(options)["--methods"], budgets="0.2", lengths=None, depths=None, samples=1, seed=0,
        question_aware="yes", batch_rows=None, skip_malformed=False,
    )  # fmt: skip
    assert [file.form for file in request.files] == ["longbench", "summaries"]
    assert request.tasks == ()


def test_without_results_nothing_is_scored(tmp_path: Path):
    assert SWEEP.scores(Sources(tmp_path)).empty


@pytest.mark.parametrize("file", sorted(Path(__file__).parents[2].glob("kvlab/papers/*/paper_values.csv")), ids=str)
def test_values_of_a_paper_are_numbers_with_their_source(file: Path):
    values = pd.read_csv(file)
    assert list(values.columns) == list(COLUMNS)
    assert np.isfinite(values["value"]).all()
    assert values["source"].str.match(r"(Table|Figure|Section|section) ").all()
    for exhibit in values["exhibit"].unique():
        found = paper_values(file.parent.name.replace("_", "-"), exhibit)
        assert len(found) == (values["exhibit"] == exhibit).sum()
        assert len(grey_table(found))
    told = values["budget"].dropna()
    bare = told[~told.str.contains("%|slots|batch")]
    assert bare.empty, f"budgets without a unit: {bare.unique()}"
