"""The comparison puts the answer first: which method is closest to the full cache at the same bytes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from kvlab.trace import open_run
from kvlab.trace.record import read_record, write_record
from kvlab.trace.schema import SpeedReading
from kvlab.views.frames.compare import headline
from tests.synthetic.runs import write_synthetic_run

Open = Callable[..., AppTest]


def texts(page: AppTest) -> str:
    return "\n".join(str(element.value) for element in [*page.markdown, *page.caption, *page.info, *page.error])


def test_the_headline_table_comes_first_and_agrees_with_the_runs(runs_root: Path, open_page: Open):
    paths = [write_synthetic_run(runs_root, method=method) for method in ("full", "h2o", "keepkv")]
    page = open_page("compare")
    assert not page.exception
    shown = page.dataframe[0].value.set_index("method")
    expected = headline([open_run(path) for path in paths]).set_index("label")
    assert shown.index.tolist() == expected.index.tolist()
    assert shown["mean KL"].tolist() == pytest.approx(expected["mean_kl"].tolist())
    assert (shown["of full"] / 100).tolist() == pytest.approx(expected["live_ratio"].tolist())
    best = expected.drop(index=expected.index[0])["mean_kl"].astype(float).idxmin()
    lines = texts(page).splitlines()
    first = next(place for place, line in enumerate(lines) if line.startswith("Closest to the full cache first"))
    ranks = next(line for line in lines[first:] if line.startswith("- about"))
    assert ranks.split(": ")[1].startswith(f"**{best.split(' ')[0]}")


def test_texts_are_shown_escaped_with_differences_marked(runs_root: Path, open_page: Open):
    for method in ("full", "keepkv"):
        write_synthetic_run(runs_root, method=method, prompt="<script>alert(1)</script>", title="<b>x</b>")
    page = open_page("compare")
    assert not page.exception
    bodies = "".join(element.proto.body for element in page.get("html"))
    assert "<script" not in bodies
    assert "kv-own" in bodies


def test_a_note_of_all_runs_is_said_once_and_one_of_some_names_them(runs_root: Path, open_page: Open):
    for method in ("full", "h2o", "keepkv"):
        own = ("A local window.",) if method != "full" else ()
        path = write_synthetic_run(runs_root, method=method)
        write_record(path, read_record(path).model_copy(update={"notes": ("1 image was left out.", *own)}))
    told = [element.value.replace("\\", "") for element in open_page("compare").caption]
    assert told.count("1 image was left out.") == 1
    assert [line for line in told if "local window" in line] == ["**h2o, keepkv**: A local window."]


@pytest.mark.parametrize("level", ["light", "off"])
def test_lighter_levels_show_what_they_have(runs_root: Path, open_page: Open, level: str):
    for method in ("full", "keepkv"):
        write_synthetic_run(runs_root, method=method, level=level)
    page = open_page("compare")
    assert not page.exception
    assert "Along the text" in [element.value for element in page.header]
    if level == "off":
        assert "recorded no memory" in texts(page)


def test_cancelled_runs_say_so_in_the_table(runs_root: Path, open_page: Open):
    for method in ("full", "keepkv"):
        write_synthetic_run(runs_root, method=method, status="cancelled", layers=1, heads=1, steps=1)
    page = open_page("compare")
    assert not page.exception
    assert set(page.dataframe[0].value["status"]) == {"cancelled"}


def test_a_single_run_is_a_comparison_too(runs_root: Path, open_page: Open):
    write_synthetic_run(runs_root, method="keepkv")
    page = open_page("compare", bytes="peak_bytes")
    assert not page.exception


def test_rates_of_one_reading_are_dashes_with_the_reason_and_the_reference_is_named(runs_root: Path, open_page: Open):
    close = tuple(SpeedReading(way="eager", rate=rate) for rate in (54.0, 56.0))
    write_synthetic_run(runs_root, method="full", speed_readings=(SpeedReading(way="eager", rate=41.0),))
    write_synthetic_run(runs_root, method="h2o", speed_readings=close)
    write_synthetic_run(runs_root, method="keepkv")
    answers, shown = (one.value.set_index("method") for one in open_page("compare").dataframe[:2])
    assert shown["x kvlab full"].tolist() == ["1 x", "1.36 x", "– (one reading)"], "by medians 55 and 40.5"
    assert shown.loc["h2o", "tokens/s"] == "55 (54 to 56, eager)"
    assert shown.loc["keepkv", "tokens/s"] == "– (one reading: 55, eager)"
    assert answers["over budget"].tolist()[0] == "–"
    assert answers["over budget"].str.endswith("%").tolist()[1:] == [True] * 2


def budgets_page(runs_root: Path, open_page: Open, **query: str) -> AppTest:
    for method, budget in (("full", 1.0), ("h2o", 0.2), ("keepkv", 0.2), ("keepkv", 0.4), ("keepkv", 0.1)):
        write_synthetic_run(runs_root, method=method, budget=budget)
    page = open_page("compare", **query)
    assert not page.exception
    return page


def test_quality_against_bytes_is_the_first_chart(runs_root: Path, open_page: Open):
    page = budgets_page(runs_root, open_page)
    titles = [value.value for value in page.markdown if value.value.startswith("**")]
    assert titles[0].replace("\\", "") == "**Quality against bytes: one prompt, one dot per run**"
    assert "Closest to the full cache: " in texts(page).replace("\\", ""), "its caption names the best run"


def test_the_budget_slider_filters_the_rest_of_the_page(runs_root: Path, open_page: Open):
    page = budgets_page(runs_root, open_page)
    slider = page.select_slider(key="budget")
    assert list(slider.options) == ["all", "10 %", "20 %", "40 %"] and slider.value == "all"
    every = ["full", "h2o 20 %", "keepkv 20 %", "keepkv 40 %", "keepkv 10 %"]
    assert page.dataframe[0].value["method"].tolist() == every
    page = slider.set_value("20 %").run()
    assert not page.exception
    assert page.dataframe[-1].value["method"].tolist() == ["full", "h2o", "keepkv"]


def test_a_link_opens_a_budget_and_an_unknown_one_is_said(runs_root: Path, open_page: Open):
    page = budgets_page(runs_root, open_page, budget="40 %")
    assert page.select_slider(key="budget").value == "40 %"
    assert page.dataframe[-1].value["method"].tolist() == ["full", "keepkv"]
    page = open_page("compare", budget="7 %")
    assert not page.exception
    assert page.select_slider(key="budget").value == "all"
    (said,) = [box.value for box in page.warning]
    assert "has no budget" in said and "7 %" in said and "10 %, 20 %, 40 %" in said


def test_a_comparison_at_one_budget_has_no_slider(runs_root: Path, open_page: Open):
    for method in ("full", "h2o", "keepkv"):
        write_synthetic_run(runs_root, method=method)
    assert not open_page("compare").get("select_slider")
