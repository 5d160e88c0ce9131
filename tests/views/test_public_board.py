"""kvlab's rows beside a public board: its numbers, what its rows ran, and the models' rank correlations."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from kvlab.common.intervals import rank_correlation
from kvlab.core.errors import UserError
from kvlab.evaluation.results.rows import ROWS
from kvlab.views.base.view import find_view
from kvlab.views.public_board import agreements, beside_board, read_board
from tests.cli.running import kvlab

TASKS = ("niah_single_1", "niah_multikey_1")
PROMPTS = 20
# Right answers of 20 by kvlab's method, at a quarter of the cache.
RIGHT = {"random": 0, "streaming-llm": 5, "snapkv": 8, "key-norm": 12, "keydiff": 16, "kvzip": 19}


def rows_of(right: dict[str, int], prefix: str = "ruler_", budget: float = 0.25, full: int = PROMPTS) -> pd.DataFrame:
    """Rows of an evaluation in which each method answers so many of 20 prompts of both tasks."""
    lines = []
    for method, count in ({"full": full} | right).items():
        for task in TASKS:
            for index in range(PROMPTS):
                line = dict.fromkeys(ROWS.names)
                line |= {"key": f"{method} {task} {index}", "task": f"{prefix}{task}", "index": index, "seed": 1}
                line |= {"model": "model-7b", "model_digest": "d", "length": 1024, "difficulty": "{}", "content": ""}
                line |= {"method": method, "hyper_parameters": "{}", "budget": 1.0 if method == "full" else budget}
                line |= {"budget_unit": "fraction", "question_aware": False, "metric": "string_match_all"}
                line |= {"score": float(index < count), "slots": 256.0, "logical_tokens": 1024, "live_bytes": 1}
                lines.append(line)
    return pd.DataFrame(lines)


@pytest.mark.parametrize(("kept", "printed"), [(0.75, 0.79), (0.5, 0.63), (0.25, 0.67), (0.125, 0.86)])
def test_the_boards_two_models_order_18_presses_as_was_computed_elsewhere(kept: float, printed: float) -> None:
    board = read_board("board")
    runs = board.rows[np.isclose(board.rows["asked"], kept)]
    means = runs.assign(mean=runs[list(board.tasks)].mean(axis=1))
    table = means.pivot(index=["press", "aware"], columns="model", values="mean").dropna()
    assert len(board.rows) == 158 and len(table) == 18
    found = rank_correlation(*(table[model].tolist() for model in table))
    assert found is not None and round(found.mean, 2) == printed
    assert found.low < found.mean < found.high <= 1 and found.n == 18


def test_a_rank_correlation_is_pandas_own_and_ignores_the_scale() -> None:
    random = np.random.default_rng(3)
    first, second = random.integers(5, size=(2, 40)).astype(float)  # with many ties
    found = rank_correlation(first.tolist(), second.tolist())
    ranks = pd.DataFrame({"first": first, "second": second}).rank()
    assert found is not None and found.mean == pytest.approx(ranks["first"].corr(ranks["second"]))
    assert rank_correlation((first**3).tolist(), (2 * second).tolist()) == found
    assert rank_correlation([1, 1, 1, 1], [1, 2, 3, 4]) is None


def test_runs_that_were_something_else_have_a_note_and_no_others() -> None:
    rows = read_board("board").rows
    noted = rows[rows["note"] != ""]
    pyramid = noted[noted["press"] == "pyramidkv"]
    assert sorted(pyramid["asked"]) == [0.125, 0.125, 0.25, 0.25] and pyramid["note"].str.contains("SnapKV").all()
    others = noted[noted["press"] != "pyramidkv"]
    assert others["press"].str.startswith("duo_attention").all() and len(others) == 12
    quarter = others[(others["asked"] == 0.25) & (others["model"] == "Qwen3-8B")]
    assert quarter["note"].tolist() == ["holds 33% where 25.0% was asked"]


@pytest.mark.parametrize("prefix", ["ruler_", "ruler/"])
def test_our_rows_stand_beside_the_boards_of_the_same_tasks(prefix: str) -> None:
    drawn = find_view("public_board").draw(rows_of(RIGHT, prefix))
    frame = drawn.frame
    ours = frame[~frame["is_board"]].set_index("press")
    assert ours.loc["knorm", "score"] == 12 / PROMPTS and ours.loc["knorm", "n"] == 2 * PROMPTS
    assert ours.loc["knorm", "low"] < 12 / PROMPTS < ours.loc["knorm", "high"]
    theirs = frame[frame["is_board"] & (frame["press"] == "keydiff") & (frame["asked"] == 0.25)]
    # Single 1 and multi-key 1 in the file: 100.0 and 79.0 (Qwen), 100.0 and 100.0 (Llama).
    assert sorted(theirs["score"]) == pytest.approx([0.895, 1.0]) and set(theirs["n"]) == {1000}
    assert not frame.loc[frame["is_board"] & (frame["press"] != "no_press"), "aware"].any()
    assert "403f489" in drawn.figure.to_json() and "n = 500" in drawn.figure.to_json()
    lines = [shape for shape in drawn.figure.layout.shapes if shape.line.dash in ("dot", "dash")]
    assert len(lines) == 6  # random and StreamingLLM of three models, at the share that was measured
    assert {0.0, 5 / PROMPTS} <= {shape.x0 for shape in lines}


def test_a_composition_stands_beside_its_press_whatever_the_order_of_its_settings() -> None:
    rows = rows_of({"compose": 12})
    composed = rows["method"] == "compose"
    for settings in ('{"allocate":"adakv","score":"compactor"}', '{"score":"compactor","allocate":"adakv","sinks":8}'):
        frame = beside_board(rows.assign(hyper_parameters=np.where(composed, settings, "{}")), read_board("board"))
        assert set(frame.loc[~frame["is_board"] & frame["arm"].str.startswith("compose"), "press"]) == {
            "adakv_compactor"
        }
    frame = beside_board(
        rows.assign(hyper_parameters=np.where(composed, '{"score":"compactor"}', "{}")), read_board("board")
    )
    assert "adakv_compactor" not in set(frame.loc[~frame["is_board"], "press"])


def test_a_method_without_the_settings_of_the_boards_runs_is_not_its_press() -> None:
    rows = rows_of({"expected-attention": 12})
    ours = rows["method"] == "expected-attention"
    settings = {'{"adaptive":true}': False, '{"adaptive":true,"epsilon":0.01}': True}
    for text, is_press in settings.items():
        frame = beside_board(rows.assign(hyper_parameters=np.where(ours, text, "{}")), read_board("board"))
        assert ("expected_attention" in set(frame.loc[~frame["is_board"], "press"])) == is_press


def test_the_correlation_names_its_methods_and_its_ceiling() -> None:
    found = agreements(beside_board(rows_of(RIGHT), read_board("board")))
    found = found[found["asked"] == 0.25]
    assert set(found["methods"]) == {len(RIGHT)} and found["ceiling"].sum() == 1
    pairs = found[~found["ceiling"].astype(bool)]
    assert set(pairs["second"]) == {"Qwen3-8B", "Llama-3.1-8B-Instruct"}
    assert ((pairs["low"] <= pairs["rho"]) & (pairs["rho"] <= pairs["high"])).all() and pairs["rho"].gt(0.5).all()
    backwards = agreements(
        beside_board(rows_of({name: 20 - count for name, count in RIGHT.items()}), read_board("board"))
    )
    turned = backwards[(backwards["asked"] == 0.25) & ~backwards["ceiling"].astype(bool)]
    assert turned["rho"].tolist() == pytest.approx((-pairs["rho"]).tolist())


def test_too_few_methods_are_said_and_their_rows_still_stand() -> None:
    frame = beside_board(rows_of({"random": 0, "snapkv": 5, "kvzip": 19}), read_board("board"))
    found = agreements(frame)
    ours = found[(found["asked"] == 0.25) & ~found["ceiling"].astype(bool)]
    assert ours["rho"].isna().all() and ours["why"].str.startswith("3 methods in common are too few").all()
    assert {"random", "snapkv", "kvzip"} <= set(frame["arm"])


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda table: table.drop(columns=["model", "query_aware"]), "lacks model and query_aware: a board has"),
        (lambda table: table, "has rows without n: add a column n"),
        (lambda table: table.assign(n=[None, *[5] * (len(table) - 1)]), "has rows without n"),
        (lambda table: table.assign(n=5, vt="high"), "a value that is no number"),
        (lambda table: table.assign(n=5, query_aware="perhaps"), "neither True nor False"),
    ],
)
def test_another_table_than_a_board_is_one_sentence(tmp_path: Path, change, says: str) -> None:
    file = tmp_path / "board.csv"
    change(pd.read_csv("assets/board/kvpress.csv")).to_csv(file)
    with pytest.raises(UserError, match=says):
        find_view("public_board").draw(rows_of(RIGHT), board=str(file))


def test_results_without_a_task_of_the_board_or_that_the_model_can_do_are_one_sentence() -> None:
    board = read_board("board")
    with pytest.raises(UserError, match=r"no task of the board: evaluate some, such as .*ruler_niah_single_1"):
        beside_board(rows_of(RIGHT, "own_"), board)
    with pytest.raises(UserError, match=r"scores at least 0.5 in none of these tasks"):
        beside_board(rows_of(RIGHT, full=9), board)
    with pytest.raises(UserError, match="There is no board 'bord'"):
        read_board("bord")


def test_the_command_prints_writes_and_takes_a_board_of_ones_own(tmp_path: Path) -> None:
    folder = tmp_path / "rows"
    folder.mkdir()
    rows_of(RIGHT).to_parquet(folder / "part-000000.parquet")
    told = kvlab("table", str(folder), "--beside", "board")
    assert "| key-norm | 25.0% | 25.0% | model-7b, 1,024 tokens | not in sight | 0.600 [" in told
    assert "ran SnapKV: fewer than 1,280 tokens kept" in told and "bootstrap over methods" in told
    csv = tmp_path / "own.csv"
    one = pd.read_csv("assets/board/kvpress.csv").query("model == 'Qwen/Qwen3-8B'").assign(n=50)
    one.to_csv(csv, index=False)
    page = tmp_path / "board.html"
    assert "agrees at" in kvlab("table", str(folder), "--beside", str(csv), "--out", str(page))
    assert "own.csv" in page.read_text() and "Llama" not in page.read_text()
