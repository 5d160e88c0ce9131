"""The table of what is kept: every kind in it, found by any word, filtered and sorted as a plain loop would."""

from __future__ import annotations

import itertools
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as some

from kvlab.core.errors import UserError
from kvlab.library.find import ANSWERS, FILTERS, SORTS, Search, find, from_url, list_all, rows_of, to_url
from kvlab.library.items import item_table
from kvlab.requests.repeats import Planting, Repeat
from kvlab.trace import open_run
from kvlab.trace.catalogue import list_comparisons, results
from kvlab.trace.user_labels import change_labels, change_tags, save_answer
from tests.library.conftest import comparison


def ids(root: Path, **wanted: object) -> list[str]:
    return list_all(root).find(Search(**wanted))["id"].tolist()


def test_every_kind_is_there_with_what_its_files_say(kept: Path):
    table = list_all(kept).table.set_index("id")
    assert set(table.index) == {"one", "two", "needles", "speed"}
    assert table.loc["one", "methods"] == ("h2o", "keepkv")
    assert table.loc["one", "budgets"] == ("25 %",)
    assert (table.loc["one", "runs"], table.loc["one", "tokens"]) == (3, 24)
    assert table.loc["needles", "score"] == 0.25, "the full cache's score is no score of a compressed one"
    assert (table.loc["needles", "methods"], table.loc["needles", "budgets"]) == (("h2o",), ("20 %",))
    assert table.loc["speed", "kind"] == "benchmark"


def test_outcomes_are_those_of_the_runs_own_tables(kept: Path):
    list_all(kept).read(float("inf"))
    shelf = list_all(kept)
    row = shelf.table.set_index("id").loc["one"]
    assert not shelf.unread
    runs = [open_run(path) for path in kept.iterdir() if path.name.startswith("one") and path.is_dir()]
    means = {
        run.record.label: run.tokens.loc[run.tokens["phase"] == "forced", "kl"].mean()
        for run in runs if run.record.method != "full"
    }  # fmt: skip
    assert row["least_kl"] == pytest.approx(min(means.values()))
    assert row["closest"] == min(means, key=means.__getitem__)
    assert row["bytes"] == sum(file.stat().st_size for run in runs for file in run.path.rglob("*") if file.is_file())


def test_a_run_that_is_the_full_caches_equal_is_the_closest(kept: Path):
    list_all(kept).read(float("inf"))
    comparisons, known = list_comparisons(kept), results(kept)
    (same,) = (run.run_id for run in comparisons[0].runs if run.method == "keepkv")
    known[same]["mean_kl"] = 0.0
    row = item_table(kept, comparisons, known, {}).set_index("id").loc[comparisons[0].comparison_id]
    assert (row["least_kl"], row["closest"]) == (0.0, "keepkv 25 %")


def test_of_several_prompts_the_closest_is_so_on_average(tmp_path: Path):
    for number in (1, 2):
        repeat = Repeat(batch="night", number=number, of=2, planting=Planting(draw=number))
        comparison(tmp_path, f"night-{number}", repeat=repeat)
    comparisons, known = list_comparisons(tmp_path), {}
    for entry in comparisons:
        for run in entry.runs:
            gap = {"h2o": 0.5, "keepkv": 0.1 if entry.number == 1 else 2.0}.get(run.method)
            known[run.run_id] = {"mean_kl": gap, "verdict": None}
    (row,) = item_table(tmp_path, comparisons, known, {}).to_dict("records")
    assert (row["least_kl"], row["closest"]) == (0.5, "h2o 25 %")


def test_an_answer_said_later_judges_again(kept: Path):
    list_all(kept).read(float("inf"))
    text = next(open_run(path) for path in kept.glob("one*h2o*")).record
    save_answer(kept, "one", text.prompt, text.free_text.split()[0])
    assert [entry.comparison_id for entry in list_all(kept).unread] == ["one"]
    list_all(kept).read(float("inf"))
    row = list_all(kept).table.set_index("id").loc["one"]
    assert row["judged"] == 2 and row["right"] >= 1
    assert row["answer"] == f"{row['right']} of 2 right"


def test_words_are_found_in_titles_notes_tags_and_prompts(kept: Path):
    change_labels(kept, "two", note="Looks like *sag*")
    change_tags(kept, "one", add=["Paper 3"])
    change_labels(kept, "needles", "evaluation", name="Table of needles")
    assert ids(kept, text="HARBOUR one") == ["one"]
    assert ids(kept, text="sag") == ["two"]
    assert ids(kept, text="paper harbour") == ["one"]
    assert ids(kept, text="table") == ["needles"]
    word = open_run(next(kept.glob("one*h2o*"))).record.prompt.split()[-1]
    assert "one" in ids(kept, text=word.upper())
    assert ids(kept, text="nowhere") == []


def test_archived_things_are_found_in_the_archive_alone(kept: Path):
    change_labels(kept, "one", archived=True)
    assert "one" not in ids(kept)
    assert ids(kept, archived=True) == ["one"]


def test_a_batch_is_one_row(kept: Path):
    for number in (1, 2):
        repeat = Repeat(batch="b", number=number, of=2, planting=Planting())
        comparison(kept, f"batch-{number}", repeat=repeat.model_dump())
    rows = list_all(kept).table
    (row,) = rows[rows["id"].str.startswith("batch")].to_dict("records")
    assert row["members"] == ("batch-1", "batch-2") and row["runs"] == 6


VALUES = {
    "kind": ("comparison", "evaluation"), "status": ("complete", "failed"), "model": ("mini", "llama, mini"),
    "methods": ((), ("h2o",), ("h2o", "keepkv")), "tags": ((), ("a",), ("a", "b")),
}  # fmt: skip


def test_filters_and_order_are_those_of_a_plain_loop():
    combinations = list(itertools.product(*VALUES.values(), (None, 0, 1), (False, True)))
    table = pd.DataFrame(
        [
            dict(zip(VALUES, values[:-2], strict=True))
            | {
                "id": f"{place}",
                "members": (f"{place}",),
                "title": f"t{place % 7}",
                "name": "",
                "note": "",
                "budgets": (),
            }
            | {"judged": 0 if values[-2] is None else 2, "right": values[-2], "starred": values[-1], "archived": False}
            | {"created": f"2026-01-{1 + place % 28:02d}T00:00:00+00:00", "bytes": place % 5, "runs": 1, "tokens": 1}
            | {"least_kl": None if place % 3 == 0 else place % 11, "score": None}
            for place, values in enumerate(combinations)
        ]
    ).astype({"least_kl": float, "right": "Int64", "judged": "Int64"})
    wanted = Search(methods=("keepkv",), tags=("b", "c"), models=("llama",), answers=("some", "unknown"),
                    starred=True, since="2026-01-03", until="2026-01-20", sort="least_kl")  # fmt: skip
    found = find(table, wanted, lambda words: [])
    expected = [
        row for row in table.to_dict("records")
        if "keepkv" in row["methods"] and ({"b", "c"} & set(row["tags"])) and "llama" in row["model"].split(", ")
        and row["starred"] and "2026-01-03" <= row["created"][:10] <= "2026-01-20"
        and (row["judged"] == 0 or 0 < row["right"] < row["judged"])
    ]  # fmt: skip
    assert len(expected) > 3
    assert set(found["id"]) == {row["id"] for row in expected}
    there = found["least_kl"].tolist()
    numbers = [one for one in there if one == one]
    assert numbers == sorted(numbers) and there[: len(numbers)] == numbers, "those without a number come last"


words = some.text(some.characters(codec="utf-8", exclude_characters="~"), min_size=1)


@given(
    some.builds(
        Search,
        text=words,
        sort=some.sampled_from(list(SORTS)),
        turned=some.booleans(),
        starred=some.booleans(),
        archived=some.booleans(),
        since=some.dates().filter(lambda day: day.year > 1700).map(str),
        until=some.just(""),
        **{name: some.lists(words, max_size=2).map(tuple) for name in FILTERS if name != "answers"},
        answers=some.lists(some.sampled_from(list(ANSWERS)), max_size=2).map(tuple),
    )
)
def test_an_address_says_what_is_looked_for(wanted: Search):
    assert from_url(to_url(wanted)) == wanted


@given(some.dictionaries(some.sampled_from([*FILTERS, "sort", "since", "until", "starred", "text"]), some.text()))
def test_any_address_is_read(asked: dict[str, str]):
    assert from_url(asked).sort in SORTS


def test_names_that_mean_nothing_are_refused(kept: Path):
    table = list_all(kept).table
    assert rows_of(table, ["evaluation/needles", "one"])["id"].tolist() == ["needles", "one"]
    with pytest.raises(UserError, match="There is no"):
        rows_of(table, ["../one"])
