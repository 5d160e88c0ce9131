"""The bar on top of every page about runs: it names the prompt and the run, and holds every picker."""

from __future__ import annotations

import html
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from kvlab.trace import open_run
from tests.pages.conftest import PAGES, RUN
from tests.synthetic.runs import write_synthetic_run

Open = Callable[..., AppTest]
WITHOUT_RUNS = {"glossary", "live", "start", "new_run", "runs", "story", "quality", "safe_budget", "speed"}
SEVERAL = {"compare", "spans"}  # pages of a comparison, not of one run
ABOUT_RUNS = sorted({*PAGES} - WITHOUT_RUNS)


def line(page: AppTest) -> str:
    """The line of the bar that says what is looked at."""
    assert not page.exception
    said = [str(caption.value).replace("\\", "").replace("\u00a0", " ") for caption in page.caption]
    found = [text for text in said if text.startswith("One prompt (")]
    assert len(found) == 1
    return found[0]


def keys(page: AppTest) -> set[str]:
    return {widget.key for widget in page.selectbox}


@pytest.mark.parametrize("name", ABOUT_RUNS)
def test_every_page_about_runs_names_them_in_its_bar(look: Open, name: str):
    """And that its numbers are of one prompt."""
    page = look(name)
    named = line(page)
    assert named.startswith("One prompt (the newer one, 64 tokens) · synthetic · ")
    methods = ("full", "h2o", "keepkv") if name in SEVERAL else ("keepkv",)
    assert all(method in named for method in methods) and "25 %" in named
    assert "pick_comparison" in keys(page)
    assert {"pick_run", "pick_a", "pick_b"} & keys(page) or name in SEVERAL
    assert not page.sidebar.selectbox, "every picker stands in the bar"


@pytest.mark.parametrize("name", sorted(WITHOUT_RUNS))
def test_a_page_that_shows_no_run_has_no_bar(look: Open, name: str):
    assert "pick_comparison" not in keys(look(name))


def test_the_text_of_the_prompt_is_one_click_away(shared_runs: Path, look: Open):
    page = look("memory")
    words = open_run(shared_runs / RUN).record.prompt.split()
    assert words in [text.value.split() for text in page.text]


def test_the_text_of_the_prompt_marks_the_fact_and_names_the_answer(runs_root: Path, open_page: Open):
    run = write_synthetic_run(runs_root, method="h2o", answer="<48>", facts=((4, 9),))
    page = open_page("regret", run=run.name)
    prompt = open_run(run).record.prompt
    (shown,) = [element.proto.body for element in page.get("html") if 'class="kv-prompt"' in element.proto.body]
    assert f"<mark>{html.escape(prompt[4:9])}</mark>" in shown
    said = [str(caption.value).replace("\\", "") for caption in page.caption]
    assert f"The expected answer is **<48>**, which depends on “{prompt[4:9].strip()}”, marked below." in said


@pytest.mark.parametrize("name", ["timeline", "similarity", "sag", "lineage", "regret", "autopsy", "wall"])
def test_pages_of_one_head_open_at_the_same_head_and_say_why(shared_runs: Path, look: Open, name: str):
    page = look(name)
    shown = tuple(page.selectbox(key=f"pick_{part}").value for part in ("layer", "head"))
    run = open_run(shared_runs / RUN)
    means = run.steps.groupby(["layer", "head"])["output_error"].mean()
    assert shown == means.idxmax()
    assert "largest output error" in page.selectbox(key="pick_layer").help


@pytest.mark.parametrize("name", ["regret", "merges", "autopsy", "heads"])
def test_the_toolbar_has_room_above_a_colour_bar(shared_runs: Path, open_page: Open, name: str):
    # The run of other tests drops no token, and a map of one colour is not drawn.
    run = "newer-h2o-25pc-0" if name == "autopsy" else RUN
    page = open_page(name, run=run, span="10-40")
    charts = [json.loads(element.proto.spec) for element in page.get("plotly_chart")]
    barred = [chart for chart in charts if any("colorbar" in trace for trace in chart["data"])]
    assert barred or name == "heads", "groups have colours of their own"
    assert all(chart["layout"]["margin"]["t"] >= 34 for chart in barred)


def test_two_comparisons_of_one_title_and_minute_are_told_apart(runs_root: Path, open_page: Open):
    for name in ("one", "two"):
        write_synthetic_run(runs_root, method="h2o", comparison_id=name, title="the same")
    page = open_page("memory", comparison="one")
    picker = page.selectbox(key="pick_comparison")
    assert len(set(picker.options)) == len(picker.options) == 2
    page = picker.select_index(1 - picker.index).run()
    assert not page.exception
    assert page.query_params["comparison"] in ("two", ["two"])
