"""A paper's table by name: what it asks for, which files it finds, and whose numbers stand beside ours."""

from __future__ import annotations

import io
import json

import numpy as np
import pandas as pd
import pytest
from rich.markdown import Markdown

from kvlab.common.terminal import PlainConsole
from kvlab.core.errors import UserError
from kvlab.core.methods import make_method
from kvlab.papers import paper_tables
from kvlab.papers import paper_tables as paper_table_text
from kvlab.papers.paper_tables import paper_values
from kvlab.tasks.loaders import LOADERS
from kvlab.views.quality import caption_ours_beside_theirs, ours_beside_theirs
from tests import benchmark_files as files


def rows(table, mean=0.5, count=4):
    """Result rows of every choice of a table on every file, the full cache too; scores alternate around the mean."""
    found = []
    arms = [("full", {}, 1.0, "fraction")]
    for choice in table.choices():
        unit = "slots" if isinstance(choice.budget, int) else "fraction"
        arms.append((choice.method, choice.hyper_parameters, choice.budget, unit))
    for file in table.files:
        for method, options, budget, unit in arms:
            for index in range(count):
                found.append(
                    {
                        "key": f"{file.dataset}{method}{options}{budget}{index}", "task": file.task.replace("*", "x"),
                        "difficulty": "{}", "content": str(index), "length": 0, "depth": np.nan, "index": index,
                        "seed": 0, "method": method, "hyper_parameters": json.dumps(options), "budget": float(budget),
                        "budget_unit": unit, "question_aware": True, "model": "mini", "model_digest": "d",
                        "metric": "f1", "score": mean + (0.1 if index % 2 else -0.1), "prediction": "a b c",
                        "answer": '["a b c"]', "slots": 10.0, "logical_tokens": 100, "live_bytes": 10, "seconds": 1.0,
                        "bits_per_byte": np.nan, "kl": np.nan, "top1_agreement": np.nan, "device": "cpu: test",
                        "variant": "",
                    }
                )  # fmt: skip
    return pd.DataFrame(found)


@pytest.mark.parametrize("name", paper_tables.table_names())
def test_every_table_can_be_asked_for_under_its_papers_settings(name):
    table = paper_tables.paper_table(name)
    assert table.choices()
    for choice in table.choices():
        make_method(choice.method, **choice.hyper_parameters)  # raises for an option or preset that is not there
        assert "paper" in str(choice.hyper_parameters.get("preset", "paper"))
    for file in table.files:
        assert file.form in LOADERS
        assert file.place in paper_tables.file_sources()
    printed = set(table.values["dataset"]) - {paper_tables.AVERAGE}
    assert printed <= {file.dataset for file in table.files}


def test_names_not_there_and_folders_that_are_none_are_one_sentence(tmp_path):
    with pytest.raises(UserError, match="There is no paper table 'x': choose one of zsmerge-table2"):
        paper_tables.paper_table("x")
    with pytest.raises(UserError, match="is not a folder"):
        paper_tables.paper_table("keepkv-table2").found(tmp_path / "none")


def test_files_are_found_where_people_keep_them(tmp_path):
    table = paper_tables.paper_table("keepkv-table2")
    files.write_lines(tmp_path / "data" / "qasper.jsonl", [files.longbench("qasper", 0)])
    files.write_lines(tmp_path / "a" / "b" / "trec.jsonl", [files.longbench("trec", 0)])
    there = {file.dataset: path for file, path in table.found(tmp_path) if path}
    assert set(there) == {"Qasper", "TREC"}
    assert [choice.form for choice in paper_tables.file_choices(table.found(tmp_path))] == ["longbench"] * 2


def test_budgets_are_those_the_paper_prints():
    asked = {(choice.method, choice.budget) for choice in paper_tables.paper_table("kvmerger-table1").choices()}
    assert asked == {(method, budget) for method in ("h2o", "cam", "kvmerger") for budget in (0.5, 0.35)}
    pool = paper_tables.paper_table("pyramid-pool-table2").choices()
    assert {choice.budget for choice in pool} == {64}
    [own] = [choice for choice in paper_tables.paper_table("gvote-fig4").choices() if choice.method == "gvote"]
    assert own.budget == 1.0
    at_35 = [one for one in paper_tables.paper_table("kvmerger-table1").choices() if one.budget == 0.35]
    assert {one.hyper_parameters["preset"] for one in at_35 if one.method == "kvmerger"} == {"paper-35"}


@pytest.mark.parametrize("name", ["keepkv-table2", "kvmerger-table1", "kvmerger-table5", "pyramid-pool-table2"])
def test_every_number_of_the_paper_stands_beside_ours_on_its_scale(name):
    table = paper_tables.paper_table(name)
    frame = paper_tables.compare_scores(table, rows(table))
    values = paper_values(table.paper, table.exhibit)
    models = values["model"].unique().tolist()
    assert frame[models].notna().to_numpy().sum() == len(values)
    assert sorted(frame[models].stack()) == sorted(values["value"])
    assert frame["ours"].notna().all()  # its own mean beside each, the papers' averages too
    assert np.allclose(frame["ours"], 50)
    assert (frame["ours_low"] < 50).all() and (frame["ours_high"] > 50).all()
    for value in values.sample(5, random_state=1).itertuples():
        line = frame[(frame["dataset"] == value.dataset) & (frame["method"] == value.method)]
        assert value.value in line[value.model].tolist()


def test_one_answer_gives_three_rouges(tmp_path):
    table = paper_tables.paper_table("zsmerge-table2")
    frame = paper_tables.compare_scores(table, rows(table))
    assert set(frame["metric"]) == {"ROUGE-1", "ROUGE-2", "ROUGE-L"}
    assert np.allclose(frame["ours"], 100)  # every prediction is the answer
    full = frame[(frame["method"] == "full") & (frame["metric"] == "ROUGE-1")].iloc[0]
    assert (full["LLaMA2-7B"], full["Falcon-7B"]) == (30.59, 27.06)


def test_what_was_not_run_stays_empty_and_an_average_wants_all_tasks():
    table = paper_tables.paper_table("kvmerger-table1")
    some = rows(table)
    frame = paper_tables.compare_scores(table, some[~some["task"].str.endswith("trec")])
    assert frame.loc[frame["dataset"].isin(["trec", "avg."]), "ours"].isna().all()
    assert frame.loc[~frame["dataset"].isin(["trec", "avg."]), "ours"].notna().all()
    nothing = paper_tables.compare_scores(table, some.iloc[:0])
    assert nothing["ours"].isna().all() and len(nothing) == len(frame)
    assert "13" not in caption_ours_beside_theirs(nothing).split(" of ")[0]


def test_the_figure_and_the_texts_show_the_same_numbers():
    table = paper_tables.paper_table("keepkv-table4")
    frame = paper_tables.compare_scores(table, rows(table, 0.2).assign(prediction="a x y", answer='["a b c"]'))
    figure = ours_beside_theirs(frame)
    shown = [value for trace in figure.data for value in trace.y if value == value]
    assert {0.223, 0.233, 0.214} <= {round(value, 6) for value in shown}
    text = paper_table_text.markdown(paper_table_text.comparison_table(table, frame, rows(table)))
    assert "| XSUM | score | keepkv:threshold=0.8 | 4 % | 0.233 | 0.333 [" in text
    assert "hardware: not given" in text and "cpu: test" in text and "mini" in text


@pytest.fixture(scope="module")
def score_rows():
    table = paper_tables.paper_table("pyramid-pool-table2")
    found = rows(table, count=30)
    better = found["method"] == "h2o"
    return found.assign(score=np.where(better, 0.9, found["score"]))


@pytest.fixture(scope="module")
def score_tables(score_rows):
    return paper_table_text.score_tables(score_rows)


def test_a_score_table_marks_the_best_and_gives_every_interval(score_rows, score_tables):
    [table] = score_tables
    text = paper_table_text.markdown(table)
    line = next(line for line in text.splitlines() if line.startswith("| h2o"))
    assert line.count("**0.900 [") == 5
    other = next(line for line in text.splitlines() if line.startswith("| streaming-llm"))
    assert "**" not in other and other.count("0.500 [") == 5
    assert "n = 30 prompts a cell" in text and "under preset=paper" in text
    few = score_rows[score_rows["index"] < 2]
    two = paper_table_text.score_tables(pd.concat([few, few.assign(model="other")]))
    assert [one.title for one in two] == ["Scores of mini", "Scores of other"]


def test_latex_writes_its_own_signs_out(score_tables):
    [table] = score_tables
    text = paper_table_text.latex(table)
    assert text.count(r"\begin{tabular}{ll" + "r" * 5 + "}") == 1
    assert all(line.count(" & ") == 6 for line in text.splitlines() if line.endswith(r"\\"))
    assert paper_table_text.escape_latex("a_b & 5 % $x$ {y} #1 ~ ^ \\") == (
        r"a\_b \& 5 \% \$x\$ \{y\} \#1 \textasciitilde{} \textasciicircum{} \textbackslash{}"
    )
    assert r"\textbf{0.900 [" in text and "64 slots" in text


def test_tables_are_written_as_their_ending_says(tmp_path, score_tables):
    tables = score_tables
    paper_table_text.write(tmp_path / "deep" / "t.md", tables)
    paper_table_text.write(tmp_path / "t.tex", tables)
    assert (tmp_path / "deep" / "t.md").read_text().startswith("**Scores of mini**")
    assert r"\toprule" in (tmp_path / "t.tex").read_text()
    with pytest.raises(UserError, match=r"ends in \.md or \.tex"):
        paper_table_text.write(tmp_path / "t.csv", tables)
    with pytest.raises(UserError, match="cannot be written"):
        paper_table_text.write(tmp_path / "t.tex" / "x.md", tables)


@pytest.mark.parametrize(
    "name", ["list[int]", "a|b", "*x*", "<b>", "`c`", "$1$", "_u_ a_b", "[INST] [/INST]", "[a](b)"]
)
def test_a_table_in_markdown_shows_names_as_written(name: str):
    line = (paper_table_text.Cell(name), paper_table_text.Cell(name, bold=True))
    table = paper_table_text.TextTable(f"title {name}", ("task", name), (line,), f"caption {name}")
    shown = io.StringIO()
    PlainConsole(file=shown, width=200).print(Markdown(paper_table_text.markdown(table)))
    assert shown.getvalue().count(name) == 5
