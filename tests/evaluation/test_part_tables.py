"""Tables of rules and of reachability, against what plain loops find in the same rows."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest
from typer.testing import CliRunner

from kvlab.cli import commands
from kvlab.core.errors import UserError
from kvlab.evaluation.results.rows import ResultStore
from kvlab.evaluation.results.summary import summarize
from kvlab.results.part_tables import deaths, part_rows, part_table, reachability
from tests.evaluation.test_informative import rows_of


def part(kind: str, order: int, score: float, held: float, answer: str = "contains=x") -> dict[str, object]:
    return {
        "kind": kind, "order": order, "position": 10 * order, "tokens": 5, "answer": answer, "score": score,
        "own": held, "merged": 0.0, "unreachable": float(held == 0), "consensus": held or None,
    }  # fmt: skip


def rows_with_parts() -> pd.DataFrame:
    """The full cache and h2o at three budgets, two prompts each; of two rules one lives at 40 % alone."""
    rows = rows_of({"instructions": [1, 1]}, {"instructions": [1, 1]})
    scores = {1.0: (1, 1), 0.4: (1, 1), 0.2: (1, 0), 0.1: (0, 0)}
    found = []
    for budget, (first, second) in scores.items():
        mine = rows[rows["method"] == ("full" if budget == 1 else "h2o")].copy()
        parts = [part("signature", 1, first, budget, "contains=sea"), part("city", 2, second, budget, "contains=Oslo")]
        mine["budget"], mine["score"], mine["metric"] = budget, (first + second) / 2, "rules"
        mine["key"] += f"-{budget}"
        found.append(
            mine.assign(
                parts=json.dumps(parts),
                tokens_in_sight=60,
                unreachable=1 - budget,
                consensus=budget,
                hidden_own=budget,
                hidden_merged=0.0,
                prediction="the sea in Oslo",
            )
        )
    return pd.concat(found, ignore_index=True)


def test_a_row_of_the_table_is_a_mean_over_parts() -> None:
    rows = rows_with_parts()
    parts = part_rows(rows)
    assert len(parts) == 2 * len(rows) and parts["third"].tolist()[:2] == ["early", "early"]
    assert parts["place"].tolist()[:2] == pytest.approx([10 / 60, 20 / 60])
    table = part_table(rows, ("kind", "order")).set_index(["kind", "asked"])
    for (kind, asked), line in table.iterrows():
        mine = parts[(parts["kind"] == kind) & (parts["asked"] == asked)]
        assert line["parts"] == len(mine) == 2
        assert line["score"] == mine["score"].mean() and line["held"] == pytest.approx(mine["held"].mean())
        assert line["full"] == 1 and line["informative"]
        assert line["score_low"] <= line["score"] <= line["score_high"]


def test_a_rule_dies_at_the_largest_budget_from_which_on_it_is_not_obeyed() -> None:
    found = deaths(part_table(rows_with_parts())).set_index("kind")
    assert found["dies_at"].to_dict() == {"signature": "10 %", "city": "20 %"}
    living = rows_with_parts()
    assert deaths(part_table(living[living["budget"] >= 0.4]))["dies_at"].tolist() == ["", ""]


def test_a_rule_that_the_full_cache_ignores_or_obeys_unasked_is_not_informative() -> None:
    rows = rows_with_parts()
    full = rows["method"] == "full"
    ignored = json.dumps([part("signature", 1, 0, 1.0), part("city", 2, 1, 1.0)])
    table = part_table(rows.assign(parts=rows["parts"].where(~full, ignored))).set_index("kind")
    assert not table.loc["signature", "informative"].any() and table.loc["city", "informative"].all()
    # The second prompt has no rule about the sea, and its answer names it nevertheless.
    unasked = rows.copy()
    other = json.dumps([part("city", 1, 1, 1.0, "contains=Oslo")])
    unasked.loc[full & (unasked["index"] == 1), "parts"] = other
    table = part_table(unasked).set_index("kind")
    assert (table.loc["signature", "unasked"] == 1).all() and not table.loc["signature", "informative"].any()
    assert table.loc["city", "unasked"].isna().all() and table.loc["city", "informative"].all()


def test_a_secret_that_is_never_told_says_nothing_when_it_is_kept() -> None:
    kept = rows_of({"leakage": [1, 1]}, {"leakage": [1, 1]}).assign(metric="rules", prediction="no", tokens_in_sight=60)
    kept = kept.assign(parts=json.dumps([part("kept", 1, 1, 1.0, "without=123"), part("refused", 2, 1, 1.0)]))
    for told, informative in ((1.0, True), (0.0, False)):
        control = rows_of({"secret": [told, told]}, {}).assign(parts=None, metric="rules", prediction="")
        table = part_table(pd.concat([kept, control], ignore_index=True)).set_index("kind")
        assert table.loc["kept", "informative"].tolist() == [informative] * 2
        assert table.loc["refused", "informative"].all()


def test_the_cliff_is_the_step_with_the_largest_loss() -> None:
    found = reachability(rows_with_parts()).set_index("asked")
    assert found.index.tolist() == ["all", "40 %", "20 %", "10 %"]
    assert found["loss"].fillna(-1).tolist() == pytest.approx([-1, 0, 0.5, 0.5])
    assert found["unreachable"].tolist() == pytest.approx([0, 0.6, 0.8, 0.9])
    rows = rows_with_parts()
    steep = reachability(rows.assign(score=rows["budget"].map({1.0: 1.0, 0.4: 0.9, 0.2: 0.2, 0.1: 0.1})))
    assert steep["cliff"].tolist() == [False, False, True, False]
    flat = reachability(rows.assign(score=1.0))
    assert not flat["cliff"].any() and (flat["loss"].dropna() == 0).all()
    assert reachability(rows.drop(columns="unreachable")).empty


def test_summaries_hold_what_is_reached_and_how_long_answers_are() -> None:
    rows = rows_with_parts().assign(answer_tokens=[10.0, 30.0] * 4, loop_tokens=[0.0, 20.0] * 4)
    found = summarize(rows).set_index("budget").sort_index()
    assert found["unreachable"].tolist() == pytest.approx([0.9, 0.8, 0.6, 0])
    assert found["consensus"].tolist() == pytest.approx([0.1, 0.2, 0.4, 1])
    assert set(found["answer_tokens"]) == {20} and set(found["loops"]) == {0.5}
    older = summarize(rows.drop(columns=["answer_tokens", "loop_tokens", "unreachable", "consensus"]))
    assert older[["answer_tokens", "loops", "unreachable", "consensus"]].isna().all(axis=None)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of results."""
    with ResultStore.opened(tmp_path / "results") as store:
        store.append(json.loads(rows_with_parts().to_json(orient="records")))
    return tmp_path / "results"


def printed(*words: object) -> str:
    done = CliRunner().invoke(commands, ["table", *map(str, words)])
    if isinstance(done.exception, UserError):
        return str(done.exception)
    assert done.exit_code == 0, done.output
    return done.stdout


def test_tables_of_stored_results_are_printed_and_written(folder: Path, tmp_path: Path) -> None:
    told = printed(folder, "--of", "deaths")
    assert "signature" in told and "10 %" in told and "city" in told
    assert "cliff" in printed(folder, "--of", "reach")
    for kind in ("parts", "order", "places", "deaths", "reach"):
        assert printed(folder, "--of", kind, "--out", tmp_path / f"{kind}.csv") == ""
        assert "instructions" in pd.read_csv(tmp_path / f"{kind}.csv")["task"].tolist()
    frame = pd.read_csv(tmp_path / "parts.csv")
    assert (
        frame.loc[frame["method"] == "h2o", "score"].tolist()
        == part_table(rows_with_parts()).query("method == 'h2o'")["score"].tolist()
    )


def test_a_table_that_cannot_be_made_is_one_sentence(folder: Path, tmp_path: Path) -> None:
    known = "scores, parts, order, places, deaths, reach, reasoning, phase, survival"
    assert printed(folder, "--of", "rules") == f"--of takes {known}, not 'rules'."
    assert printed(folder, "--of", "parts", "--out", tmp_path / "x.md").endswith("cannot be written: name a FILE.csv.")
    with ResultStore.opened(tmp_path / "plain") as store:
        store.append(json.loads(rows_of({"needle": [1]}, {}).to_json(orient="records")))
    assert printed(tmp_path / "plain", "--of", "parts").startswith("No prompt has rules, questions or steps")
    assert printed(tmp_path / "plain", "--of", "reach").startswith("No prompt has tracked evidence in these results")
