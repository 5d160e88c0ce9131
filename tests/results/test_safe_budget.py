"""Safe budgets from evaluation rows: what counts as a change, per group and method, and what is refused."""

from __future__ import annotations

import json
import math

import numpy as np
import pandas as pd
import pytest

import kvlab
from kvlab.core.errors import UserError
from kvlab.results.risk import bounds, sentences
from kvlab.results.risk.export import as_json, describe_risk, draw_risk, risk_table
from kvlab.results.risk.losses import flips, losses, measurable, overlap
from kvlab.results.risk.safe_budget import Criterion, SafeBudgets, find_safe_budgets
from tests.results.risk_rows import BUDGETS, rows_of

COUNT = 200


def found(wrong: dict[str, list[int]], **asked: object) -> SafeBudgets:
    return kvlab.safe_budget(rows_of(wrong, COUNT, full_wrong=20), **{"tolerance": 0.05, **asked})


def test_the_smallest_certified_budget_of_each_method() -> None:
    safe = found({"snapkv": [0, 1, 40], "h2o": [2, 30, 60]})
    level = 0.05 / 2
    for _, line in safe.table.iterrows():
        chance = sum(
            math.comb(COUNT, i) * 0.05**i * 0.95 ** (COUNT - i) for i in range(int(line["changed"]) + 1)
        )  # fmt: skip
        assert line["p_value"] == pytest.approx(chance)
        assert line["certified"] == (line["tested"] and chance <= level)
    answers = safe.answers.set_index("arm")
    assert answers["safe"].to_dict() == {"snapkv": "50 %", "h2o": "90 %"}
    assert answers.loc["snapkv", "next"] == "20 %" and pd.isna(answers.loc["snapkv", "needed"])
    best = safe.best()
    assert best is not None and best["arm"] == "snapkv"
    (line,) = sentences.headline(safe)
    assert line.startswith("snapkv at 50 % is safe (the fewest bytes of 2 methods): with 95 % confidence, at most 5 %")
    assert "1 of 200" in line
    assert any("97.5 % confidence (Bonferroni)" in note for note in sentences.notes(safe))
    assert any("right on 180 of 200 prompts" in note for note in sentences.notes(safe))


def test_a_method_more_costs_confidence() -> None:
    wrong = {"snapkv": [0, 4, 40]}
    alone = found(wrong).answers["safe"].iloc[0]
    many = found(wrong | {name: [40, 60, 80] for name in ("h2o", "tova", "keepkv")}).answers["safe"].iloc[0]
    assert (alone, many) == ("50 %", "90 %")
    assert found(wrong | {"h2o": [40, 60, 80]}, methods=["snapkv"]).answers["safe"].tolist() == ["50 %"]


def test_a_prompt_that_the_full_cache_gets_wrong_cannot_be_lost() -> None:
    rows = rows_of({"h2o": [0, 0, COUNT]}, COUNT, full_wrong=50)
    safe = kvlab.safe_budget(rows, tolerance=0.05)
    assert safe.table["changed"].tolist() == [0, 0, COUNT - 50]
    assert (safe.table["prompts"] == COUNT).all()


def test_texts_scores_and_kl_count_their_own_changes() -> None:
    rows = rows_of({"h2o": [0, 3, 10]}, COUNT)
    assert measurable(rows) == ["answer", "score", "text"]
    texts = kvlab.safe_budget(rows, "text", 0.05).table["changed"].tolist()
    assert texts == [0, 3, 10]
    falls = kvlab.safe_budget(rows.assign(score=rows["score"] / 2 + 0.25), "score", 0.05)
    assert falls.table["changed"].tolist() == pytest.approx([0, 1.5, 5])
    p = bounds.hoeffding_bentkus_p_value(1.5, COUNT, 0.05)
    assert falls.table["p_value"].iloc[1] == pytest.approx(p)
    kl = rows.assign(kl=np.where(rows["prediction"] == "other", 0.3, 0.01))
    assert kvlab.safe_budget(kl, "kl", 0.05).table["changed"].tolist() == [0, 3, 10]
    assert kvlab.safe_budget(kl, "kl", 0.05, kl_above=0.5).table["changed"].tolist() == [0, 0, 0]
    assert kvlab.safe_budget(kl.assign(kl=np.nan).fillna({"kl": 9}), "kl", 0.5).table["changed"].iloc[0] == COUNT


def test_an_error_of_the_metric_counts_as_a_change_and_is_named() -> None:
    rows = rows_of({"h2o": [0, 0, 0]}, COUNT)
    hit = (rows["method"] == "h2o") & (rows["index"] == 7) & (rows["budget"] == 0.5)
    rows.loc[hit, "error"], rows.loc[hit, "score"] = "mine: KeyError: 'x'", np.nan
    safe = kvlab.safe_budget(rows, tolerance=0.05)
    assert safe.table["changed"].tolist() == [0, 1, 0]
    assert any("needle 8 (mine: KeyError: 'x')" in note for note in sentences.notes(safe))


def test_groups_are_certified_apart_with_the_correction() -> None:
    rows = pd.concat([rows_of({"h2o": [0, 0, 30]}, COUNT), rows_of({"h2o": [0, 20, 30]}, COUNT, task="key_value")])
    rows = pd.concat([rows, rows_of({"h2o": [0, 0, 0]}, 10, task="small")], ignore_index=True)
    safe = kvlab.safe_budget(rows, tolerance=0.05, by_group=True)
    assert safe.alpha == pytest.approx(0.05 / 3)
    assert dict(zip(safe.answers["group"], safe.answers["safe"], strict=True)) == {
        "needle": "50 %",
        "key_value": "90 %",
    }
    assert safe.too_few == {"small": 10}
    lines = sentences.headline(safe)
    assert len(lines) == 3 and lines[2].startswith("small: 10 prompts, too few")


def test_a_risk_that_falls_with_the_budget_is_reported() -> None:
    safe = found({"h2o": [3, 1, 50]})
    assert safe.answers["drops"].tolist() == [["50 %"]]
    assert any("not monotone for h2o (lower at 50 %" in note for note in sentences.notes(safe))


def test_the_next_budget_tells_how_many_prompts_it_takes() -> None:
    safe = found({"h2o": [0, 6, 40]})
    needed = int(safe.answers["needed"].iloc[0])
    assert needed > COUNT
    assert bounds.binomial_p_value(math.ceil(6 / COUNT * needed), needed, 0.05) <= 0.05
    assert f"{needed:,} prompts would certify it" in sentences.method_lines(safe)[0]


def test_flips_and_their_overlap_are_counted() -> None:
    rows = rows_of({"h2o": [0, 4, 10], "snapkv": [0, 6, 10]}, COUNT, full_wrong=20)
    # One prompt that only the compressed cache gets right.
    rows.loc[(rows["method"] == "h2o") & (rows["index"] == COUNT - 1) & (rows["budget"] == 0.2), "score"] = 1.0
    paired = losses(rows, "answer")
    table = flips(paired).set_index(["arm", "asked"])
    assert table["worse"].to_dict() == {
        ("h2o", "90 %"): 0, ("h2o", "50 %"): 4, ("h2o", "20 %"): 10,
        ("snapkv", "90 %"): 0, ("snapkv", "50 %"): 6, ("snapkv", "20 %"): 10,
    }  # fmt: skip
    assert table["better"].sum() == 1 and table.loc[("h2o", "20 %"), "better"] == 1
    shared = overlap(paired).set_index("asked")
    assert shared.loc["50 %", ["worse_one", "worse_other", "common"]].tolist() == [4, 6, 4]
    assert shared.loc["50 %", "shared"] == pytest.approx(4 / 6) and shared.loc["20 %", "shared"] == 1
    assert pd.isna(shared.loc["90 %", "shared"])


def test_everything_is_in_the_json() -> None:
    safe = found({"h2o": [0, 4, 10], "snapkv": [0, 6, 10]})
    told = json.loads(as_json(safe, ["a note"], "here"))
    assert len(told["table"]) == 2 * len(BUDGETS) and len(told["changed"]) == 4 + 10 + 6 + 10
    assert told["least_prompts"] == safe.least and told["notes"][-1] == "a note"
    assert {line["arm"]: line["safe"] for line in told["answers"]} == {"h2o": "90 %", "snapkv": "90 %"}


REFUSED = {
    "too few prompts": ({}, {"tolerance": 0.001}, "At least 2,995 prompts are needed to certify 0.1 % with 95 %"),
    "no tolerance": ({}, {"tolerance": 0.0}, "A tolerance of 0 % cannot be certified"),
    "all may change": ({}, {"tolerance": 1.0}, "A tolerance of 100 % cannot be certified"),
    "certainty": ({}, {"confidence": 1.0}, "A confidence of 100 % cannot be used"),
    "no answers": ({"metric": "unscored", "score": np.nan}, {}, "no answers, so none can be lost by answer"),
    "no KL": ({}, {"by": "kl"}, "No row has a KL"),
    "forced texts": ({"metric": "kl", "kl": 0.1}, {"by": "text"}, "No row has a generated text"),
    "no such measure": ({}, {"by": "luck"}, "measured by answer, score, text, kl, not by 'luck'"),
    "no such method": ({}, {"methods": ["tova"]}, "no method 'tova': they have h2o"),
    "full cache alone": ({"method": "full"}, {}, "the full cache alone"),
    "no full cache": ({"method": "h2o"}, {}, "none of the full cache"),
}


@pytest.mark.parametrize(("changed", "asked", "sentence"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_certified_is_refused(changed: dict, asked: dict, sentence: str) -> None:
    with pytest.raises(UserError) as refused:
        kvlab.safe_budget(rows_of({"h2o": [0, 0, 0]}, COUNT).assign(**changed), **asked)
    assert sentence in str(refused.value) and str(refused.value).count(". ") == 0


def test_rows_of_two_models_or_with_holes_are_refused() -> None:
    rows = rows_of({"h2o": [0, 0, 0], "tova": [0, 0, 0]}, COUNT)
    with pytest.raises(UserError, match="one model, and the rows have mini and other"):
        kvlab.safe_budget(pd.concat([rows, rows.assign(model="other")]))
    hole = (rows["method"] == "tova") & (rows["index"] < 3) & (rows["budget"] == 0.5)
    with pytest.raises(UserError, match="tova at 50 % lacks 3 prompts of 200"):
        kvlab.safe_budget(rows[~hole])
    assert kvlab.safe_budget(rows[~hole], methods=["h2o"]).best() is not None
    mixed = rows_of({"h2o": [0, 0, 0]}, COUNT)
    mixed.loc[mixed["budget"] == 0.5, ["budget", "budget_unit"]] = [64, "slots"]
    with pytest.raises(UserError, match="budgets in fraction and slots, which have no common order"):
        kvlab.safe_budget(mixed)


@pytest.mark.parametrize("wrong", [[0, 0, 0], [0, 30, 180], [200, 200, 200], [1, 2, 3]])
@pytest.mark.parametrize("tolerance", [0.001, 0.02, 0.15])
def test_no_risk_and_no_bound_is_outside_of_the_chart(wrong: list[int], tolerance: float) -> None:
    rows = rows_of({"h2o": wrong}, COUNT)
    table = risk_table(find_safe_budgets(rows, Criterion(tolerance=tolerance), show_too_few=True))
    low, high = draw_risk(table, "light").layout.yaxis.range
    assert low < 0 and high > max(table["risk"].max(), table["upper"].max(), tolerance)
    start = "Smallest safe budget: h2o" if table["certified"].any() else "No smaller cache was found safe"
    assert describe_risk(table).startswith(start)


def test_too_few_prompts_are_counted_where_that_is_asked_for_and_nothing_is_certified() -> None:
    few = find_safe_budgets(rows_of({"h2o": [0, 0, 7]}, 30), Criterion(tolerance=0.02), show_too_few=True)
    assert few.table["changed"].tolist() == [0, 0, 7] and not few.table["certified"].any()
    assert few.too_few == {"all prompts": 30} and few.least == 149
    assert len(sentences.headline(few)) == 1 and "there are 30" in sentences.headline(few)[0]
